"""`PlainRows`: a table as variables of plain TensorFlow, for SavedModels without custom ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps.errors import UnsupportedError

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding

# TensorFlow's tools copy a model's variables through protocol buffers, which end at 2 GiB.
MOST_BYTES = 2**31 - 2**20


class PlainRows(tf.Module):
    """The rows of a table in variables: sorted keys, their rows, and a row of zeros for all other keys."""

    def __init__(self, binding: TableBinding) -> None:
        """Reads the table.

        Args:
          binding: The table, which is not sharded.

        Raises:
          UnsupportedError: The rows take more than `MOST_BYTES`.
        """
        super().__init__(name="plain_rows")
        table, dim = binding.reader(), binding.config.dim
        limit = binding.config.key_limit
        n = limit or len(table)
        size = n * (4 * dim + 8)
        if size > MOST_BYTES:
            raise UnsupportedError(
                f"table {binding.config.name!r} has {n} rows, which take {size / 1e9:.1f} GB, and a SavedModel without "
                f"custom ops holds at most {MOST_BYTES / 1e9:.1f} GB of a table. Export it with custom ops"
            )
        keys = np.arange(limit, dtype=np.int64) if limit else np.sort(table.keys())
        rows = np.zeros([max(len(keys), 1) + 1, dim], np.float32)
        rows[: len(keys)] = table.lookup(keys)
        if not len(keys):
            keys = np.zeros(1, np.int64)  # its row is zeros, too
        self.keys = tf.Variable(keys, trainable=False, name="keys")
        self.rows = tf.Variable(rows, trainable=False, name="rows")

    def look_up(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids, int64 of any shape: float32[*ids.shape, dim]."""
        flat = tf.reshape(ids, [-1])
        keys = self.keys.read_value()
        n = tf.size(keys)
        at = tf.minimum(tf.searchsorted(keys, flat), n - 1)
        found = tf.equal(tf.gather(keys, at), flat)
        rows = tf.gather(self.rows, tf.where(found, at, n))
        result: Any = tf.reshape(rows, tf.concat([tf.shape(ids), [self.rows.shape[1]]], 0))
        result.set_shape([*ids.shape, self.rows.shape[1]])
        return result
