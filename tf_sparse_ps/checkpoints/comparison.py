"""Compares two checkpoints. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.checkpoints import array_file, manifest
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.table.arrays import checksum
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block


def compare(old: StoredCheckpoint, new: StoredCheckpoint) -> dict[str, Any]:
    """Compares rows, slots, metadata and dense variables. Rows are compared by a checksum of 64 bits.

    Args:
      old, new: The checkpoints, with what they build on.

    Returns:
      JSON: `equal`; `old` and `new`, with name and step; `tables`, by name, the numbers of rows that are `equal`,
      `changed`, `added` and `removed`, or `only_in`, "old" or "new"; likewise the lines of sketches, whose names end in
      " (counts)"; `variables`, the names of dense ones that are
      `changed`, or `only_in_old` and `only_in_new`.
    """
    tables: dict[str, Any] = {}
    numbers = [_numbers(each) for each in (old, new)]
    for name in dict.fromkeys([*numbers[0], *numbers[1]]):
        if name not in numbers[0] or name not in numbers[1]:
            tables[name] = {"only_in": "old" if name in numbers[0] else "new"}
            continue
        old_digests, new_digests = (
            _digests(StoredRows(checkpoint, by_name[name]), name)
            for checkpoint, by_name in zip((old, new), numbers, strict=True)
        )
        tables[name] = _compare_rows(old_digests, new_digests)
    variables = compare_variables(old, new)
    rows_equal = all(
        "only_in" not in counts and not counts["changed"] and not counts["added"] and not counts["removed"]
        for counts in tables.values()
    )
    return {
        "equal": rows_equal and not any(variables.values()),
        "old": {"name": old.path.name, "step": old.manifest.step},
        "new": {"name": new.path.name, "step": new.manifest.step},
        "tables": tables,
        "variables": variables,
    }


def _numbers(checkpoint: StoredCheckpoint) -> dict[str, int]:
    """Returns the places of tables and sketches by their names."""
    content = checkpoint.manifest
    names = [str(table["name"]) for table in content.row_tables]
    sketches = [f"{names[table['sketch_of']]} (counts)" for table in content.tables[len(names) :]]
    return {name: number for number, name in enumerate([*names, *sketches])}


_Digests = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]


def _digests(rows: StoredRows, name: str) -> _Digests:
    with bar(rows.at_most, f"read {name}") as progress:

        def blocks() -> Iterator[Block]:
            for block in rows.blocks():
                progress.update(len(block.keys))
                yield block

        return digests(blocks())


def digests(blocks: Iterable[Block]) -> _Digests:
    """Returns the keys of a table, ascending, and for each a checksum of its row, slots and metadata."""
    keys: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    sums: list[npt.NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for block in blocks:
        keys.append(block.keys)
        sums.append(_sums(block))
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys)
    return all_keys[order], np.concatenate(sums)[order]


def _sums(block: Block) -> npt.NDArray[np.uint64]:
    planes = (block.rows, *block.slots, *(plane for _, plane in sorted(block.metadata.items())))
    words = np.concatenate([_words(plane) for plane in planes], 1).astype(np.uint64)
    # Odd multipliers, the same ones for each checkpoint.
    weights = np.random.default_rng(1).integers(0, 1 << 63, words.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
    sums: npt.NDArray[np.uint64] = (words * weights).sum(1, dtype=np.uint64)
    return sums


def _words(plane: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Returns the bytes of each row, [n, elements], as uint32[n, words], with zeros at the end."""
    row_bytes = plane.itemsize * int(np.prod(plane.shape[1:]))
    rows = np.ascontiguousarray(plane).view(np.uint8).reshape(len(plane), row_bytes)
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, -row_bytes % 4)))).view(np.uint32)


def _compare_rows(old: _Digests, new: _Digests) -> dict[str, int]:
    _, at_old, at_new = np.intersect1d(old[0], new[0], assume_unique=True, return_indices=True)
    equal = int((old[1][at_old] == new[1][at_new]).sum())
    return {
        "equal": equal,
        "changed": len(at_old) - equal,
        "added": len(new[0]) - len(at_new),
        "removed": len(old[0]) - len(at_old),
    }


def compare_variables(old: StoredCheckpoint, new: StoredCheckpoint) -> dict[str, list[str]]:
    """Compares dense variables by their order: Keras numbers the names in each process from the beginning.

    Returns:
      The names of the variables that are `changed`, `only_in_old` and `only_in_new`.
    """
    names = [variable_names(checkpoint.manifest.variables) for checkpoint in (old, new)]
    sums = [_variable_sums(checkpoint.path, checkpoint.manifest.variables) for checkpoint in (old, new)]
    n_common = min(map(len, names))
    return {
        "changed": [names[1][i] for i in range(n_common) if sums[0][i] != sums[1][i]],
        "only_in_old": names[0][n_common:],
        "only_in_new": names[1][n_common:],
    }


def _variable_sums(folder: Path, facts: tuple[dict[str, Any], ...]) -> dict[int, tuple[str, tuple[int, ...], str]]:
    _, arrays = array_file.read(folder / manifest.VARIABLES)
    return {
        number: (str(facts[number]["dtype"]), array.shape, checksum(np.atleast_1d(array))) for number, array in arrays
    }


def variable_names(facts: tuple[dict[str, Any], ...]) -> list[str]:
    """Returns a unique name for each dense variable: its own, with a number where several have it."""
    counts: dict[str, int] = {}
    names = []
    for variable in facts:
        name = str(variable["name"])
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return names
