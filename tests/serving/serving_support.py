"""Comparisons of served versions with the model that was exported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import tf_sparse_ps as tsps
from tf_sparse_ps.serving.version import Version


def must_equal(version: Path, model: Any, layer: Any) -> None:
    """Compares a version with the model: all rows, absent keys, the keys that it has, and the answers."""
    import tensorflow as tf

    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    asked = np.concatenate([keys, keys + 10**9, -1 - keys])
    table = tsps.ServingTable.open(version)
    np.testing.assert_array_equal(table.lookup(asked), reader.lookup(asked))
    np.testing.assert_array_equal(table.contains(asked), np.arange(len(asked)) < len(keys))
    found = np.concatenate([np.empty(0, np.int64), *table.key_parts()])
    np.testing.assert_array_equal(np.sort(found), keys)
    assert table.step == reader.step == Version(version).manifest.step
    ids = asked[: len(asked) // 2 * 2].reshape(-1, 2)
    served = tf.saved_model.load(os.fspath(version)).signatures["serving_default"]
    (answers,) = served(tf.constant(ids)).values()
    np.testing.assert_array_equal(answers, model(ids))


def files_of(version: Path) -> list[str]:
    """Returns the kinds of the files of the only table of a version, newest first."""
    return [Path(file.path).name.split("-")[0] for file in Version(version).tables[0].files]
