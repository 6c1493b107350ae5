"""Clipping of reduced gradients, tables and dense weights together.

The wrapped Keras optimizer clips the dense gradients that it is given, which are reduced ones; here is what it cannot
see. Factors that depend on a norm are computed on rank 0 and sent to all: a norm's last bit may depend on
the number of threads, and nodes must stay bit-identical.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps.collectives import Collectives


@dataclasses.dataclass(frozen=True)
class Clipping:
    """What a Keras optimizer was told to clip: at most one is set.

    Attributes:
      norm: `clipnorm`, of each table's reduced gradient.
      value: `clipvalue`, of each element.
      global_norm: `global_clipnorm`, of all dense and sparse gradients of the step together.
    """

    norm: float | None = None
    value: float | None = None
    global_norm: float | None = None

    @classmethod
    def of(cls, optimizer: Any) -> Clipping:
        """Reads a Keras optimizer. Keras treats 0 as not set."""
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
    """What to multiply each table's reduced gradient by; under `global_norm` also every dense gradient.

    Args:
      clipping: With `needs_norms`.
      squares: T of float32: the sum of the squares of each reduced gradient. Used on rank 0, which leads its node.
      table_of: T numbers, the same for the gradients of one table: each device of a table has its own.
      dense: Reduced dense gradients; tensors or `IndexedSlices` with unique indices.
      collectives: The rank's collectives.
      name: Of the operation.

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
            values = [one.values if isinstance(one, tf.IndexedSlices) else one for one in dense]
            others = [tf.reduce_sum(tf.square(tf.cast(one, tf.float32))) for one in values]
            norms = tf.fill([n], tf.sqrt(tf.add_n([*squares, *others])))
        factors = limit / tf.maximum(norms, limit)
    factors.set_shape([n])
    return collectives.broadcast(factors, 0, name)


def scale(gradient: Any, factor: tf.Tensor) -> Any:
    """Multiplies a dense gradient or `IndexedSlices` by a float32 scalar."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
