"""Reads samples of ids: npz, npy, csv and txt files, of one feature or several."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import keys
from tf_sparse_ps.errors import InvalidArgumentError

Ids = npt.NDArray[np.int64]
_KINDS = (".npz", ".npy", ".csv", ".txt")


def read(path: Path) -> dict[str, Ids]:
    """Returns the ids of each feature, int64 of one dimension, in the order of the file.

    - npz: an array for each feature, whose name is that of the feature. npy: one feature, "".
    - csv: the first line names the features, and each further line is a sample. Empty cells are left out.
    - txt: one feature, "". Ids are separated by blanks or lines.

    Ids are integers. Ids of csv, txt and arrays that are not integers are strings: their keys are fingerprints, as in
    `tsps.keys.fingerprint`.

    Raises:
      InvalidArgumentError: The file is of another kind, or has no ids.
      OSError: The file cannot be read.
    """
    kind = path.suffix.lower()
    if kind == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: _of_array(arrays[name], path) for name in arrays.files}
    elif kind == ".npy":
        found = {"": _of_array(np.load(path, allow_pickle=False), path)}
    elif kind == ".csv":
        found = _of_csv(path)
    elif kind == ".txt":
        found = {"": _of_words(path.read_text().split())}
    else:
        raise InvalidArgumentError(f"a sample must be a file {', '.join(_KINDS)}. Received: {path}")
    empty = [name for name, ids in found.items() if len(ids) < 2]
    if empty or not found:
        name = f" of {empty[0]!r}" if empty and empty[0] else ""
        raise InvalidArgumentError(f"{path} has fewer than two ids{name}. Give a sample of at least a few steps")
    return found


def of_tables(features: dict[str, Ids], tables: Sequence[str], where: str) -> dict[str, Ids]:
    """Returns the ids of each table that has a feature of its name. A file of one feature is for the only table.

    Raises:
      InvalidArgumentError: No table has the name of a feature.
    """
    if set(features) == {""} and len(tables) == 1:
        return {tables[0]: features[""]}
    for name in features:
        if name not in tables:
            feature = f"the feature {name!r}, and no table has this name" if name else "one feature, without a name"
            raise InvalidArgumentError(
                f"{where} has {feature}. Name features like tables ({', '.join(tables)}), or use --sample TABLE=FILE"
            )
    return features


def _of_array(array: npt.NDArray[np.generic], path: Path) -> Ids:
    flat = array.reshape(-1)
    if array.dtype.kind in "iu":
        return flat.astype(np.int64)
    if array.dtype.kind in "US":
        return keys.fingerprint(flat)
    raise InvalidArgumentError(f"{path} must have integers or strings. Received: {array.dtype}")


def _of_csv(path: Path) -> dict[str, Ids]:
    with path.open(newline="") as file:
        lines = csv.reader(file)
        names = [name.strip() for name in next(lines, [])]
        if len(set(names)) != len(names) or not names:
            raise InvalidArgumentError(
                f"the first line of {path} must have different names of features. Received: {names}"
            )
        columns: list[list[str]] = [[] for _ in names]
        for number, line in enumerate(lines, 2):
            if len(line) != len(names):
                raise InvalidArgumentError(
                    f"{path}: line {number} has {len(line)} cells, and {len(names)} are expected"
                )
            for column, cell in zip(columns, line, strict=True):
                if cell.strip():
                    column.append(cell.strip())
    return {name: _of_words(column) for name, column in zip(names, columns, strict=True)}


def _of_words(words: list[str]) -> Ids:
    try:
        return np.array([int(word) for word in words], np.int64)
    except (ValueError, OverflowError):
        return keys.fingerprint(words)
