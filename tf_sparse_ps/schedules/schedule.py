"""The interface between schedules and the training step.

A schedule decides when dense gradients travel between ranks, and when they are applied.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction.agreement import Agreement, MakeAgreement
from tf_sparse_ps.reduction.gradients import DenseGradient
from tf_sparse_ps.reduction.sparse_step import SparseStep


@dataclasses.dataclass(frozen=True)
class LocalStep:
    """This rank's part of one training step.

    Attributes:
      dense: The gradients of dense weights. A schedule writes their reduced values into them.
      tables: The step of the tables; None if no table has a gradient.
      rate: The learning rate of the wrapped optimizer, a scalar.
      weight: This rank's weight, a float32 scalar, from `rank_weight.allowed`.
      agreement: The facts that several ranks compare in a step without tables. None on one rank, and where the ranks
        compare them elsewhere.
    """

    dense: list[DenseGradient]
    tables: SparseStep | None
    rate: tf.Tensor
    weight: tf.Tensor
    agreement: Agreement | None = None

    def wait_until_published(self, step_numbers: Sequence[tf.Tensor]) -> None:
        """Waits until readers of the node's tables see the step whose number `ScheduleState.reduce` returned."""
        if self.tables is not None:
            for number in step_numbers:
                self.tables.wait(number)


class Schedule(abc.ABC):
    """The options that a user chooses: checked, and without state. Equal schedules have equal `repr`."""

    @property
    def refuses_tiered(self) -> str | None:
        """The reason why the schedule cannot train tables that are partly on disk; None if it can."""
        return None

    @property
    def refuses_eviction(self) -> str | None:
        """The reason why the schedule cannot train tables that evict rows; None if it can."""
        return None

    @property
    def refuses_admission(self) -> str | None:
        """The reason why the schedule cannot train tables that admit keys; None if it can."""
        return None

    @property
    def refuses_sharded(self) -> str | None:
        """The reason why the schedule cannot train tables that are spread over machines; None if it can."""
        return None

    @abc.abstractmethod
    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """Checks that the schedule works with a wrapped Keras optimizer and in this job.

        Raises:
          ValueError: It does not, with the reason.
        """

    def for_job(self, collectives: Collectives) -> Schedule:
        """Returns this schedule for the job that loads a saved model, without options that only fit another job."""
        return self

    @abc.abstractmethod
    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """Starts the schedule for an optimizer whose first step is being traced. Eager, on all ranks.

        Args:
          optimizer: The wrapped Keras optimizer, built.
          collectives: The rank's collectives.
          name: The beginning of the names of this optimizer's operations, the same on all ranks.
        """

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Returns the options, serializable."""


class ScheduleState(abc.ABC):
    """A schedule at work for one optimizer.

    A training step calls `reduce`, `update` and `LocalStep.wait_until_published`, in this order.

    Attributes:
      delays_tables: Whether the tables get the gradients of a step in a later one, from `update`.
      ranks_part: Whether the dense weights differ between ranks until the ranks meet.
      make_agreement: Makes the facts that the ranks compare when they meet. The training step sets it.
      dense_bytes: Bytes of dense gradients that one step hands to the all-reduce.
    """

    delays_tables = ranks_part = False
    make_agreement: MakeAgreement | None = None

    def __init__(self, optimizer: Any, collectives: Collectives, name: str) -> None:
        """Takes the arguments of `Schedule.start`."""
        self.dense_bytes = 0
        self._optimizer, self._collectives, self._name = optimizer, collectives, name

    @abc.abstractmethod
    def reduce(self, step: LocalStep) -> list[tf.Tensor]:
        """Reduces a step's gradients over the ranks and commits the step of its tables. In a graph, or eagerly.

        Returns:
          Scalars that must be computed before anything changes: the number of the tables' step, once all ranks have
          committed to it; or, in a step without tables, the number of updates before it, once the ranks agree. The list
          is empty if neither is needed. A refused step raises its error where these are computed.
        """

    @abc.abstractmethod
    def update(self, step: LocalStep) -> None:
        """Updates the dense weights, after `reduce`. In a graph, or eagerly."""

    @abc.abstractmethod
    def drain(self) -> None:
        """Makes every rank's weights and the wrapped optimizer's variables equal and complete. Eager, on all ranks."""

    @abc.abstractmethod
    def outstanding(self) -> bool:
        """Returns whether `drain` would change weights: the same on all ranks after the same steps. Eager."""

    def incomplete(self) -> bool:
        """Returns whether this rank lacks weights or slots of the job, which `drain` gives it. Eager."""
        return self.outstanding()

    @abc.abstractmethod
    def report(self) -> dict[str, Any]:
        """See `DistributedOptimizer.schedule_report`."""

    @abc.abstractmethod
    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`."""
