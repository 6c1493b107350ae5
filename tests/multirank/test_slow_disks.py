"""Checkpoints on a slow disk: training continues, waiting ranks report it, and no rank is considered lost.

The slow disk is a loop device whose writes a control group limits. This needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import launch
import pytest
from slow_disk_program import FILES, STANDS_STILL_S

from tf_sparse_ps.checkpoints.directory import CheckpointDirectory

PROGRAM = "slow_disk_program.py"
TIMEOUT_S = 9.0  # four seconds longer than a rank stands still at a file, in which it makes no progress
BLKIO = Path("/sys/fs/cgroup/blkio")  # version 1, which attributes a process's fsync to its group
RATE = 400_000  # bytes/s; a checkpoint has 8 MB
IMAGE_BYTES = 128 << 20


class SlowDisk(NamedTuple):
    """A mounted file system, and the control group whose processes are slow there."""

    folder: Path
    group: Path


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[SlowDisk]:
    if os.geteuid() != 0 or not (BLKIO / "blkio.throttle.write_bps_device").exists():
        pytest.skip("a rate-limited loop device wants root, and the controller blkio")
    if any(shutil.which(tool) is None for tool in ("losetup", "mkfs.ext4", "mount")):
        pytest.skip("losetup, mkfs.ext4 or mount is not installed")
    with contextlib.ExitStack() as stack:
        image, folder = tmp_path / "image", tmp_path / "mounted"
        with open(image, "wb") as file:
            file.truncate(IMAGE_BYTES)
        folder.mkdir()
        _run("mkfs.ext4", "-q", "-F", str(image))
        device = _run("losetup", "--find", "--show", str(image))
        stack.callback(_run, "losetup", "--detach", device)
        _run("mount", device, str(folder))
        stack.callback(_run, "umount", str(folder))
        group = Path(tempfile.mkdtemp(prefix="tsps-test-", dir=BLKIO))
        stack.callback(group.rmdir)
        number = os.stat(device).st_rdev
        limit = f"{os.major(number)}:{os.minor(number)} {RATE}"
        (group / "blkio.throttle.write_bps_device").write_text(limit)
        yield SlowDisk(folder, group)
        deadline = time.monotonic() + 30
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)


def finish(how: str, folder: Path, group: str) -> tuple[str, float]:
    """Runs the program on two ranks to its end; returns its output, and the seconds that it took."""
    env = {"TFSPS_TIMEOUT_S": str(TIMEOUT_S)}
    began = time.monotonic()
    with launch.launched(PROGRAM, how, str(folder), group, hosts="localhost:2", ranks=2, env=env) as job:
        assert job.wait() == 0, job.output[-8000:]
        assert job.output.count("rank is done") == 2
        print(*re.findall(r".*(?:beside|took|waited|waiting).*", job.output), sep="\n")
        return job.output, time.monotonic() - began


def must_be_whole(folder: Path, checkpoints: int) -> None:
    """Fails unless the folder has all saved checkpoints, and nothing else."""
    newest, skipped = CheckpointDirectory(folder).newest()
    assert newest is not None
    assert len(newest.manifest.files) == FILES + 1  # one of rank 1
    assert skipped == []
    names = [path.name for path in folder.iterdir() if not path.name.startswith("step-")]
    assert names in ([], [".checkpoints.lock"])
    assert len(CheckpointDirectory(folder).find()) == checkpoints


def test_ranks_that_wait_longer_than_their_timeout_for_a_save_are_not_lost(tmp_path: Path) -> None:
    # No file takes as long as the ranks wait for a lost rank, but all files do.
    assert STANDS_STILL_S + 4 <= TIMEOUT_S <= FILES * STANDS_STILL_S - 4
    output, _ = finish("wait", tmp_path / "checkpoints", "-")
    assert "waiting for checkpoint" in output
    must_be_whole(tmp_path / "checkpoints", 1)


@pytest.mark.nightly
def test_ranks_that_wait_longer_than_their_timeout_for_a_restore_are_not_lost(tmp_path: Path) -> None:
    finish("wait", tmp_path, "-")
    output, _ = finish("restore", tmp_path, "-")
    assert f"restored {tmp_path}/step-" in output


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["loop", "fit", "exit"])
def test_checkpoints_on_a_slow_disk(slow_disk: SlowDisk, how: str) -> None:
    folder = slow_disk.folder / "checkpoints"
    output, seconds = finish(how, folder, str(slow_disk.group))
    must_be_whole(folder, 2)
    assert seconds > 2 * TIMEOUT_S
    assert "was not saved" not in output
    if how != "exit":
        waiting_line = re.search(r"waiting for checkpoint \S+/step-\d+ to be on the disk: \d+ MB written", output)
        assert waiting_line is not None
    if how == "loop":
        beside = re.search(r"(\d+) steps beside a save of (\S+) s; save\(\) took (\S+) s", output)
        assert beside is not None
        assert int(beside[1]) > 100
        assert float(beside[2]) > 2 * TIMEOUT_S
        assert float(beside[3]) < 2.0
