"""`SparseStep`: one step of the tables, which a schedule may also store as tensors and make later."""

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
      reducers: The reducer for each placement of tables.
      name: The name of the operations.
      gradients: This rank's gradients, in the order of the tables' ordinals.
      update: The update of the tables.
      clipping: The clipping of reduced gradients, together with those of dense weights.
      loss_scale: The factor by which the loss was multiplied.
    """

    job: Job
    reducers: Mapping[str, SparseReducer]
    name: str
    gradients: list[SparseGradient]
    update: Update
    clipping: clipping_lib.Clipping = clipping_lib.NONE
    loss_scale: float = 1.0

    def number(self) -> tf.Tensor:
        """Returns the number of the next step, int64."""
        return _ops.next_step(self.job.group_path, tf.identity(self.job.step))

    def reduce(self, number: tf.Tensor) -> list[SparseGradient]:
        """Reduces the gradients of all tables. See `SparseReducer.reduce`."""
        members = self._members()
        if len(members) == 1:
            return self._reducer.reduce(self.gradients, self.name, number)
        reduced = list(self.gradients)
        for placement, indices in members.items():
            gradients = [self.gradients[i] for i in indices]
            results = self.reducers[placement].reduce(gradients, f"{self.name}.{placement}", number)
            for i, result in zip(indices, results, strict=True):
                reduced[i] = result
        return reduced

    def apply(self, number: tf.Tensor) -> tf.Tensor:
        """Reduces the gradients, and the leaders make the step. Returns the verdict. See `SparseReducer.apply`."""
        if len(self._members()) == 1:
            return self._reducer.apply(self.gradients, self.name, number, self.update)
        return self.apply_reduced(number, self.reduce(number))

    def apply_reduced(self, number: tf.Tensor, reduced: Sequence[SparseGradient]) -> tf.Tensor:
        """Makes one step of all tables, whatever their placement, of gradients that `reduce` returned. See `apply`."""
        return self._reducer.apply_reduced(reduced, self.name, number, self.update)

    def reduce_and_commit(self, dense: Sequence[DenseGradient], in_flight: Sequence[tf.Tensor]) -> tf.Tensor:
        """Reduces the gradients; the leaders write the step and all ranks commit to it.

        Args:
          dense: The reduced dense gradients of the step. With `clipping.global_norm` this method clips them, too.
          in_flight: Results of the step's other collectives.

        Returns:
          The number of the step, int64, once all ranks have committed to it.
        """
        # This pull runs while the model computes, because it waits only for earlier lookups. TensorFlow runs stateful
        # ops in the order of the program, so it must come before ops that need gradients.
        ahead = rows_ahead.fetch(self.job, self.update.tables, self.name)
        # Ops that read tables must come before a leader writes the step and waits for votes. Otherwise both would wait.
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
        results = [gradient.result for gradient in dense if gradient.result is not None]
        contributed = [result.values if isinstance(result, tf.IndexedSlices) else result for result in results]
        return self.check(number, verdict, [*contributed, *in_flight, *ahead])

    def _prepared_after(self, done: Sequence[tf.Tensor], objections: list[tf.Tensor]) -> SparseStep:
        """Returns the step such that its tables are written after `done`.

        The hyperparameters carry the dependency, because TensorFlow does not order the loop of a reducer after `done`.
        """
        if not done:
            return self
        with tf.control_dependencies(done):
            hyper = [tf.identity(values) for values in self.update.hyper]
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
            unscaled = [unscale(grad.result, self.loss_scale) for grad in dense if grad.result is not None]
            paths = [table.path for table in self.update.tables]
            factors = clipping_lib.table_factors(
                clipping,
                squares,
                [paths.index(path) for path in paths],
                unscaled,
                self.job.collectives,
                f"{self.name}.clip",
            )
            for t, gradient in enumerate(reduced):
                with gradient.on_device():
                    rows[t] *= factors[t]
            if clipping.global_norm is not None:
                # The wrapped optimizer clips these results again, which does not change them.
                for grad in dense:
                    grad.result = None if grad.result is None else clipping_lib.scale(grad.result, factors[0])
        return [dataclasses.replace(gradient, rows=rows[t]) for t, gradient in enumerate(reduced)]

    def check(self, number: tf.Tensor, verdict: tf.Tensor, after: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        """Returns `number` if the step is made. Otherwise raises the error of the verdict, on every rank.

        An error ends the graph of a rank at any op. The error must come after the rank has contributed to everything
        that other ranks wait for, so that all ranks begin the next step in the same state.

        Args:
          number: The number of the step.
          verdict: The verdict that `apply` or `apply_reduced` returned.
          after: Results of the step's other collectives.
        """
        with tf.control_dependencies(after):
            committed = _ops.check_step(number, verdict)
        # The step is recorded before the update of dense weights, which may fail or be interrupted.
        with tf.control_dependencies([committed]):
            recorded = self.job.step.assign(committed, read_value=False)
        with tf.control_dependencies([] if recorded is None else [recorded]):
            return rows_ahead.step_made(committed, self.update.tables)

    def wait(self, done: tf.Tensor) -> list[tf.Operation]:
        """Waits until the node's tables show the step that `check` returned.

        Returns:
          In a graph: the last op of the wait. Eagerly: nothing.
        """
        with tf.control_dependencies([done]):
            published = _ops.wait_step(self.job.group_path, done, self.job.timeout_s)
        # The variable is assigned again, so that ops that read it later run after the wait (row_source.py).
        recorded = self.job.step.assign(published, read_value=False)
        return [] if recorded is None else [recorded]

    @property
    def _reducer(self) -> SparseReducer:
        """The reducer of the tables. If there are several reducers, the first one makes the step of all tables."""
        return self.reducers[next(iter(self._members()))]

    def _members(self) -> dict[str, list[int]]:
        """Returns the positions of the tables of each placement."""
        members: dict[str, list[int]] = {}
        for i, table in enumerate(self.update.tables):
            members.setdefault(table.placement, []).append(i)
        return members

    # --- steps as tensors ---

    def tensors(self) -> list[tf.Tensor]:
        """Returns the tensors that differ between steps.

        Their keys are unique, because functions that are traced separately may differ in whether keys repeat.
        """
        gradients = unique(self.gradients)
        keys, rows = [grad.keys for grad in gradients], [grad.rows for grad in gradients]
        return [*keys, *rows, *self.update.hyper, self.update.optimizer]

    def specs(self) -> list[tf.TensorSpec]:
        """Returns the specs of `tensors`."""
        dims = [int(gradient.rows.shape[1]) for gradient in self.gradients]
        keys = [tf.TensorSpec([None], tf.int64) for _ in dims]
        rows = [tf.TensorSpec([None, dim], tf.float32) for dim in dims]
        hyper = [tf.TensorSpec(values.shape, values.dtype) for values in self.update.hyper]
        return [*keys, *rows, *hyper, tf.TensorSpec([2], tf.int64)]

    def of(self, tensors: Sequence[tf.Tensor]) -> SparseStep:
        """Returns the step that was stored as `tensors`."""
        n = len(self.gradients)
        step = self.with_gradients([SparseGradient(tensors[t], tensors[n + t]) for t in range(n)])
        update = dataclasses.replace(self.update, hyper=list(tensors[2 * n : -1]), optimizer=tensors[-1])
        return dataclasses.replace(step, update=update)

    def hyper_sizes(self) -> list[int]:
        """Returns the number of hyperparameters of each table's rule."""
        return [int(values.shape[0]) for values in self.update.hyper]

    def with_hyper(self, hyper: Sequence[tf.Tensor]) -> SparseStep:
        """Returns the step with other hyperparameters."""
        return dataclasses.replace(self, update=dataclasses.replace(self.update, hyper=list(hyper)))

    def with_gradients(self, gradients: list[SparseGradient]) -> SparseStep:
        """Returns the step with other gradients."""
        return dataclasses.replace(self, gradients=gradients)
