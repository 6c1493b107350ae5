"""What rows go through between the host and a device.

TensorFlow copies a tensor to where an op needs it, so there is nothing to do. `SlowLink` takes longer, to measure what
looking ahead hides where no such device is.
"""

from __future__ import annotations

import tensorflow as tf

from tf_sparse_ps import _ops


class Link:
    """The one that there is."""

    def down(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows on their way to the device."""
        return rows

    def up(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows, or gradients, on their way to the host."""
        return rows


class SlowLink(Link):
    """Each direction takes a time per byte; what goes in one direction at once is one after another."""

    def __init__(self, bytes_per_second: float) -> None:
        """Both directions have this rate."""
        self._rate = bytes_per_second

    def down(self, rows: tf.Tensor) -> tf.Tensor:
        """See `Link`."""
        return self._go(rows, "down")

    def up(self, rows: tf.Tensor) -> tf.Tensor:
        """See `Link`."""
        return self._go(rows, "up")

    def _go(self, rows: tf.Tensor, direction: str) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return _ops.slow_copy(rows, self._rate, direction)
