"""What a schedule is to the training step: when dense gradients travel, and when they are applied."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.rings import dense_ring

if TYPE_CHECKING:
    from tf_sparse_ps.rings.sparse_step import SparseStep


class Schedule(abc.ABC):
    """What a user chooses: options, checked, without state. Equal ones have equal `repr`."""

    @abc.abstractmethod
    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """Raises ValueError, with the reason, if a wrapped Keras optimizer or the job cannot have this schedule."""

    @abc.abstractmethod
    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """Begins to work for an optimizer, while its first step is traced. Eager, on all ranks.

        Args:
          optimizer: The wrapped Keras optimizer, built.
          collectives: Of this process.
          name: What this optimizer's operations' names begin with, the same on all ranks.
        """

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Its options, serializable."""


class ScheduleState:
    """A schedule at work for one optimizer. This one is the synchronous schedule's; others change what they must.

    Attributes:
      delays: Steps are made by `step`; otherwise by `average` and `apply`.
      delays_tables: With `delays`: `step` makes that of the tables, too.
    """

    delays = False
    delays_tables = False

    def __init__(self, optimizer: Any, collectives: Collectives, name: str) -> None:
        """See `Schedule.start`."""
        self._optimizer, self._collectives, self._name = optimizer, collectives, name

    def average(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[Any], weight: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The weighted mean of a step's dense gradients over all ranks. In a graph, or eagerly.

        Args:
          gradients: Floating tensors of known shapes, the same list on all ranks.
          variables: Whose they are.
          weight: Of this rank, from `rank_weight.allowed`.

        Returns:
          As `dense_ring.average`.
        """
        return dense_ring.average(gradients, self._collectives, f"{self._name}.dense", weight)

    def in_flight(self) -> list[tf.Tensor]:
        """What comes out of this step's collectives and is in nothing that `average` returned."""
        return []

    def apply(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Lets the wrapped optimizer apply reduced gradients (None: none), and count the step."""
        if any(gradient is not None for gradient in gradients):
            _keras.apply_optimizer(self._optimizer, list(gradients), list(variables))
        else:
            self._optimizer.iterations.assign_add(1)

    def step(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        rate: tf.Tensor,
        weight: tf.Tensor,
        sparse: SparseStep | None,
    ) -> None:
        """Makes a step, where `delays` is set. In a graph, or eagerly.

        Args:
          gradients: Floating tensors of known shapes, this rank's own.
          variables: Whose they are.
          rate: Learning rate.
          weight: Of this rank, from `rank_weight.allowed`.
          sparse: The step of the tables that is to be delayed, if there is one.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """Makes every rank's weights and the wrapped optimizer's variables equal and complete. Eager, on all ranks."""

    def outstanding(self) -> bool:
        """Whether `drain` has something to do. Eager; the same on all ranks that have made the same steps."""
        return False

    def report(self) -> dict[str, Any]:
        """See `DistributedOptimizer.schedule_report`."""
        return {}

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`: nothing, where ranks do not part."""
