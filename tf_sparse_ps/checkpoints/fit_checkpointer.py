"""`FitCheckpointer`: a `Checkpointer` for `fit`, whose checkpoints also hold what `fit` and its callbacks have counted.

`tsps.callbacks.Checkpoint` makes one. Keras resets metrics when an epoch begins, and callbacks when training begins. So
`restore` reads their states, and they are given them when Keras has done that.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from tf_sparse_ps._compat import _keras_state
from tf_sparse_ps.checkpoints import variables
from tf_sparse_ps.checkpoints.callback_states import CallbackStates
from tf_sparse_ps.checkpoints.checkpointer import Checkpointer
from tf_sparse_ps.checkpoints.position import Position
from tf_sparse_ps.collectives import Collectives


class FitCheckpointer(Checkpointer):
    """Saves and restores a training job in `fit`."""

    def __init__(self, directory: str | os.PathLike[str], model: Any, position: Position, **options: Any) -> None:
        """Reads and writes nothing.

        Args:
          directory, options: As of `Checkpointer`.
          model: The compiled model.
          position: Where training is.
        """
        super().__init__(directory, model, model.optimizer, **options)
        self.position = self._state.position = position

    @property
    def ranks(self) -> Collectives:
        """The job's collectives."""
        return self._ranks

    def must_train(self, model: Any) -> None:
        """Checks that a further `fit` trains the same model, with the same optimizer.

        Raises:
          ValueError: It does not.
        """
        for name, saved, trained in (
            ("model", self._state.model, model),
            ("optimizer", self._state.optimizer, model.optimizer),
        ):
            if saved is not trained:
                raise ValueError(
                    f"this fit trains another {name} than the one before, whose checkpoints are in {self.directory}: "
                    "the Checkpoint callback would save the old one. Give it a callback, and a directory, of its own"
                    + (" (model.compile made a new optimizer)" if name == "optimizer" else "")
                )

    def carry(self, states: CallbackStates) -> None:
        """Adds the states of these callbacks to all later checkpoints. Every rank calls it."""
        self._state.callbacks = states

    @property
    def carries_states(self) -> bool:
        """Whether checkpoints hold the state of any callback."""
        return self._state.callbacks is not None and self._state.callbacks.any

    def restore_callbacks(self) -> bool:
        """Gives the callbacks and the learning rate their restored states, once. Every rank calls it after `restore`.

        Returns:
          Whether a callback had ended training on a rank.
        """
        states, restored = self._state.callbacks, self._restored
        assert states is not None
        assert restored is not None
        stored_states, restored.callback_states = restored.callback_states, None
        states.restore(stored_states, other_model=not restored.is_same_model)
        rate = _keras_state.learning_rate_variable(self._state.optimizer.inner_optimizer)
        if rate is not None and restored.learning_rate is not None:
            rate.assign(restored.learning_rate)
        return any(self._ranks.allgather_object(states.has_stopped, "tsps.checkpoint.stopped"))

    def restore_metrics(self, batch: Any) -> None:
        """Gives the model's metrics their restored values, once, if the model has the same metrics.

        Args:
          batch: `tf.TensorSpec`s of what the model is fitted to, for metrics that are not built yet. None: an epoch
            begins, and its metrics with it.
        """
        if self._restored is None:
            return
        stored, self._restored.metrics = self._restored.metrics, []
        if batch is None or not stored or self._give_metrics(stored):
            return
        _keras_state.build_metrics(self._state.model, batch)
        if not self._give_metrics(stored) and self._ranks.rank == 0:
            warnings.warn(
                f"metrics of epoch {self.position.epoch} are from batch {self.position.batch} on: the model has others "
                "than were saved, or makes them with its first batch",
                stacklevel=2,
            )

    def _give_metrics(self, stored: list[variables.Metric]) -> bool:
        return variables.give_metrics(_keras_state.metric_variables(self._state.model), stored)
