"""Damage to a checkpoint, at random."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tf_sparse_ps.checkpoints import manifest


def files(folder: Path) -> list[Path]:
    """The files of a checkpoint but for the manifest."""
    return sorted(one for one in folder.iterdir() if one.name != manifest.NAME)


def _flip(folder: Path, file: Path, draw: random.Random) -> str:
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    data[place] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return f"a bit of {file.name}"


def _overwrite(folder: Path, file: Path, draw: random.Random) -> str:
    data = bytearray(file.read_bytes())
    start = draw.randrange(len(data))
    old = data[start : start + 64]
    while (new := draw.randbytes(len(old))) == old:
        pass
    data[start : start + 64] = new
    file.write_bytes(data)
    return f"bytes of {file.name}"


def _truncate(folder: Path, file: Path, draw: random.Random) -> str:
    os.truncate(file, draw.randrange(file.stat().st_size))
    return f"{file.name} truncated"


def _extend(folder: Path, file: Path, draw: random.Random) -> str:
    with open(file, "ab") as stream:
        stream.write(draw.randbytes(draw.randrange(1, 100)))
    return f"{file.name} extended"


def _remove(folder: Path, file: Path, draw: random.Random) -> str:
    file.unlink()
    return f"{file.name} removed"


def _swap_inside(folder: Path, file: Path, draw: random.Random) -> str:
    first, second = draw.sample(files(folder), 2)
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)
    return f"{first.name} and {second.name} swapped"


def _swap_across(folder: Path, file: Path, draw: random.Random) -> str:
    others = [one for one in sorted(folder.parent.iterdir()) if one.name.startswith("step-") and one != folder]
    other = draw.choice([one for one in others if (one / file.name).exists()])
    shutil.copy(other / file.name, file)
    return f"{file.name} of {other.name}"


def _link(folder: Path, file: Path, draw: random.Random) -> str:
    file.rename(folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere") if draw.random() < 0.5 else file.mkdir()
    return f"{file.name} is no regular file"


DAMAGE: tuple[Callable[[Path, Path, random.Random], str], ...] = (
    _flip,
    _overwrite,
    _truncate,
    _extend,
    _remove,
    _swap_inside,
    _swap_across,
    _link,
)


def at_random(folder: Path, number: int, draw: random.Random) -> str:
    """Damages a checkpoint in one of these ways, by turns; returns what was done.

    Args:
      folder: Of the checkpoint, beside others.
      number: Of the damage.
      draw: Chooses.
    """
    damage = DAMAGE[number % len(DAMAGE)]
    file = draw.choice([folder / manifest.NAME, *files(folder)])
    if damage is _link and file.name == manifest.NAME:
        file = files(folder)[0]
    if damage is _swap_across and file.name.endswith(".erased.npz"):
        file = folder / manifest.NAME  # not each has keys that were erased
    return damage(folder, file, draw)
