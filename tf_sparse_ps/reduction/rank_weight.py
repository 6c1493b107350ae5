"""A rank's weight in the mean of dense gradients: sum over ranks of w_r g_r, divided by the sum of w_r.

The weight travels with the gradients, in the same all-reduce. With all weights 1 nothing changes by a bit: products
with 1 are exact, and the divisor is the number of ranks. A rank of weight 0 contributes zeros, whatever its gradients
are (the mean loss of an empty batch is 0 / 0), and no key of any table. All weights 0: zeros, no NaN.

No op that may fail stands in front of a ring: it would be stateful, and a function runs those one after another.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import sparse_reducer
from tf_sparse_ps.reduction.agreement import Agreement
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient

_ALWAYS = tf.int64.max


class RankWeight:
    """The weight of this rank's steps, as variables that a step reads when it runs.

    Attributes:
      variable: float32 scalar, 1 unless assigned.
    """

    def __init__(self) -> None:
        """Weight 1, from the first step on."""
        with tf.init_scope(), tf.device("/CPU:0"):
            self.variable = tf.Variable(1.0, trainable=False, name="rank_weight")
            self._until = tf.Variable(_ALWAYS, dtype=tf.int64, trainable=False, name="rank_weight_until")
        self._leave_out = False

    def only_until(self, iterations: int | None) -> None:
        """Steps from this number of updates on have weight 0, whatever `variable` is; None: no such number."""
        self._until.assign(_ALWAYS if iterations is None else iterations)

    def shift(self, steps: int) -> None:
        """The number of updates has changed by so many other than by training: `only_until` means the same steps."""
        for until in _keras.local_variables(self._until):
            until.assign(tf.where(until == _ALWAYS, until, until + steps))

    def leave_out_next(self) -> None:
        """Weight 0 in the step that is being made, eagerly."""
        self._leave_out = True

    def take_next_in(self) -> None:
        """A step begins: what `leave_out_next` has said was about one that an exception has ended."""
        self._leave_out = False

    def now(self, iterations: Any) -> tf.Tensor:
        """The weight of the step after so many updates: float32 scalar. NaN stands for one that is not allowed."""
        if self._leave_out:
            self._leave_out = False
            return tf.zeros([])
        return tf.where(tf.cast(iterations, tf.int64) < self._until, allowed(self.variable), 0.0)


def allowed(weight: Any) -> tf.Tensor:
    """A weight as float32 scalar, NaN when it is negative or not finite: so every rank's sum of weights shows it."""
    weight = tf.reshape(tf.cast(tf.convert_to_tensor(weight), tf.float32), [])
    return tf.where(tf.math.is_finite(weight) & (weight >= 0.0), weight, float("nan"))


def mean(total: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """A weighted sum divided by the sum of weights; zeros where that is 0, or where `check` finds it not allowed."""
    weights = tf.where(tf.math.is_finite(weights), weights, 0.0)
    return tf.math.divide_no_nan(total, tf.cast(weights, total.dtype))


def check(weights: list[tf.Tensor], own: tf.Tensor, of_tape: tf.Tensor | None) -> None:
    """Looks at a step's weights. To be called after the rings: what follows in a graph waits for it.

    Args:
      weights: float32 scalars, sums over ranks of `allowed` weights.
      own: This rank's weight.
      of_tape: With which a `DistributedGradientTape` has averaged gradients of the step, if one has.

    Raises:
      tf.errors.InvalidArgumentError: When the step runs. On all ranks, if something was summed: a rank's weight is not
        allowed. On this rank: the tape had another weight.
    """
    tf.debugging.Assert(
        tf.math.is_finite(tf.add_n([*weights, own])),
        [
            "every rank's weight in the dense mean (DistributedOptimizer.rank_weight, or weight= of "
            "DistributedGradientTape) must be finite and at least 0, and so must their sum. This rank's (nan: it is "
            "the wrong one):",
            own,
        ],
    )
    if of_tape is not None:
        tf.debugging.Assert(
            tf.equal(of_tape, own),
            [
                "DistributedGradientTape has averaged with another weight than the optimizer's; give it "
                "weight=optimizer.rank_weight. The tape's and the optimizer's:",
                of_tape,
                own,
            ],
        )


def weighted(gradient: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """`weight * gradient`; exact zeros where the weight is 0, even of NaN and inf."""
    return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))


def kept(gradients: list[SparseGradient], weight: tf.Tensor) -> list[SparseGradient]:
    """Sparse gradients as they are; without any key where the weight is 0."""
    if not gradients:
        return gradients
    # The op is the host's, and takes rows there: those on a device stay, and follow their keys.
    on_host = [one.rows if one.device is None else tf.zeros([tf.size(one.keys), 0]) for one in gradients]
    keys, rows = _ops.keep_if(weight, [one.keys for one in gradients], on_host)
    result = []
    for i, one in enumerate(gradients):
        with one.on_device():
            kept_rows = rows[i] if one.device is None else one.rows[: tf.size(keys[i])]
        result.append(dataclasses.replace(one, keys=keys[i], rows=kept_rows))
    return result


def average_sparse(
    gradients: list[SparseGradient],
    collectives: Collectives,
    name: str,
    weight: tf.Tensor,
    agreement: Agreement | None = None,
) -> tuple[list[SparseGradient], list[tf.Tensor]]:
    """The weighted mean over all ranks of sparse gradients of replicated weights, in one all-gather.

    Args:
      gradients: The same list on all ranks.
      collectives: The rank's collectives.
      name: Of the operation.
      weight: Of this rank, from `allowed`.
      agreement: As `dense_mean.average` has it.

    Returns:
      On every rank one gradient per key that a rank of weight > 0 has; the sum of weights, for `check`, if there was
      a gradient.
    """
    if not gradients:
        return [], []
    sent = kept(gradients, weight)
    if collectives.size == 1:
        return sparse_reducer.sum_replicated(sent, collectives, name), [weight]
    # Weights travel as the gradient of one more weight, of one row, which is 1 on every rank.
    sent = [dataclasses.replace(one, rows=weighted(one.rows, weight)) for one in sent]
    row = tf.reshape(weight, [1, 1])
    if agreement is not None:
        row = tf.concat([row, agreement.tail[None]], 1)
    sent.append(SparseGradient(tf.zeros([1], tf.int64), row))
    *sums, last = sparse_reducer.sum_replicated(sent, collectives, name)
    weights = last.rows[0, 0]
    if agreement is not None:
        agreement.take(last.rows[0, 1:])
    return [dataclasses.replace(one, rows=mean(one.rows, weights)) for one in sums], [weights]
