"""Measures the disk of a folder for tiers: a test of at most one second and 64 MiB."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import secrets
import time

from tf_sparse_ps.cli.checks import NOTE, OK, PROBLEM, Check
from tf_sparse_ps.cli.display import size
from tf_sparse_ps.errors import AccessError
from tf_sparse_ps.folders import Folder, Trust

_BYTES, _PART, _PAGE = 64 << 20, 1 << 20, 4096
_WRITE_S, _READ_S = 0.5, 0.4
_LITTLE_ROOM = 1 << 30
_SLOW_WRITE, _SLOW_READS = 100e6, 500.0  # bytes and reads per second


def tiers(folder: str) -> Check:
    """Checks a folder for tiers: who can write it, its room, its speed, and whether it takes O_DIRECT."""
    facts: dict[str, object] = {"path": folder}
    try:
        with Folder.open(folder, Trust.OWN) as opened:
            status = os.fstatvfs(opened.descriptor)
            free = status.f_bavail * status.f_frsize
            direct, write_rate, reads = _measure(opened, min(_BYTES, free // 2))
    except FileNotFoundError:
        remedy = f"Run `mkdir -p {folder}`, on a local disk"
        return Check("tiers", PROBLEM, f"{folder} does not exist", remedy, facts)
    except (AccessError, OSError) as error:
        return Check("tiers", PROBLEM, str(error), "Name a folder that only you can write, on a local disk", facts)
    facts |= {"free": free, "direct": direct, "write_bytes_per_s": write_rate, "reads_per_s": reads}
    finding = f"{size(free)} free, writes {size(write_rate)}/s, {reads:,.0f} reads/s of 4 KiB"
    if free < _LITTLE_ROOM:
        return Check("tiers", PROBLEM, finding, "Free space, or name a folder on another disk", facts)
    if not direct:
        remedy = "The file system refuses O_DIRECT, so rows on disk also take page cache. Use ext4 or xfs"
        return Check("tiers", NOTE, finding, remedy, facts)
    if write_rate < _SLOW_WRITE or reads < _SLOW_READS:
        return Check("tiers", NOTE, finding, "Steps wait for this disk. Use a local SSD", facts)
    return Check("tiers", OK, f"{finding}, with O_DIRECT", facts=facts)


def _measure(folder: Folder, most: int) -> tuple[bool, float, float]:
    """Returns whether O_DIRECT works, bytes written per second, and random reads of a page per second."""
    descriptor, direct = _new_file(folder)
    try:
        with mmap.mmap(-1, _PART) as part:
            part.write(secrets.token_bytes(_PART))  # some disks compress
            written, begin = 0, time.monotonic()
            while written < max(most, _PART) and time.monotonic() - begin < _WRITE_S:
                written += os.pwrite(descriptor, part, written)
                os.fdatasync(descriptor)
            write_s = time.monotonic() - begin
        if not direct:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        draw, reads, begin = random.Random(0), 0, time.monotonic()
        with mmap.mmap(-1, _PAGE) as page:
            while time.monotonic() - begin < _READ_S and reads < 20_000:
                os.preadv(descriptor, [page], draw.randrange(written // _PAGE) * _PAGE)
                reads += 1
        return direct, written / write_s, reads / (time.monotonic() - begin)
    finally:
        os.close(descriptor)


def _new_file(folder: Folder) -> tuple[int, bool]:
    """Returns the descriptor of a new file without a name, and whether it is open with O_DIRECT."""
    name = f".disk-probe-{secrets.token_hex(8)}"
    for flags in (os.O_DIRECT, 0):
        try:
            descriptor = folder.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags)
        except OSError as error:
            # A file system that refuses O_DIRECT may have made the file.
            with contextlib.suppress(FileNotFoundError):
                folder.unlink(name)
            if error.errno != errno.EINVAL or not flags:
                raise
            continue
        folder.unlink(name)
        return descriptor, bool(flags)
    raise AssertionError("the file system refused a file without flags")
