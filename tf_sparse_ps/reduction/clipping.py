"""Clips the reduced gradients of tables, and those of dense weights where tables and dense weights share one norm.

The wrapped Keras optimizer clips reduced dense gradients itself, but does not see the gradients of tables. Rank 0
computes the factors that depend on a norm, and broadcasts them: the last bit of a norm may depend on the number of
threads, and nodes must stay bit-identical.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps.collectives import Collectives


@dataclasses.dataclass(frozen=True)
class Clipping:
    """The clipping options of a Keras optimizer. At most one of them is set.

    Attributes:
      norm: `clipnorm`, the limit for the norm of each table's reduced gradient.
      value: `clipvalue`, the limit for each element.
      global_norm: `global_clipnorm`, the limit for the norm of all dense and sparse gradients of the step together.
    """

    norm: float | None = None
    value: float | None = None
    global_norm: float | None = None

    @classmethod
    def of(cls, optimizer: Any) -> Clipping:
        """Reads the options of a Keras optimizer. Keras treats 0 as not set."""
        names = ("clipnorm", "clipvalue", "global_clipnorm")
        return cls(*(getattr(optimizer, name, None) or None for name in names))

    @property
    def needs_norms(self) -> bool:
        """Whether the step's factors depend on norms."""
        return self.norm is not None or self.global_norm is not None


NONE = Clipping()


def table_factors(
    clipping: Clipping,
    squares: Sequence[tf.Tensor],
    table_of: Sequence[int],
    dense: Sequence[Any],
    collectives: Collectives,
    name: str,
) -> tf.Tensor:
    """Returns the factor for each table's reduced gradient. With `global_norm` it is also that of dense gradients.

    Args:
      clipping: The clipping options; `needs_norms` is True.
      squares: T of float32, the sum of the squares of each reduced gradient. Only rank 0, a leader, uses them.
      table_of: T numbers, equal for gradients of the same table, which has one gradient per device.
      dense: Reduced dense gradients: tensors, or `IndexedSlices` with unique indices.
      collectives: The rank's collectives.
      name: The name of the operation.

    Returns:
      float32[T], the same bits on all ranks.
    """
    n = len(table_of)
    factors = tf.zeros([n], tf.float32)
    if collectives.rank == 0:
        limit = clipping.norm or clipping.global_norm or 0.0
        if clipping.norm is not None:
            sums = squares
            if len(set(table_of)) < n:
                sums = [tf.add_n([squares[j] for j in range(n) if table_of[j] == of]) for of in table_of]
            norms = tf.sqrt(tf.stack(sums))
        else:
            values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in dense]
            dense_squares = [tf.reduce_sum(tf.square(tf.cast(value, tf.float32))) for value in values]
            norms = tf.fill([n], tf.sqrt(tf.add_n([*squares, *dense_squares])))
        factors = limit / tf.maximum(norms, limit)
    factors.set_shape([n])
    return collectives.broadcast(factors, 0, name)


def scale(gradient: Any, factor: tf.Tensor) -> Any:
    """Multiplies a dense gradient or `IndexedSlices` by a float32 scalar."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
