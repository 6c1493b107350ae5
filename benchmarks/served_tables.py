"""Tables for the suites of serving: their files, and functions that look up rows in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps import _ops, _table
from tf_sparse_ps.serving import ServingTable
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import VersionManifest
from tf_sparse_ps.serving.version_builder import VersionBuilder
from tf_sparse_ps.table.scan import Block

_BLOCK = 1 << 16
_INITIALIZER = {"kind": "uniform", "a": -0.05, "b": 0.05, "seed": 1, "salt": 0}
_IDS = tf.TensorSpec([None], tf.int64)


class Rows:
    """Rows of keys, made as they are read."""

    step = 1
    erased = np.empty(0, np.int64)

    def __init__(self, keys: Any, dim: int) -> None:
        self._keys, self._dim = keys, dim

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Block]:
        draw = np.random.default_rng(0)
        for start in range(0, len(self._keys), _BLOCK):
            keys = self._keys[start : start + _BLOCK]
            yield Block(keys, draw.normal(0, 0.1, [len(keys), self._dim]).astype(np.float32), (), {})


def write(path: Path, rows: int, dim: int, stored: str, layers: int = 0) -> str:
    """Writes a version, unless it is there. Returns the file of its table in `assets`."""
    if not path.exists():
        facts = TableFacts("t", "a" * 32, dim, "float32", 0, _INITIALIZER, stored, hash_seed=7)
        with VersionBuilder(path, "benchmark") as builder:
            files = builder.new_table("t")
            files.add_base(facts, Rows(np.arange(rows), dim))
            for layer in range(layers):
                keys = np.random.default_rng(layer).choice(rows, rows // 100, replace=False)
                content = Rows(keys, dim)
                files.add_layer(facts, content)
            entry = files.finish("t", facts, step=1, marks=[], absent="initial")
            builder.finish(VersionManifest(id="0", step=1, tables=(entry,), variables=(), versions={}))
    asset = os.fspath(path / "assets/t")
    ServingTable.open(asset).verify()  # brings it into the page cache
    return asset


def write_older(path: Path, rows: int, dim: int) -> str:
    """Writes a table as older exports had it."""
    if not path.exists():
        writer = _table.ParameterFileWriter(
            path=os.fspath(path),
            dim=dim,
            n_rows=rows,
            key_limit=0,
            step=1,
            optimizer="none",
            slot_init=[],
            initializer=_INITIALIZER,
        )
        for block in Rows(np.arange(rows), dim):
            writer.append(block.keys, block.rows, [])
        writer.finish()
    return os.fspath(path)


def dense_gather(rows: int, dim: int) -> Callable[[Any], Any]:
    """Returns a function of ids that gathers rows of a dense matrix."""
    dense = tf.Variable(tf.zeros([rows, dim]))
    for number, block in enumerate(Rows(np.arange(rows), dim)):
        dense[number * _BLOCK : number * _BLOCK + len(block.keys)].assign(block.rows)  # without a copy of the matrix

    @tf.function(input_signature=[_IDS])
    def gather(ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(dense, ids)

    return gather


def look_up_in(path: str, dim: int) -> Callable[[Any], Any]:
    """Returns a function of ids that looks up rows in a file, by the op of loaded models."""
    carrier = tf.zeros([0, dim])

    @tf.function(input_signature=[_IDS])
    def look_up(ids: tf.Tensor) -> tf.Tensor:
        return _ops.read_rows([ids], [tf.constant(path)], [tf.constant("")], [carrier], [0])[0]

    return look_up
