"""`RankWeight`: the weight w_r of a rank in the mean of gradients, the sum of w_r g_r divided by the sum of w_r.

The weight travels with the gradients, in the same all-reduce. If all weights are 1, the result is bit-identical to the
plain mean: products with 1 are exact, and the divisor is the number of ranks. A rank with weight 0 contributes zeros,
whatever its gradients are (the mean loss of an empty batch is 0 / 0), and no key of any table. If all weights are 0,
the mean is 0, not NaN.

No op that may fail comes before a collective. Such an op is stateful, and a function runs stateful ops one by one.
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
        """Makes a weight of 1 for all steps."""
        with tf.init_scope(), tf.device("/CPU:0"):
            self.variable = tf.Variable(1.0, trainable=False, name="rank_weight")
            self._until = tf.Variable(_ALWAYS, dtype=tf.int64, trainable=False, name="rank_weight_until")
        self._leave_out = False

    def only_until(self, iterations: int | None) -> None:
        """Sets the number of updates after which steps have weight 0, whatever `variable` is. None: no limit."""
        self._until.assign(_ALWAYS if iterations is None else iterations)

    def shift(self, steps: int) -> None:
        """Adjusts `only_until` after the number of updates was changed by `steps` without training."""
        for until in _keras.local_variables(self._until):
            until.assign(tf.where(until == _ALWAYS, until, until + steps))

    def leave_out_next(self) -> None:
        """Sets weight 0 for the current eager step."""
        self._leave_out = True

    def take_next_in(self) -> None:
        """Cancels `leave_out_next` when a step begins, because an exception may have ended the previous step."""
        self._leave_out = False

    def now(self, iterations: Any) -> tf.Tensor:
        """Returns the weight of the step after so many updates, a float32 scalar. NaN: it is not allowed."""
        if self._leave_out:
            self._leave_out = False
            return tf.zeros([])
        return tf.where(tf.cast(iterations, tf.int64) < self._until, allowed(self.variable), 0.0)


def allowed(weight: Any) -> tf.Tensor:
    """Converts a weight to a float32 scalar. NaN if it is negative or not finite, so that every rank's sum shows it."""
    weight = tf.reshape(tf.cast(tf.convert_to_tensor(weight), tf.float32), [])
    return tf.where(tf.math.is_finite(weight) & (weight >= 0.0), weight, float("nan"))


def mean(total: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Divides a weighted sum by the sum of weights. Zeros if that is 0 or is not finite, which `check` reports."""
    weights = tf.where(tf.math.is_finite(weights), weights, 0.0)
    return tf.math.divide_no_nan(total, tf.cast(weights, total.dtype))


def check(weights: list[tf.Tensor], rank_weight: tf.Tensor, of_tape: tf.Tensor | None) -> None:
    """Checks the weights of a step. Call it after the collectives, because later ops of a graph wait for it.

    Args:
      weights: The sums over ranks of `allowed` weights, float32 scalars.
      rank_weight: This rank's weight.
      of_tape: The weight with which a `DistributedGradientTape` has averaged gradients of the step, if any.

    Raises:
      tf.errors.InvalidArgumentError: A rank's weight is not allowed (on all ranks, unless `weights` is empty); or the
        tape had another weight (on this rank). A graph raises it when it runs.
    """
    tf.debugging.Assert(
        tf.math.is_finite(tf.add_n([*weights, rank_weight])),
        [
            "every rank's weight in the dense mean (DistributedOptimizer.rank_weight, or weight= of "
            "DistributedGradientTape) must be finite and at least 0, and so must the sum of the weights. The weight of "
            "this rank (nan: it is wrong):",
            rank_weight,
        ],
    )
    if of_tape is not None:
        tf.debugging.Assert(
            tf.equal(of_tape, rank_weight),
            [
                "DistributedGradientTape has averaged with another weight than the optimizer's. Give the tape "
                "weight=optimizer.rank_weight. The weights of the tape and of the optimizer:",
                of_tape,
                rank_weight,
            ],
        )


def weighted(gradient: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns `weight * gradient`: exact zeros if the weight is 0, even for NaN and inf."""
    return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))


def kept(gradients: list[SparseGradient], weight: tf.Tensor) -> list[SparseGradient]:
    """Returns the sparse gradients, or gradients without keys if the weight is 0."""
    if not gradients:
        return gradients
    # The op runs on the host and takes rows there. Rows on a device stay there, and are cut to the number of keys.
    on_host = [grad.rows if grad.device is None else tf.zeros([tf.size(grad.keys), 0]) for grad in gradients]
    keys, rows = _ops.keep_if(weight, [grad.keys for grad in gradients], on_host)
    result = []
    for i, grad in enumerate(gradients):
        with grad.on_device():
            kept_rows = rows[i] if grad.device is None else grad.rows[: tf.size(keys[i])]
        result.append(dataclasses.replace(grad, keys=keys[i], rows=kept_rows))
    return result


def average_sparse(
    gradients: list[SparseGradient],
    collectives: Collectives,
    name: str,
    weight: tf.Tensor,
    agreement: Agreement | None = None,
) -> tuple[list[SparseGradient], list[tf.Tensor]]:
    """Returns the weighted mean over all ranks of sparse gradients of replicated weights. It makes one all-gather.

    Args:
      gradients: The gradients, the same list on all ranks.
      collectives: The rank's collectives.
      name: The name of the operation.
      weight: This rank's weight, from `allowed`.
      agreement: See `dense_mean.average`.

    Returns:
      One gradient per key that a rank with weight > 0 has, on every rank; and the sum of weights, for `check`, unless
      `gradients` is empty.
    """
    if not gradients:
        return [], []
    sent = kept(gradients, weight)
    if collectives.size == 1:
        return sparse_reducer.sum_replicated(sent, collectives, name), [weight]
    # The weight travels as one more gradient, of one row.
    sent = [dataclasses.replace(grad, rows=weighted(grad.rows, weight)) for grad in sent]
    row = tf.reshape(weight, [1, 1])
    if agreement is not None:
        row = tf.concat([row, agreement.tail[None]], 1)
    sent.append(SparseGradient(tf.zeros([1], tf.int64), row))
    *sums, last = sparse_reducer.sum_replicated(sent, collectives, name)
    weights = last.rows[0, 0]
    if agreement is not None:
        agreement.take(last.rows[0, 1:])
    return [dataclasses.replace(grad, rows=mean(grad.rows, weights)) for grad in sums], [weights]
