"""Damages a checkpoint in random ways."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tf_sparse_ps.checkpoints import manifest


def files(folder: Path) -> list[Path]:
    """The files of a checkpoint, without the manifest."""
    return sorted(file for file in folder.iterdir() if file.name != manifest.NAME)


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
    file_1, file_2 = draw.sample(files(folder), 2)
    file_1.rename(folder / "x")
    file_2.rename(file_1)
    (folder / "x").rename(file_2)
    return f"{file_1.name} and {file_2.name} swapped"


def _swap_across(folder: Path, file: Path, draw: random.Random) -> str:
    folders = [path for path in sorted(folder.parent.iterdir()) if path.name.startswith("step-") and path != folder]
    source = draw.choice([path for path in folders if (path / file.name).exists()])
    shutil.copy(source / file.name, file)
    return f"{file.name} of {source.name}"


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
    """Damages a checkpoint and returns a description of the damage. The ways of damaging take turns.

    Args:
      folder: The checkpoint's folder, next to other checkpoints.
      number: The number of the damage, which selects the way.
      draw: The source of random numbers.
    """
    damage = DAMAGE[number % len(DAMAGE)]
    file = draw.choice([folder / manifest.NAME, *files(folder)])
    if damage is _link and file.name == manifest.NAME:
        file = files(folder)[0]
    if damage is _swap_across and file.name.endswith(".erased.npz"):
        file = folder / manifest.NAME  # not every checkpoint has erased keys
    return damage(folder, file, draw)
