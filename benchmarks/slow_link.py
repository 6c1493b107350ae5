"""A slow link between the host and a device, for machines where no device has its own link."""

from __future__ import annotations

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.cache.link import Link


class SlowLink(Link):
    """A link that takes a time per byte in each direction. Copies in the same direction run one after another."""

    def __init__(self, bytes_per_second: float) -> None:
        """Takes the rate of each direction."""
        self._rate = bytes_per_second

    def down(self, rows: tf.Tensor) -> tf.Tensor:
        """See `Link`."""
        return self._copy(rows, "down")

    def up(self, rows: tf.Tensor) -> tf.Tensor:
        """See `Link`."""
        return self._copy(rows, "up")

    def _copy(self, rows: tf.Tensor, direction: str) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return _ops.lib.tsps_slow_copy(rows, self._rate, direction)
