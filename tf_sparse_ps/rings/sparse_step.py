"""The step of the tables: what a rank has for it, in a form that can also be put aside and made later."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.rings.sparse_ring import SparseGradient, SparseRing, Update, unique


@dataclasses.dataclass(frozen=True)
class SparseStep:
    """One step of the tables, on this rank.

    Attributes:
      job: Of this process.
      ring: That reduces.
      name: Of the operations.
      gradients: This rank's, in the order of the tables' ordinals.
      update: What is made of reduced ones.
    """

    job: Job
    ring: SparseRing
    name: str
    gradients: list[SparseGradient]
    update: Update

    def number(self) -> tf.Tensor:
        """The number of the step that is made next, int64."""
        return tf.identity(self.job.step) + 1

    def reduce(self, number: tf.Tensor) -> list[SparseGradient]:
        """See `SparseRing.reduce`."""
        return self.ring.reduce(self.gradients, self.name, number)

    def apply(self, number: tf.Tensor) -> tf.Tensor:
        """See `SparseRing.apply`: the verdict on the step."""
        return self.ring.apply(self.gradients, self.name, number, self.update)

    def apply_reduced(self, number: tf.Tensor, reduced: Sequence[SparseGradient]) -> tf.Tensor:
        """`apply`, of what `reduce` returned."""
        return self.ring.apply_reduced(reduced, self.name, number, self.update)

    def check(self, number: tf.Tensor, verdict: tf.Tensor, after: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        """Returns `number` if the step is made; raises the verdict if it is not, on every rank.

        An error ends a rank's graph wherever it is. So that the next step finds all ranks in one place, it must not
        come before the rank has done its part of everything that others wait for.

        Args:
          number: Of the step.
          verdict: What `apply` or `apply_reduced` returned.
          after: What comes out of the step's other collectives.
        """
        with tf.control_dependencies(after):
            return _ops.check_step(number, verdict)

    def wait(self, done: tf.Tensor) -> list[tf.Operation]:
        """Waits until the node's tables have the step that `check` returned.

        Returns:
          What follows the wait, in a graph; nothing eagerly.
        """
        with tf.control_dependencies([done]):
            published = _ops.wait_step(self.job.group_path, done, self.job.timeout_s)
        noted = self.job.step.assign(published, read_value=False)
        return [] if noted is None else [noted]

    # --- put aside ---

    def tensors(self) -> list[tf.Tensor]:
        """What differs between steps. No key repeats in it: functions traced apart may differ in whether some can."""
        own = unique(self.gradients)
        keys, rows = [one.keys for one in own], [one.rows for one in own]
        return [*keys, *rows, *self.update.hyper]

    def specs(self) -> list[tf.TensorSpec]:
        """Of `tensors`."""
        dims = [int(one.rows.shape[1]) for one in self.gradients]
        keys = [tf.TensorSpec([None], tf.int64) for _ in dims]
        rows = [tf.TensorSpec([None, dim], tf.float32) for dim in dims]
        return [*keys, *rows, *(tf.TensorSpec(one.shape, one.dtype) for one in self.update.hyper)]

    def of(self, tensors: Sequence[tf.Tensor]) -> SparseStep:
        """The step that was put aside as `tensors`."""
        n = len(self.gradients)
        step = self.with_gradients([SparseGradient(tensors[t], tensors[n + t]) for t in range(n)])
        return step.with_hyper(tensors[2 * n :])

    def hyper_sizes(self) -> list[int]:
        """How many hyperparameters each table's rule has."""
        return [int(one.shape[0]) for one in self.update.hyper]

    def with_hyper(self, hyper: Sequence[tf.Tensor]) -> SparseStep:
        """The step with other hyperparameters."""
        return dataclasses.replace(self, update=dataclasses.replace(self.update, hyper=list(hyper)))

    def with_gradients(self, gradients: list[SparseGradient]) -> SparseStep:
        """The step with other gradients."""
        return dataclasses.replace(self, gradients=gradients)
