"""The step of the tables: what a rank has for it, in a form that can also be put aside and made later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.reduction import clipping as clipping_lib
from tf_sparse_ps.reduction import rows_ahead
from tf_sparse_ps.reduction.agreement import SAME_PROGRAM
from tf_sparse_ps.reduction.gradients import DenseGradient, unscale
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient, Update, unique
from tf_sparse_ps.reduction.sparse_reducer import SparseReducer


@dataclasses.dataclass(frozen=True)
class SparseStep:
    """One step of the tables, on this rank.

    Attributes:
      job: The rank's job.
      reducers: What reduces, by the tables' placement.
      name: Of the operations.
      gradients: This rank's, in the order of the tables' ordinals.
      update: What is made of reduced ones.
      clipping: Of reduced ones, with those of dense weights.
      loss_scale: What the loss was multiplied by.
    """

    job: Job
    reducers: Mapping[str, SparseReducer]
    name: str
    gradients: list[SparseGradient]
    update: Update
    clipping: clipping_lib.Clipping = clipping_lib.NONE
    loss_scale: float = 1.0

    def number(self) -> tf.Tensor:
        """The number of the step that is made next, int64."""
        return _ops.next_step(self.job.group_path, tf.identity(self.job.step))

    def reduce(self, number: tf.Tensor) -> list[SparseGradient]:
        """See `SparseReducer.reduce`."""
        members = self._members()
        if len(members) == 1:
            return self._reducer.reduce(self.gradients, self.name, number)
        reduced = list(self.gradients)
        for placement, indices in members.items():
            own = [self.gradients[i] for i in indices]
            found = self.reducers[placement].reduce(own, f"{self.name}.{placement}", number)
            for i, one in zip(indices, found, strict=True):
                reduced[i] = one
        return reduced

    def apply(self, number: tf.Tensor) -> tf.Tensor:
        """Reduces, and the leaders make the step: the verdict on it (see `SparseReducer.apply`)."""
        if len(self._members()) == 1:
            return self._reducer.apply(self.gradients, self.name, number, self.update)
        return self.apply_reduced(number, self.reduce(number))

    def apply_reduced(self, number: tf.Tensor, reduced: Sequence[SparseGradient]) -> tf.Tensor:
        """`apply`, of what `reduce` returned: one step of all tables, whatever their placement."""
        return self._reducer.apply_reduced(reduced, self.name, number, self.update)

    def reduce_and_commit(self, dense: Sequence[DenseGradient], in_flight: Sequence[tf.Tensor]) -> tf.Tensor:
        """Reduces the gradients; the leaders write the step and all ranks commit to it.

        Args:
          dense: The reduced dense gradients of the step. With `clipping.global_norm` this method clips them, too.
          in_flight: Results of the step's other collectives.

        Returns:
          The number of the step, int64, once all ranks have committed to it.
        """
        # Beside computing: it waits for nothing but the look-ups before it. So it comes before what needs gradients:
        # TensorFlow keeps ops that have a state in their order.
        ahead = rows_ahead.fetch(self.job, self.update.tables, self.name)
        # What reads tables comes before a leader has written the step and waits for the others' votes, or both wait.
        objections = rows_ahead.objections(self.job, self.update.tables, self.gradients)
        with tf.control_dependencies(objections):
            number = self.number()
        agreement = self.update.agreement
        if agreement is not None:
            agreement.numbers(["the number of the step"], tf.reshape(number, [1]), SAME_PROGRAM)
        step = self._prepared_after(ahead, objections)
        plain = self.clipping == clipping_lib.NONE and self.loss_scale == 1.0
        verdict = step.apply(number) if plain else step.apply_reduced(number, step._clipped(number, dense))
        if agreement is not None:
            verdict = agreement.explained(verdict)
        results = [one.result for one in dense if one.result is not None]
        taken_part = [one.values if isinstance(one, tf.IndexedSlices) else one for one in results]
        return self.check(number, verdict, [*taken_part, *in_flight, *ahead])

    def _prepared_after(self, done: Sequence[tf.Tensor], objections: list[tf.Tensor]) -> SparseStep:
        """The same, whose tables are written only then. TensorFlow does not order the loop of a reducer after that."""
        if not done:
            return self
        with tf.control_dependencies(done):
            hyper = [tf.identity(one) for one in self.update.hyper]
        return dataclasses.replace(self, update=dataclasses.replace(self.update, hyper=hyper, objections=objections))

    def _clipped(self, number: tf.Tensor, dense: Sequence[DenseGradient]) -> list[SparseGradient]:
        clipping, reduced = self.clipping, self.reduce(number)
        rows, squares = [], []
        for gradient in reduced:
            with gradient.on_device():
                rows.append(unscale(gradient.rows, self.loss_scale))
                if clipping.value is not None:
                    rows[-1] = tf.clip_by_value(rows[-1], -clipping.value, clipping.value)
                if clipping.needs_norms and self.job.collectives.rank == 0:
                    squares.append(tf.reduce_sum(tf.square(rows[-1])))
        if clipping.needs_norms:
            others = [unscale(one.result, self.loss_scale) for one in dense if one.result is not None]
            paths = [table.path for table in self.update.tables]
            factors = clipping_lib.table_factors(
                clipping,
                squares,
                [paths.index(path) for path in paths],
                others,
                self.job.collectives,
                f"{self.name}.clip",
            )
            for t, gradient in enumerate(reduced):
                with gradient.on_device():
                    rows[t] *= factors[t]
            if clipping.global_norm is not None:
                # The wrapped optimizer clips what it gets once more, which finds nothing left to clip.
                for one in dense:
                    one.result = None if one.result is None else clipping_lib.scale(one.result, factors[0])
        return [dataclasses.replace(one, rows=rows[t]) for t, one in enumerate(reduced)]

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
            committed = _ops.check_step(number, verdict)
        # Noted here, and not after the update of dense weights, which may fail or be interrupted.
        with tf.control_dependencies([committed]):
            noted = self.job.step.assign(committed, read_value=False)
        with tf.control_dependencies([] if noted is None else [noted]):
            return rows_ahead.step_made(committed, self.update.tables)

    def wait(self, done: tf.Tensor) -> list[tf.Operation]:
        """Waits until the node's tables have the step that `check` returned.

        Returns:
          What follows the wait, in a graph; nothing eagerly.
        """
        with tf.control_dependencies([done]):
            published = _ops.wait_step(self.job.group_path, done, self.job.timeout_s)
        # Once more: what reads the variable after this comes after the wait (row_source.py).
        noted = self.job.step.assign(published, read_value=False)
        return [] if noted is None else [noted]

    @property
    def _reducer(self) -> SparseReducer:
        """The reducer of the tables. If there are several, the first one makes the step from what all have reduced."""
        return self.reducers[next(iter(self._members()))]

    def _members(self) -> dict[str, list[int]]:
        """Which tables each placement has."""
        found: dict[str, list[int]] = {}
        for i, table in enumerate(self.update.tables):
            found.setdefault(table.placement, []).append(i)
        return found

    # --- put aside ---

    def tensors(self) -> list[tf.Tensor]:
        """What differs between steps. No key repeats in it: functions traced apart may differ in whether some can."""
        own = unique(self.gradients)
        keys, rows = [one.keys for one in own], [one.rows for one in own]
        return [*keys, *rows, *self.update.hyper, self.update.optimizer]

    def specs(self) -> list[tf.TensorSpec]:
        """Of `tensors`."""
        dims = [int(one.rows.shape[1]) for one in self.gradients]
        keys = [tf.TensorSpec([None], tf.int64) for _ in dims]
        rows = [tf.TensorSpec([None, dim], tf.float32) for dim in dims]
        hyper = [tf.TensorSpec(one.shape, one.dtype) for one in self.update.hyper]
        return [*keys, *rows, *hyper, tf.TensorSpec([2], tf.int64)]

    def of(self, tensors: Sequence[tf.Tensor]) -> SparseStep:
        """The step that was put aside as `tensors`."""
        n = len(self.gradients)
        step = self.with_gradients([SparseGradient(tensors[t], tensors[n + t]) for t in range(n)])
        update = dataclasses.replace(self.update, hyper=list(tensors[2 * n : -1]), optimizer=tensors[-1])
        return dataclasses.replace(step, update=update)

    def hyper_sizes(self) -> list[int]:
        """How many hyperparameters each table's rule has."""
        return [int(one.shape[0]) for one in self.update.hyper]

    def with_hyper(self, hyper: Sequence[tf.Tensor]) -> SparseStep:
        """The step with other hyperparameters."""
        return dataclasses.replace(self, update=dataclasses.replace(self.update, hyper=list(hyper)))

    def with_gradients(self, gradients: list[SparseGradient]) -> SparseStep:
        """The step with other gradients."""
        return dataclasses.replace(self, gradients=gradients)
