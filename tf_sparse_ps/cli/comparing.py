"""Compares the rows of two tables.

The first pass reads both, and keeps a key and a checksum of 64 bits for each row. If rows differ, a second pass finds
the largest difference. It keeps the rows of one side that differ, in a temporary file if they are many.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.checkpoints import comparison
from tf_sparse_ps.stored.contents import Content
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block

_EXAMPLES = 5
_MEMORY_BYTES = 64 << 20


def compare(a: Content, b: Content) -> dict[str, Any]:
    """Compares two tables: keys, rows, and the slots and metadata if both have the same ones.

    Returns:
      The facts about the table, as `schemas/diff.json` describes them.
    """
    settings = _settings(a, b)
    facts: dict[str, Any] = {"equal": not settings, "settings": settings, "planes": []}
    if a.dim != b.dim:
        return facts | {"equal": False, "rows": None, "largest_difference": None, "examples": None}
    planes = _common_planes(a, b)
    old, new = (_digests(content, slots=planes != ["embedding"]) for content in (a, b))
    common, at_a, at_b = np.intersect1d(old[0], new[0], assume_unique=True, return_indices=True)
    different = common[old[1][at_a] != new[1][at_b]]
    only_a, only_b = _without(old[0], at_a), _without(new[0], at_b)
    rows = {
        "equal": len(common) - len(different),
        "different": len(different),
        "only_a": len(only_a),
        "only_b": len(only_b),
    }
    examples = {"different": different, "only_a": only_a, "only_b": only_b}
    return facts | {
        "equal": not settings and len(different) == len(only_a) == len(only_b) == 0,
        "planes": planes,
        "rows": rows,
        "largest_difference": _largest(a, b, different, planes),
        "examples": {name: keys[:_EXAMPLES].tolist() for name, keys in examples.items()},
    }


def _settings(a: Content, b: Content) -> dict[str, Any]:
    """Returns what absent keys read depends on, where it differs: the values of A and of B."""
    settings = {"dim": (a.dim, b.dim)}
    settings |= {name: (value, b.settings[name]) for name, value in a.settings.items()}
    return {name: list(pair) for name, pair in settings.items() if pair[0] != pair[1]}


def _common_planes(a: Content, b: Content) -> list[str]:
    """Returns the names of the planes that are compared: all, if both have the same ones; else the embedding."""
    kinds = [
        [(plane["name"], plane["type"], plane["elements"]) for plane in each.facts()["metadata"]] for each in (a, b)
    ]
    if a.slots != b.slots or sorted(kinds[0]) != sorted(kinds[1]):
        return ["embedding"]
    return ["embedding", *a.slots, *sorted(name for name, _, _ in kinds[0])]


def _digests(content: Content, *, slots: bool) -> tuple[Keys, npt.NDArray[np.uint64]]:
    with bar(0, f"read {content.name}") as progress:

        def blocks() -> Iterator[Block]:
            for block in content.blocks(slots=slots):
                progress.update(len(block.keys))
                yield block

        return comparison.digests(blocks())


def _without(keys: Keys, at: npt.NDArray[np.intp]) -> Keys:
    others = np.ones(len(keys), np.bool_)
    others[at] = False
    return keys[others]


def _largest(a: Content, b: Content, different: Keys, planes: list[str]) -> dict[str, Any] | None:
    """Returns the largest difference of a float32 value, with its key and plane; None if there is none.

    A difference with a value that is not finite is infinite, which `difference` None stands for.
    """
    floats = [plane for plane in planes if plane == "embedding" or plane in a.slots]
    if not len(different):
        return None
    largest: tuple[float, int, str] | None = None
    values: npt.NDArray[np.float32] | None = None
    known = np.zeros(len(different), np.bool_)  # a live table may have lost a row since the first pass
    with tempfile.TemporaryFile() as file:
        for at, rows in _rows_at(a, different, floats):
            joined = np.concatenate(rows, 1)
            if values is None:
                values = _space(file, len(different), joined.shape[1])
            values[at], known[at] = joined, True
        for at, rows in _rows_at(b, different, floats):
            if values is None:
                break
            begin, at_known = 0, known[at]
            for name, plane in zip(floats, rows, strict=True):
                of_a, of_b = values[at, begin : begin + plane.shape[1]], plane
                begin += plane.shape[1]
                gaps = np.where(at_known, _gaps(of_a, of_b), 0.0)
                most = int(gaps.argmax())
                if gaps[most] > (0.0 if largest is None else largest[0]):
                    largest = (float(gaps[most]), int(different[at[most]]), name)
        del values
    if largest is None:
        return None
    difference, key, name = largest
    return {"key": key, "plane": name, "difference": difference if np.isfinite(difference) else None}


def _rows_at(
    content: Content, keys: Keys, floats: list[str]
) -> Iterator[tuple[npt.NDArray[np.intp], list[npt.NDArray[np.float32]]]]:
    """Yields places in `keys`, which are sorted, and the planes `floats` of these rows."""
    n_slots = len(floats) - 1
    for block in content.blocks(slots=n_slots > 0):
        at = np.minimum(np.searchsorted(keys, block.keys), len(keys) - 1)
        here = keys[at] == block.keys
        if here.any():
            yield at[here], [block.rows[here], *(slot[here] for slot in block.slots[:n_slots])]


def _space(file: IO[bytes], rows: int, width: int) -> npt.NDArray[np.float32]:
    """Returns float32[rows, width], in memory if it is small, else in a temporary file."""
    if rows * width * 4 <= _MEMORY_BYTES:
        return np.empty((rows, width), np.float32)
    return np.memmap(file, np.float32, "w+", shape=(rows, width))


def _gaps(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Returns the largest difference of each row: float64[n]. Values that are both not a number are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    largest: npt.NDArray[np.float64] = np.where(same, 0.0, np.where(np.isnan(gaps), np.inf, gaps)).max(1)
    return largest
