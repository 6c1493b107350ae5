"""The link between the host and a device, which measurements replace by a slow one (`benchmarks/slow_link.py`)."""

from __future__ import annotations

import tensorflow as tf


class Link:
    """The way of rows between the host and a device. TensorFlow copies them to the op that needs them."""

    def down(self, rows: tf.Tensor) -> tf.Tensor:
        """Passes rows on that go to the device."""
        return rows

    def up(self, rows: tf.Tensor) -> tf.Tensor:
        """Passes rows, or gradients, on that go to the host."""
        return rows
