"""What travels for a delayed step, and what is done with it beside the steps: the other half of `delayed_state`.

A message carries a local step; its result, the sums over the ranks as well. Tables' gradients travel in it, and their
step is made on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import rank_weight
from tf_sparse_ps.schedules import delayed_rules
from tf_sparse_ps.schedules.communication_threads import CommunicationThreads, EmptyMessages
from tf_sparse_ps.schedules.delayed_options import DelayedOptions

if TYPE_CHECKING:
    from tf_sparse_ps.job.job import Job
    from tf_sparse_ps.reduction.sparse_step import SparseStep

# In place of a local step's number. Where late ranks are not waited for: this rank was late; and: it is at the end of a
# cycle, and sends no more until all ranks are there.
_EMPTY, _CLOSING = -1, -2


class ReducedStep(NamedTuple):
    """What comes back of a local step. It travels flat, in this order; the tables' tensors follow.

    Attributes:
      number: int64, of the local step; `_EMPTY` or `_CLOSING` when there is none.
      rate: Its learning rate.
      weight: This rank's.
      own: This rank's gradients.
      share: What `Rule.local` returned.
      sums: float32[n + 3 + h]: sums over the ranks of weight times gradients, of weight, of weight times learning rate,
        of closing ranks, and, where late ranks are not waited for, of weight times the tables' hyperparameters.
    """

    number: tf.Tensor
    rate: tf.Tensor
    weight: tf.Tensor
    own: list[tf.Tensor]
    share: list[tf.Tensor]
    sums: tf.Tensor


class InFlightGradients:
    """Sends the local steps of one optimizer, and receives what comes of them.

    Attributes:
      specs: Types and shapes, a `ReducedStep`.
      sparse: The first step's step of the tables, the pattern of the others; None: they are not delayed.
    """

    def __init__(
        self,
        options: DelayedOptions,
        rule: delayed_rules.Rule,
        sparse: SparseStep | None,
        collectives: Collectives,
        name: str,
    ) -> None:
        """Starts to work. Eager.

        Args:
          options: The schedule.
          rule: Of the dense variables.
          sparse: See there.
          collectives: The rank's collectives.
          name: What the operations' names begin with.
        """
        self.sparse = sparse
        self._collectives, self._name, self._size = collectives, name, rule.size
        self._reproducible, self._leaves_out = options.reproducible, options.late_after_s is not None
        self._committed = 0 if sparse is None else int(sparse.job.step)
        self._zero = _keras.local_variable(0, "int64", "delayed_zero")
        hyper = sum(sparse.hyper_sizes()) if sparse is not None and self._leaves_out else 0
        scalar, sums = tf.TensorSpec([], tf.float32), tf.TensorSpec([rule.size + 3 + hyper], tf.float32)
        own = [tf.TensorSpec(variable.shape, tf.float32) for variable in rule.variables]
        share = own if rule.has_share else []
        self.specs = ReducedStep(tf.TensorSpec([], tf.int64), scalar, scalar, own, share, sums)
        self._dense = len(tf.nest.flatten(self.specs))
        tables = [] if sparse is None else sparse.specs()
        self._message = [*tf.nest.flatten(self.specs)[:-1], *tables]  # without sums
        empty_messages = None
        if options.late_after_s is not None:
            empty_messages = EmptyMessages(
                options.late_after_s, lambda closing: self._without_step(closing=closing), self._outcome
            )
        result = [*tf.nest.flatten(self.specs), *(tables if options.reproducible else [])]
        self._threads = CommunicationThreads(
            self._message, result, options.staleness + 1, self._in_order, self._carry, empty_messages
        )
        self._threads.start()

    # --- in a step ---

    def send(
        self,
        number: tf.Tensor,
        rate: tf.Tensor,
        weight: tf.Tensor,
        gradients: Sequence[tf.Tensor],
        share: Sequence[tf.Tensor],
        sparse: SparseStep | None,
    ) -> tf.Operation | None:
        """Puts a local step on its way; arguments as in `ReducedStep`. See `CommunicationThreads.put`."""
        tables = [] if sparse is None else sparse.tensors()
        return self._threads.put([number, rate, weight, *gradients, *share, *tables])

    def close(self) -> None:
        """Tells the other ranks that this one has come to the end of a cycle."""
        self._threads.put(self._without_step(closing=True))

    def waiting(self) -> tf.Tensor:
        """How many results can be received without a wait."""
        return self._threads.waiting()

    def receive(self) -> ReducedStep:
        """The next result; waits for it. The tables' step, if it was only reduced beside the steps, is made here."""
        received = self._threads.take()
        if self.sparse is not None and self._reproducible:
            step = self.sparse.of(received[self._dense :])
            with tf.control_dependencies(self._meet(step.job, received[0])):
                number = step.number()
                verdict = step.apply_reduced(number, step.gradients)
            step.wait(step.check(number, verdict))
        return self._result(received)

    def _result(self, received: Sequence[tf.Tensor]) -> ReducedStep:
        return tf.nest.pack_sequence_as(self.specs, received[: self._dense])

    def _meet(self, job: Job, number: tf.Tensor) -> list[tf.Tensor]:
        """Waits for all ranks to receive this result: one that is behind must not see in the table what follows."""
        if job.size == len(job.leaders):  # one rank per node
            return []
        return self._collectives.allreduce([tf.cast(number, tf.float32)], f"{self._name}.delayed.meet", average=False)

    def weights(self, result: ReducedStep) -> tf.Tensor:
        """The sum of the ranks' weights in it, 0: nobody had anything."""
        return result.sums[self._size]

    def is_last(self, result: ReducedStep) -> tf.Tensor:
        """Whether all ranks are closing: the cycle has no more."""
        return result.sums[self._size + 2] >= float(self._collectives.size)

    # --- beside the steps ---

    def _in_order(self, message: list[tf.Tensor]) -> list[tf.Tensor]:
        """Makes the step of the tables, before the dense gradients go: Horovod sends one after the other anyway.

        To be reproducible it does no more than reduce for it.
        """
        dense, tables = message[: self._dense - 1], message[self._dense - 1 :]
        if self.sparse is None or self._leaves_out:
            return message
        step = self.sparse.of(tables)
        if self._reproducible:
            reduced = step.reduce(self._committed + dense[0] + 1)
            return [*dense, *step.with_gradients(reduced).tensors()]
        number = step.number()
        with tf.control_dependencies(step.wait(step.check(number, step.apply(number)))):
            return [tf.identity(one) for one in dense]

    def _carry(self, message: list[tf.Tensor], channel: int) -> list[tf.Tensor]:
        """Adds up the ranks' gradients. Messages may overtake each other here."""
        dense, tables = message[: self._dense - 1], message[self._dense - 1 :]
        number, rate, weight, *_ = dense
        gradients = dense[3 : 3 + len(self.specs.own)]
        tail = [[weight, weight * rate, tf.cast(tf.equal(number, _CLOSING), tf.float32)]]
        if self.sparse is not None and self._leaves_out:
            tail += [weight * one for one in self.sparse.of(tables).update.hyper]
        sent = _ops.weighted_concat(gradients, weight, tf.concat(tail, axis=0))
        (sums,) = self._collectives.allreduce([sent], f"{self._name}.delayed.{channel}", average=False)
        if self.sparse is None or not self._leaves_out:
            return [*dense, sums, *tables]
        # The only channel: one message at a time, here too.
        step = self._with_mean_hyper(self.sparse.of(tables), self._result([*dense, sums]))
        with tf.control_dependencies([sums]):
            number = step.number()
            done = step.wait(step.check(number, step.apply(number)))
        with tf.control_dependencies(done):
            return [tf.identity(one) for one in [*dense, sums]]

    def _with_mean_hyper(self, step: SparseStep, result: ReducedStep) -> SparseStep:
        """Hyperparameters of the ranks that were in time: a leader may not be one, and all must use the same."""
        weights = self.weights(result)
        sums = tf.split(result.sums[self._size + 3 :], step.hyper_sizes())
        means = [rank_weight.mean(one, weights) for one in sums]
        return step.with_hyper(
            [tf.where(weights > 0.0, mean, own) for mean, own in zip(means, step.update.hyper, strict=True)]
        )

    # --- without a local step ---

    def _without_step(self, *, closing: bool) -> list[tf.Tensor]:
        """A message without one.

        Of a variable that is 0: TensorFlow would fold constants, and the all-reduce of them with it.
        """
        zero = self._zero.read_value()
        message = [tf.fill([size or 0 for size in spec.shape], tf.cast(zero, spec.dtype)) for spec in self._message]
        message[0] += _CLOSING if closing else _EMPTY
        return message

    def _outcome(self, received: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """See `EmptyMessages`."""
        result = self._result(received)
        last = self.is_last(result)
        return tf.equal(result.number, _CLOSING) & ~last, last | tf.equal(self.weights(result), 0.0)
