"""Groups with tables for the tests of the ops, and other processes that use them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from fork_server import ForkedProcess, run_forked, start_forked

from tf_sparse_ps import _ops

GROUP_UUID = "c" * 32


def apply_step(
    step: tf.Tensor | int,
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    hyper: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Applies one step to T tables of one group, publishes it, and returns it. Arguments: see `_ops.make_step`."""
    return _ops.lib.tsps_apply(step, paths, uuids, keys, grads, hyper, _ops.NOBODY)


@dataclasses.dataclass
class Table:
    """A table, and a dense copy of its first rows."""

    path: tf.Tensor
    uuid: tf.Tensor
    dim: int
    anchor: tf.Variable  # float32[0, dim]

    def rows(self, keys: Sequence[int]) -> np.ndarray:
        """Returns float32[n, dim], by a lookup of this table alone."""
        ids = tf.constant(keys, tf.int64)
        return _ops.lookup([ids], [self.path], [self.uuid], [tf.zeros([0, self.dim])], [0]).rows[0].numpy()


class Group:
    """A group whose writer is this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tables: list[Table] = []
        _ops.create_group(path, GROUP_UUID)

    def table(self, dim: int, rows: int = 0, *, optimizer: str = "", key_limit: int = 0, name: str = "") -> Table:
        """Creates a table. `rows` > 0 assigns distinct values to keys 0 .. rows - 1."""
        ordinal = len(self.tables)
        path, uuid = f"{self.path}/{name or f't{ordinal}'}", f"{ordinal:032x}"
        _ops.create_table(
            path, uuid, dim=dim, key_limit=key_limit, initializer="uniform", initializer_args=(-1, 1), salt=ordinal
        )
        if optimizer:
            slots = {"sgd": 0, "adagrad": 1, "adam": 2, "rowwise_adagrad": 1}[optimizer]
            _ops.bind_optimizer(path, uuid, optimizer, [0.1] * slots)
        if rows:
            values = np.random.default_rng(ordinal).normal(size=(rows, dim)).astype(np.float32)
            _ops.assign(path, uuid, tf.range(rows, dtype=tf.int64), tf.constant(values))
        table = Table(tf.constant(path), tf.constant(uuid), dim, tf.Variable(tf.zeros([0, dim])))
        self.tables.append(table)
        return table

    @property
    def paths(self) -> list[tf.Tensor]:
        return [table.path for table in self.tables]

    @property
    def uuids(self) -> list[tf.Tensor]:
        return [table.uuid for table in self.tables]

    @property
    def anchors(self) -> list[tf.Variable]:
        return [table.anchor for table in self.tables]

    def lookup(self, ids: Sequence[tf.Tensor], table_of: Sequence[int]) -> _ops.Lookup:
        """Looks up all tables through their anchors."""
        return _ops.lookup(ids, self.paths, self.uuids, [tf.convert_to_tensor(a) for a in self.anchors], table_of)

    def pooled(self, ids, splits, weights, table_of, combiners) -> _ops.PooledLookup:
        """Makes a pooled lookup of all tables through their anchors."""
        carriers = [tf.convert_to_tensor(anchor) for anchor in self.anchors]
        return _ops.pooled_lookup(ids, splits, weights, self.paths, self.uuids, carriers, table_of, combiners)

    def apply(self, step: int, keys: Sequence[int], grad: float = 1.0, rate: float = 1.0) -> tf.Tensor:
        """Applies one SGD step to table 0."""
        table = self.tables[0]
        grads = tf.fill([len(keys), table.dim], grad)
        return apply_step(step, [table.path], [table.uuid], [tf.constant(keys, tf.int64)], [grads], [[rate]])


@contextlib.contextmanager
def child(code: str, **environment: str) -> Iterator[ForkedProcess]:
    """Runs `code` in another Python process, which is killed at the end. Its output can be read."""
    process = start_forked(code, **environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_child(code: str, timeout_s: float = 240, **environment: str) -> str:
    """Runs `code` in another Python process, which has imported TensorFlow. Returns its output; raises if it fails."""
    done = run_forked(code, timeout_s=timeout_s, **environment)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout
