"""`JobState`: what a checkpoint saves and restores, as this process has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras, _keras_state
from tf_sparse_ps.checkpoints import tables, variables
from tf_sparse_ps.checkpoints.callback_states import CallbackStates
from tf_sparse_ps.checkpoints.position import Position
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer


class JobState:
    """The model, the optimizer, other variables and the position of one rank.

    Attributes:
      model: The Keras model.
      optimizer: The optimizer that trains it.
      extra: Other variables, by name.
      ranks: The job's collectives.
      position: The epoch and the batch at which training is.
      callbacks: The callbacks whose states are saved as well, or None.
    """

    def __init__(
        self, model: Any, optimizer: DistributedOptimizer, extra: Mapping[str, Any], ranks: Collectives
    ) -> None:
        """Reads nothing. Training is at the first batch of epoch 0."""
        self.model, self.optimizer, self.extra, self.ranks = model, optimizer, dict(extra), ranks
        self.position = Position(self.updates)
        self.callbacks: CallbackStates | None = None

    def updates(self) -> int:
        """Returns the number of updates that the optimizer has made."""
        return int(tf.convert_to_tensor(self.optimizer.iterations))

    def changes(self) -> tuple[int, int]:
        """Returns two numbers that are equal on all ranks: the updates, and the calls of `layer.erase`."""
        return self.updates(), sum(binding.erasures for binding in self.tables())

    def tables(self) -> list[TableBinding]:
        """Returns the tables of the model's layers, in the order of the layers."""
        return tables.of(self.model)

    def variables(self) -> list[variables.Entry]:
        """Returns all dense variables, in a fixed order. Makes the optimizer's, if there has been no step yet.

        Raises:
          UnsupportedError, StateError: As `variables.collect`.
        """
        if not getattr(self.optimizer, "built", False):
            _keras_state.all_variables(self.model)  # or it raises
            self.optimizer.build(self.model.trainable_variables)
        return variables.collect(self.model, self.optimizer, self.extra)

    def layer_classes(self) -> frozenset[str]:
        """Returns the names that Keras gives to layers of the model's classes, without numbers: `dense`, ..."""
        names = {type(layer).__name__ for layer in _keras.all_layers(self.model)}
        return frozenset(_snake_case(re.sub(r"\W+", "", name)) for name in names)


def _snake_case(name: str) -> str:
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name)).lower()
