"""Compares the rows of two tables.

The first pass reads both, and keeps a key and a checksum of 64 bits for each row. Only rows whose checksums differ are
read again, in parts of bounded memory, to find the largest difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.checkpoints import comparison
from tf_sparse_ps.cli.contents import Content
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block

_EXAMPLES = 5
_PART_BYTES = 256 << 20


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
    widths = a.dim * len(floats) * 4 + 8
    part, largest = max(1, _PART_BYTES // widths), None
    for begin in range(0, len(different), part):
        keys = different[begin : begin + part]
        values_a, values_b = (_values(content, keys, slots=len(floats) > 1) for content in (a, b))
        for name in floats:
            with np.errstate(invalid="ignore", over="ignore"):
                gaps = np.abs(values_a[name].astype(np.float64) - values_b[name].astype(np.float64))
            same = (values_a[name] == values_b[name]) | (np.isnan(values_a[name]) & np.isnan(values_b[name]))
            of_rows = np.where(same, 0.0, np.where(np.isnan(gaps), np.inf, gaps)).max(1)
            at = int(of_rows.argmax())
            if of_rows[at] > 0 and (largest is None or of_rows[at] > largest[0]):
                largest = (float(of_rows[at]), int(keys[at]), name)
    if largest is None:
        return None
    difference, key, name = largest
    return {"key": key, "plane": name, "difference": difference if np.isfinite(difference) else None}


def _values(content: Content, keys: Keys, *, slots: bool) -> dict[str, npt.NDArray[np.float32]]:
    entries = content.entries(keys, slots=slots)
    return {"embedding": entries.rows, **entries.planes}
