"""The layout of the files of rows on disk (docs/format.md), with names for reports."""

from __future__ import annotations

import os
import struct

_PAGE, _ENTRIES, _SEGMENT = 4096, 455, 168
_RECORD_FILE = (
    (0, 8, "magic"),
    (8, 12, "version"),
    (12, 16, "number"),
    (16, 48, "uuid"),
    (48, 56, "payload bytes"),
    (56, 64, "records per file"),
    (68, 72, "crc"),
)
_CONFIG = ((0, 8, "magic"), (8, 16, "version"), (16, 48, "uuid"), (48, 56, "memory"), (56, 4024, "path"))
_DIRECTORY = (
    (0, 12, "magic"),
    (12, 16, "uses"),
    (16, 24, "seed"),
    (28, 32, "crc"),
    (32, 36, "depth"),
    (36, 40, "segments"),
)
_SEGMENT_HEAD = ((0, 4, "moves"), (8, 88, "state 0"), (88, 168, "state 1"))
_PAGE_PARTS = ((0, 4 * _ENTRIES, "place"), (4 * _ENTRIES, 9 * _ENTRIES, "tag"))
_MOVES = ((0, 4, "number"), (4, 8, "in progress"), (8, 24, "counts"), (24, 56, "state"))
UNUSED = "unused"


def is_one(file: str) -> bool:
    """Whether a file of a group belongs to rows on disk. The other files of its table do not."""
    name = os.path.basename(file)
    return name.startswith("records.") or file.startswith("disk/")


def field_of(file: str, offset: int) -> str:
    """Returns the name of the field at `offset` of such a file."""
    name = os.path.basename(file)
    if file.startswith("disk/"):
        if name == "table":
            return "owner"
        return f"header: {_named(_RECORD_FILE, offset)}" if offset < _PAGE else "record"
    parts = {"records.config": _CONFIG, "records.moves": _MOVES}
    if name in parts:
        named = _named(parts[name], offset)
        return "move" if name == "records.moves" and offset >= 64 else named
    if name == "records.directory":
        return "entry" if offset >= _PAGE else _named((*_DIRECTORY, (40, 44, "pages")), offset)
    if name == "records.segments":
        return _named(_SEGMENT_HEAD, offset % _SEGMENT)
    if name == "records.pages":
        return _named(_PAGE_PARTS, offset % _PAGE)
    if name == "records.uses":
        return "key" if offset % 16 < 8 else "use"
    return "cached record" if name == "records.cache" else "announced step"


def beginnings(file: str, data: bytes) -> list[int]:
    """Returns the offsets of the numbers of such a file."""
    name = os.path.basename(file)
    if file.startswith("disk/") and name != "table":
        return [0, *range(_PAGE, max(len(data), 2 * _PAGE), 512)]
    if name == "records.config":
        return [0, 48, 56]
    if name == "records.directory":
        (depth,) = struct.unpack_from("<I", data, 32)
        return [0, 32, _PAGE + (4 << depth)]
    if name == "records.moves":
        return [0, 0, 64]
    step = {"records.segments": _SEGMENT, "records.pages": _PAGE}.get(name, 512)
    return list(range(0, max(1, len(data)), step))


def used_bytes(data: bytes) -> int:
    """Returns the number of bytes of such a file that are in use, in whole pages. Reserved space is zeros."""
    return max(1, (len(data.rstrip(b"\0")) + _PAGE - 1) // _PAGE) * _PAGE


def _named(parts: tuple[tuple[int, int, str], ...], offset: int) -> str:
    return next((name for begin, end, name in parts if begin <= offset < end), UNUSED)
