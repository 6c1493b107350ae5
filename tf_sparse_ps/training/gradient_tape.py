"""A gradient tape for training loops written against Horovod's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction import gradients as gradients_lib
from tf_sparse_ps.reduction import rank_weight, step_order
from tf_sparse_ps.training import replicas


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`. Its `gradient` averages dense gradients over all ranks.

    It does not change gradients of tables: only `DistributedOptimizer` can apply them, and reduces them. The optimizer
    does not average again what the tape has averaged. If the program has changed a dense gradient in between, for
    example clipped it, the optimizer averages it again, which does not change it.

    ```python
    with tsps.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = ...
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))     # a tsps.DistributedOptimizer
    ```
    """

    def __init__(self, tape: tf.GradientTape, *, weight: Any = 1.0, collectives: str = "auto") -> None:
        """Wraps `tape`, which may have been used already.

        Args:
          tape: A plain `tf.GradientTape`.
          weight: The weight of this rank in the mean: a number, scalar tensor or variable. If the program assigns
            `optimizer.rank_weight`, pass it here, because applying the gradients with another weight is an error. If
            the weight is negative or not finite, all gradients are zeros, and applying them is an error.
          collectives: See `DistributedOptimizer`.

        Raises:
          ValueError: `tape` is not a plain `tf.GradientTape`.
        """
        if not isinstance(tape, tf.GradientTape) or (wrapper := collectives_lib.foreign_wrapper(tape)):
            raise ValueError(
                "DistributedGradientTape wraps a plain tf.GradientTape. Received: "
                f"{wrapper if isinstance(tape, tf.GradientTape) else tape!r}"
            )
        self._tape, self._weight = tape, weight
        self._collectives = collectives_lib.resolve(collectives)

    def __enter__(self) -> DistributedGradientTape:
        """Starts recording."""
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stops recording."""
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        """Returns the attribute of the wrapped tape, such as `watch`, `stop_recording` and `reset`."""
        return getattr(self._tape, name)

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """Returns the gradients as `tf.GradientTape.gradient` does, averaged over the ranks.

        Returns:
          The structure of `sources`. Gradients of dense sources that are `IndexedSlices` come back dense.
        """
        gradients = self._tape.gradient(target, sources, output_gradients=output_gradients, **options)
        flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        indices = [
            i
            for i, (source, gradient) in enumerate(zip(flat_sources, flat, strict=True))
            if gradient is not None and binding_of(source) is None
        ]
        dense = [tf.convert_to_tensor(flat[i]) for i in indices]
        with step_order.between_data():
            weight = rank_weight.allowed(self._weight)
            means, weights = replicas.average(dense, self._collectives, "tsps.tape", weight)
        for i, mean in zip(indices, means, strict=True):
            flat[i] = tf.identity(mean)
            gradients_lib.mark_averaged(flat[i], gradients_lib.Mean(weight, weights))
        return tf.nest.pack_sequence_as(sources, flat)
