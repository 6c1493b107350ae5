"""The layout of the files of a group (docs/format.md), with names for reports."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

from tests.mutate import record_layout

LIVE = 4096
RECORDS = (12_288, 212_992)
RECORD_HEAD, TABLE_STATE = 64, 192
NAMES, NAME = 413_696, 136
PLANES_AT, PLANE, PLANES_BYTES = 32, 64, 1064
SEGMENT, ENTRIES_AT, ENTRY = 65_536, 64, 16
UNDO_RECORDS, UNDO_RECORD_HEAD, UNDO_BLOCK = 4096, 64, 256

# (offset, end, name) within the part
_HEADER = (
    (0, 8, "magic"),
    (8, 16, "version"),
    (16, 48, "uuid"),
    (48, 64, "draw"),
    (64, 124, "reserved"),
    (124, 128, "crc"),
)
_LIVE = (
    (0, 8, "sequence"),
    (8, 16, "undo_epoch"),
    (64, 72, "writer_pid"),
    (72, 80, "writer_start"),
    (80, 84, "growing"),
    (96, 104, "run_id"),
    (104, 112, "rebuilds"),
    (128, 136, "sealed_epoch"),
    (136, 160, "sealed"),
    (256, 320, "scans"),
)
_RECORD = ((0, 8, "epoch"), (8, 16, "step"), (16, 24, "version"), (24, 28, "n_tables"), (28, 32, "changes"))
_TABLE = (
    (0, 8, "rows"),
    (8, 16, "live"),
    (16, 24, "free_rows"),
    (24, 32, "removed"),
    (32, 36, "segments"),
    (36, 40, "depth"),
    (40, 44, "planes"),
    (44, 48, "flags"),
    (48, 56, "erased"),
    (56, 60, "complete_since"),
    (60, 64, "moves"),
    (64, 80, "index_seed"),
    (80, 96, "optimizer"),
    (96, 104, "version"),
)
_UNDO_HEADER = ((0, 8, "magic"), (8, 16, "epoch"), (16, 24, "bytes"), (24, 28, "records"), (28, 32, "crc"))
_UNDO_RECORD = (
    (0, 4, "kind"),
    (4, 8, "table"),
    (8, 16, "n"),
    (16, 24, "bytes"),
    (24, 28, "planes"),
    (28, 32, "row_bytes"),
    (32, 36, "segment"),
    (40, 48, "hash"),
)
UNUSED = record_layout.UNUSED


@dataclasses.dataclass(frozen=True)
class TableState:
    """The committed record of a table."""

    rows: int
    free: frozenset[int]  # row numbers on the stack
    segments: int
    depth: int
    erased: int
    row_bytes: dict[str, int]  # by the name of each plane's file


@dataclasses.dataclass(frozen=True)
class GroupState:
    """The committed record of a group."""

    epoch: int
    tables: dict[str, TableState]

    @classmethod
    def of(cls, group: Path) -> GroupState:
        data = (group / "group").read_bytes()
        epoch = struct.unpack_from("<Q", data, LIVE)[0] // 2
        record = RECORDS[epoch & 1]
        tables = {}
        for i in range(struct.unpack_from("<I", data, record + 24)[0]):
            at = record + RECORD_HEAD + TABLE_STATE * i
            rows, _, free, _, segments, depth, planes, _, erased = struct.unpack_from("<QQQQIIIIQ", data, at)
            name = _text(data[NAMES + NAME * i :][:NAME])
            stack = struct.unpack_from(f"<{free}I", (group / name / "free").read_bytes())
            listed = _planes((group / name / f"planes.{planes}").read_bytes())
            tables[name] = TableState(rows, frozenset(stack), segments, depth, erased, listed)
        return cls(epoch, tables)


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode()


def _planes(data: bytes) -> dict[str, int]:
    widths = {}
    for p in range(struct.unpack_from("<I", data, 24)[0]):
        at = PLANES_AT + PLANE * p
        _, _, row_bytes, generation = struct.unpack_from("<IIII", data, at + 32)
        widths[f"plane.{_text(data[at : at + 32])}.{generation}"] = row_bytes
    return widths


def _named(parts: tuple[tuple[int, int, str], ...], offset: int) -> str:
    return next((name for begin, end, name in parts if begin <= offset < end), UNUSED)


def field_of(state: GroupState, file: str, offset: int, data: bytes) -> str:
    """Returns the name of the field at `offset` of a file of the group; "unused" where nothing is read.

    Args:
      state: The state of the group.
      file: The file's path, relative to the group.
      offset: The offset in the file.
      data: The file's bytes.
    """
    folder, _, name = file.rpartition("/")
    if record_layout.is_one(file):
        return record_layout.field_of(file, offset)
    if file == "group":
        return _control_field(state, offset)
    if file == "undo":
        return _undo_field(offset, data)
    if not folder:
        return UNUSED
    table = state.tables[folder]
    if name == "config":
        return "config" if offset < 256 else UNUSED
    if name == "directory":
        first = 4 << table.depth
        return "entry" if first <= offset < 2 * first else "entry of a smaller depth" if offset < first else UNUSED
    if name == "segments":
        if offset >= table.segments * SEGMENT:
            return UNUSED
        at = offset % SEGMENT
        if at < ENTRIES_AT:
            return _named(((0, 4, "used"), (4, 8, "local_depth")), at)
        number = offset // SEGMENT
        entry = number * SEGMENT + ENTRIES_AT + (at - ENTRIES_AT) // ENTRY * ENTRY
        row = struct.unpack_from("<I", data, entry + 8)[0]
        kind = "entry" if row not in (0, 0xFFFFFFFF) else "tombstone" if row else "empty entry"
        part = _named(((0, 8, "key"), (8, 12, "row")), offset - entry)
        return f"{part} of {'a' if kind == 'tombstone' else 'an'} {kind}" if part != UNUSED else UNUSED
    if name == "free":
        return "row number" if offset < 4 * len(table.free) else UNUSED
    if name == "erased":
        named = _named(((0, 8, "key"), (8, 12, "generation")), offset % 16)
        return named if offset < 16 * table.erased else UNUSED
    if name.startswith("planes."):
        return "list of planes" if offset < PLANES_BYTES else UNUSED
    row = offset // table.row_bytes[name]
    return "value" if row < table.rows and row not in table.free else UNUSED


def used_bytes(state: GroupState, file: str, data: bytes) -> int:
    """Returns the number of bytes of a group's file that are in use, in whole pages."""
    folder, _, name = file.rpartition("/")
    if record_layout.is_one(file):
        return record_layout.used_bytes(data)
    if not folder:
        used = len(data) if file != "undo" else UNDO_RECORDS + int(struct.unpack_from("<Q", data, 16)[0])
    else:
        table = state.tables[folder]
        sizes = {
            "config": 256,
            "directory": 8 << table.depth,
            "segments": table.segments * SEGMENT,
            "free": 4 * len(table.free),
            "erased": 16 * table.erased,
        }
        if name.startswith("planes."):
            used = PLANES_BYTES
        else:
            used = sizes[name] if name in sizes else table.rows * table.row_bytes[name]
    return max(1, (used + 4095) // 4096) * 4096


def _control_field(state: GroupState, offset: int) -> str:
    if offset < LIVE:
        return "header: " + _named(_HEADER, offset) if offset < 128 else UNUSED
    if offset < RECORDS[0]:
        name = _named(_LIVE, offset - LIVE)
        return name if name == UNUSED else f"live state: {name}"
    if offset >= NAMES:
        return "name of a table" if offset < NAMES + NAME * len(state.tables) else UNUSED
    number = int(offset >= RECORDS[1])
    if number != state.epoch & 1:
        return "the other commit record"
    at = offset - RECORDS[number]
    if at < RECORD_HEAD:
        name = _named(_RECORD, at)
        return name if name == UNUSED else f"commit record: {name}"
    table, at = divmod(at - RECORD_HEAD, TABLE_STATE)
    name = _named(_TABLE, at) if table < len(state.tables) else UNUSED
    return name if name == UNUSED else f"table in the commit record: {name}"


def _undo_field(offset: int, data: bytes) -> str:
    if offset < UNDO_RECORDS:
        return "header: " + _named(_UNDO_HEADER, offset) if offset < 32 else UNUSED
    end = UNDO_RECORDS + struct.unpack_from("<Q", data, 16)[0]
    at = UNDO_RECORDS
    while at <= offset < end:
        kind, _, n, size = struct.unpack_from("<IIQQ", data, at)
        if offset < at + size:
            if offset < at + UNDO_RECORD_HEAD:
                name = _named(_UNDO_RECORD, offset - at)
                return name if name == UNUSED else f"record: {name}"
            within = offset - at - UNDO_RECORD_HEAD
            if kind == 1:
                seals, blocks = (4 * n + 63) // 64 * 64, (n + UNDO_BLOCK - 1) // UNDO_BLOCK
                images = seals + (8 * blocks + 63) // 64 * 64
                parts = ((0, 4 * n, "row number"), (seals, seals + 8 * blocks, "seal"), (images, size, "row image"))
                return _named(parts, within)
            return {2: "inserted key", 3: "erased entry", 4: "segment image", 5: "free row"}[kind]
        at += size
    return UNUSED
