"""Gradients of delayed steps that travel while the next steps compute. `delayed_state` has the steps themselves.

A message carries a local step. Its result carries the sums over the ranks, too. The tables' gradients travel in the
message, and their step is made on the way.
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

# The numbers of empty messages, with `late_after_s`: this rank was late; and: it is at the end of a cycle, and sends
# no more until all ranks are there.
_EMPTY, _CLOSING = -1, -2


class ReducedStep(NamedTuple):
    """The result of a local step. It travels flat, in this order; the tables' tensors follow.

    Attributes:
      number: The number of the local step, int64; `_EMPTY` or `_CLOSING` if this rank sent none.
      rate: The learning rate of the local step.
      weight: This rank's weight.
      local_gradients: This rank's gradient of each variable.
      local_steps: What `Rule.local` returned.
      sums: float32[n + 3 + h]: sums over the ranks of weight times gradients, of weight, of weight times learning rate,
        of closing ranks, and, with `late_after_s`, of weight times the tables' hyperparameters.
    """

    number: tf.Tensor
    rate: tf.Tensor
    weight: tf.Tensor
    local_gradients: list[tf.Tensor]
    local_steps: list[tf.Tensor]
    sums: tf.Tensor


class InFlightGradients:
    """Sends the local steps of one optimizer and receives their results.

    Attributes:
      rule: The update rule of the dense variables.
      sparse: The first step's step of the tables, the pattern of all later ones. None: tables are not delayed.
      specs: Types and shapes of a result, as a `ReducedStep`.
    """

    def __init__(
        self,
        options: DelayedOptions,
        rule: delayed_rules.Rule,
        sparse: SparseStep | None,
        collectives: Collectives,
        name: str,
    ) -> None:
        """Starts the threads. Eager.

        Args:
          options: The options of the schedule.
          rule: As the attribute.
          sparse: As the attribute.
          collectives: The rank's collectives.
          name: The beginning of the operations' names.
        """
        self.rule, self.sparse = rule, sparse
        self._collectives, self._name, self._size = collectives, name, rule.size
        self._reproducible, self._leaves_out = options.reproducible, options.late_after_s is not None
        self._committed = 0 if sparse is None else int(sparse.job.step)
        self._zero = _keras.local_variable(0, "int64", "delayed_zero")
        hyper = sum(sparse.hyper_sizes()) if sparse is not None and self._leaves_out else 0
        scalar, sums = tf.TensorSpec([], tf.float32), tf.TensorSpec([rule.size + 3 + hyper], tf.float32)
        gradients = [tf.TensorSpec(variable.shape, tf.float32) for variable in rule.variables]
        steps = gradients if rule.keeps_steps else []
        self.specs = ReducedStep(tf.TensorSpec([], tf.int64), scalar, scalar, gradients, steps, sums)
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
        local_gradients: Sequence[tf.Tensor],
        local_steps: Sequence[tf.Tensor],
        sparse: SparseStep | None,
    ) -> tf.Operation | None:
        """Sends a local step; arguments as in `ReducedStep`. Returns the operation in a graph, and None eagerly."""
        tables = [] if sparse is None else sparse.tensors()
        return self._threads.put([number, rate, weight, *local_gradients, *local_steps, *tables])

    def close(self) -> None:
        """Tells the other ranks that this one is at the end of a cycle."""
        self._threads.put(self._without_step(closing=True))

    def waiting(self) -> tf.Tensor:
        """Returns the number of results that can be received without a wait, int32 scalar."""
        return self._threads.waiting()

    def receive(self) -> ReducedStep:
        """Waits for the next result and returns it.

        If the tables' gradients were only reduced on the way (`reproducible`), the tables' step is made here.
        """
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
        """Waits until all ranks receive this result: a slow rank must not see in the table what follows."""
        if job.size == len(job.leaders):  # one rank per node
            return []
        return self._collectives.allreduce([tf.cast(number, tf.float32)], f"{self._name}.delayed.meet", average=False)

    def weights(self, result: ReducedStep) -> tf.Tensor:
        """Returns the sum of the ranks' weights in a result; 0 if no rank sent a gradient."""
        return result.sums[self._size]

    def is_last(self, result: ReducedStep) -> tf.Tensor:
        """Returns whether all ranks are closing, so that the cycle has no more results."""
        return result.sums[self._size + 2] >= float(self._collectives.size)

    # --- in the threads ---

    def _in_order(self, message: list[tf.Tensor]) -> list[tf.Tensor]:
        """Makes the step of the tables, before the dense gradients go: Horovod sends one after the other anyway.

        With `reproducible` it only reduces the tables' gradients.
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
            return [tf.identity(tensor) for tensor in dense]

    def _carry(self, message: list[tf.Tensor], channel: int) -> list[tf.Tensor]:
        """Adds up the ranks' gradients. Messages may overtake each other here."""
        dense, tables = message[: self._dense - 1], message[self._dense - 1 :]
        number, rate, weight, *_ = dense
        gradients = dense[3 : 3 + len(self.specs.local_gradients)]
        tail = [[weight, weight * rate, tf.cast(tf.equal(number, _CLOSING), tf.float32)]]
        if self.sparse is not None and self._leaves_out:
            tail += [weight * hyper for hyper in self.sparse.of(tables).update.hyper]
        weighted = _ops.weighted_concat(gradients, weight, tf.concat(tail, axis=0))
        (sums,) = self._collectives.allreduce([weighted], f"{self._name}.delayed.{channel}", average=False)
        if self.sparse is None or not self._leaves_out:
            return [*dense, sums, *tables]
        # There is one channel, so this handles one message at a time, too.
        step = self._with_mean_hyper(self.sparse.of(tables), self._result([*dense, sums]))
        with tf.control_dependencies([sums]):
            number = step.number()
            published = step.wait(step.check(number, step.apply(number)))
        with tf.control_dependencies(published):
            return [tf.identity(tensor) for tensor in [*dense, sums]]

    def _with_mean_hyper(self, step: SparseStep, result: ReducedStep) -> SparseStep:
        """Gives the step the mean hyperparameters of the ranks that were in time.

        All leaders must use the same ones, and a leader may have been late.
        """
        weights = self.weights(result)
        sums = tf.split(result.sums[self._size + 3 :], step.hyper_sizes())
        means = [rank_weight.mean(total, weights) for total in sums]
        return step.with_hyper(
            [tf.where(weights > 0.0, mean, hyper) for mean, hyper in zip(means, step.update.hyper, strict=True)]
        )

    # --- without a local step ---

    def _without_step(self, *, closing: bool) -> list[tf.Tensor]:
        """Makes an empty message.

        It is made of a variable that is 0: TensorFlow would fold constants, and the all-reduce of them, too.
        """
        zero = self._zero.read_value()
        message = [tf.fill([size or 0 for size in spec.shape], tf.cast(zero, spec.dtype)) for spec in self._message]
        message[0] += _CLOSING if closing else _EMPTY
        return message

    def _outcome(self, received: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """See `EmptyMessages.outcome`."""
        result = self._result(received)
        last = self.is_last(result)
        return tf.equal(result.number, _CLOSING) & ~last, last | tf.equal(self.weights(result), 0.0)
