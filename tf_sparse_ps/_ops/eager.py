"""`eager_ops`: calls ops outside of graphs, and raises the store's exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.errors import StateError, from_tensorflow


@contextlib.contextmanager
def eager_ops(what: str) -> Iterator[Any]:
    """Yields the op library for eager calls, also while TensorFlow traces a graph. Its errors become `TableError`s.

    Args:
      what: The operation in progress, which starts the message of an error: "writing table <path>".

    Raises:
      StateError: The process does not execute eagerly.
    """
    with from_tensorflow(what), tf.init_scope():
        if not tf.executing_eagerly():
            raise StateError(f"{what}: tf_sparse_ps needs eager execution. Do not use tf.compat.v1 graphs")
        yield _ops
