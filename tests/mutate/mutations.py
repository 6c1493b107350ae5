"""One mutation of one file. Seed and number determine the file, the place and the change."""

from __future__ import annotations

import dataclasses
import os
import random
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.mutate import layout, record_layout, tiered
from tests.mutate.content import STATES

FILE = "parameter file"
_FILE_HEADER = 128 + 64 * 4  # with the list of planes: a row, a slot, two planes of metadata
_SPECIAL = (0, 1, 2, 3, 26, 27, 31, 32, 255, 4092, 65_536, 2**31 - 1, 2**31, 2**32 - 17, 2**32 - 2, 2**32 - 1)
_SPECIAL_64 = (*_SPECIAL, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
# Files that contain numbers of other places are mutated more often than files that contain values.
_WEIGHTS = {"group": 6, "directory": 4, "segments": 6, "free": 4, "undo": 1, "config": 1, "writer.lock": 1}
_WHAT = {
    "a bit": 30,
    "a byte": 10,
    "four bytes": 20,
    "eight bytes": 15,
    "zeros": 5,
    "noise": 9,
    "two words": 4,
    "shorter": 4,
    "longer": 2,
    "gone": 1,
}


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A mutation.

    Attributes:
      number: The number of the mutation.
      state: The state of the group, one of `STATES` or of `tiered.STATES`; or FILE.
      file: The file's path, relative to the group.
      field: A description of the place.
      what: A description of the change.
    """

    number: int
    state: str
    file: str
    field: str
    what: str

    def __str__(self) -> str:
        return f"{self.number}: {self.state}, {self.file}, {self.field}: {self.what}"


def state_of(seed: int, number: int, only_tiered: bool) -> str:
    """Returns the state that a mutation needs. Of ten, four are of a closed group, two of a killed writer's, three of
    a group with rows on disk, and one of a parameter file.
    """
    draw = random.Random(f"{seed} {number} state").random()
    if only_tiered or draw < 0.3:
        return tiered.STATES[int(draw * 1000) % 2]
    return "closed" if draw < 0.7 else FILE if draw >= 0.9 else STATES[1 + int((draw - 0.7) * 15)]


def mutate(path: Path, seed: int, number: int, state: str) -> Mutation:
    """Changes the group in the folder `path`, or the parameter file `path`.

    Args:
      path: A fresh copy.
      seed, number: The seed and the number of the mutation.
      state: The state of `path`.
    """
    rng = random.Random(f"{seed} {number}")
    if state == FILE:
        file, target = path.name, path
    else:
        files = sorted(str(file_path.relative_to(path)) for file_path in path.rglob("*") if file_path.is_file())
        weights = [_weight(name, state) for name in files]
        file = rng.choices(files, weights)[0]
        target = path / file
    data = target.read_bytes()
    group = None if state == FILE else layout.GroupState.of(path)
    # The space that is reserved ahead differs from run to run, and nothing reads it.
    span = len(data) if group is None else min(len(data), layout.used_bytes(group, file, data))
    while True:
        change = rng.choices(list(_WHAT), list(_WHAT.values()))[0]
        if not data and change not in ("longer", "gone"):
            continue
        if change in ("shorter", "longer", "gone"):
            return Mutation(number, state, file, "the whole file", _resize(rng, target, span, change))
        offset, field = _place(rng, group, file, data, span)
        changed, words = _change(rng, data[:span], offset, change)
        changed += data[span:]
        if changed != data:
            target.write_bytes(changed)
            return Mutation(number, state, file, field, f"{words} at {offset}")


def _weight(file: str, state: str) -> int:
    name = os.path.basename(file)
    if state in tiered.STATES:  # other states mutate the files of rows in memory
        return (4 if name.startswith("records.") else 1) if record_layout.is_one(file) else 0
    if name == "undo" and state != "closed":
        return 12
    return 3 if name.startswith("planes.") else _WEIGHTS.get(name, 1)


def _place(rng: random.Random, group: layout.GroupState | None, file: str, data: bytes, span: int) -> tuple[int, str]:
    """Returns a byte of the first `span` and the name of its field, mostly of a field that is used."""
    if group is None:
        offset = rng.randrange(_FILE_HEADER) if rng.random() < 0.5 else rng.randrange(span)
        return offset, "header" if offset < _FILE_HEADER else "blocks"
    interesting = rng.random() < 0.85
    for _ in range(2000):
        offset = rng.randrange(span)
        if interesting:
            offset = rng.choice(_beginnings(file, data[:span], group)) + min(int(rng.expovariate(0.02)), 4096)
        if offset >= span:
            continue
        field = layout.field_of(group, file, offset, data)
        if not interesting or field != layout.UNUSED:
            break
    return offset, field


def _beginnings(file: str, data: bytes, group: layout.GroupState) -> Sequence[int]:
    """Returns the offsets of a file's numbers. `data` are its bytes that are in use."""
    name, span = os.path.basename(file), len(data)
    if record_layout.is_one(file):
        return record_layout.beginnings(file, data)
    if name == "group":
        record = layout.RECORDS[group.epoch & 1]
        return [0, layout.LIVE, *[record, record + layout.RECORD_HEAD] * 4, layout.NAMES]
    if name == "undo":
        return [0, layout.UNDO_RECORDS, layout.UNDO_RECORDS]
    if name == "segments":
        table = group.tables[os.path.dirname(file)]
        return [*range(0, table.segments * layout.SEGMENT, layout.SEGMENT), *range(0, span, 4096)]
    if name == "directory":
        table = group.tables[os.path.dirname(file)]
        return [4 << table.depth]
    return [0] if name in ("config", "free") or name.startswith("planes.") else range(0, span, 512)


def _change(rng: random.Random, data: bytes, offset: int, change: str) -> tuple[bytes, str]:
    changed = bytearray(data)
    if change == "a bit":
        bit = rng.randrange(8)
        changed[offset] ^= 1 << bit
        return bytes(changed), f"bit {bit} flipped"
    if change == "a byte":
        changed[offset] = rng.randrange(256)
        return bytes(changed), f"byte set to {changed[offset]}"
    if change in ("four bytes", "eight bytes"):
        size, form = (4, "<I") if change == "four bytes" else (8, "<Q")
        at = offset // size * size
        (old,) = struct.unpack_from(form, (data + b"\0" * 8), at)
        specials = _SPECIAL if size == 4 else _SPECIAL_64
        value = rng.choice([*specials, old + 1, old - 1, 2 * old, rng.getrandbits(8 * size)]) % (1 << 8 * size)
        new = struct.pack(form, value)
        changed[at : at + size] = new[: len(data) - at]
        return bytes(changed), f"{change}, {old}, set to {value}"
    if change == "two words":
        other = rng.randrange(len(data)) // 4 * 4
        at = offset // 4 * 4
        first, second = data[at : at + 4], data[other : other + 4]
        if len(first) == len(second) == 4:
            changed[at : at + 4], changed[other : other + 4] = second, first
        return bytes(changed), f"four bytes exchanged with those at {other},"
    length = min(rng.randrange(1, 4096 if change == "zeros" else 512), len(data) - offset)
    changed[offset : offset + length] = bytes(length) if change == "zeros" else rng.randbytes(length)
    return bytes(changed), f"{length} bytes of {change}"


def _resize(rng: random.Random, target: Path, size: int, change: str) -> str:
    if change == "gone":
        target.unlink()
        return "removed"
    new = rng.randrange(size) if change == "shorter" else size + rng.randrange(1, 100_000)
    os.truncate(target, new)
    return f"{new} bytes long instead of {size} and what is reserved"
