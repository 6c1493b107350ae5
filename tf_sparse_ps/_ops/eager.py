"""Calls of ops outside of graphs, with the errors of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.errors import StateError, from_tensorflow


@contextlib.contextmanager
def eager_ops(what: str) -> Iterator[Any]:
    """The op library, to be called eagerly even while a graph is traced; its errors become `TableError`s."""
    with from_tensorflow(what), tf.init_scope():
        if not tf.executing_eagerly():
            raise StateError(f"{what}: tf_sparse_ps needs eager execution (no tf.compat.v1 graphs)")
        yield _ops
