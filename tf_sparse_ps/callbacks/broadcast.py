"""`BroadcastVariables`: all ranks begin training with the values of one rank."""

from __future__ import annotations

from typing import Any

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras, _keras_fit
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction.handshake import reconcile
from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer, step_builder_of
from tf_sparse_ps.training.initial_sync import broadcast_variables


class BroadcastVariables(_keras.keras.callbacks.Callback):
    """Gives all ranks the dense weights, optimizer variables and tables of one rank before training.

    ```python
    model.fit(dataset, callbacks=[tsps.callbacks.BroadcastVariables(root=0)])
    ```

    The callback sends the values when training begins. A model that is built by its first batch gets them after that
    batch. If machines hold different rows and slots of a replicated table, the callback sends those of the root's
    machine to the others. It leaves sharded tables as they are.

    `DistributedOptimizer(broadcast=True)`, the default, does the same before its first step, with the values of rank 0
    and for the variables that the optimizer knows. The callback is for another root, and for weights that the optimizer
    does not train.
    """

    def __init__(self, root: int = 0, *, collectives: str = "auto") -> None:
        """Makes the callback.

        Args:
          root: The rank whose values all ranks get.
          collectives: "auto", "horovod", "tensorflow" or "local": how the ranks talk to each other.
        """
        super().__init__()
        self._root, self._collectives = root, collectives_lib.resolve(collectives)
        self._is_done = False

    def _settings_of_fit(self) -> dict[str, Any]:
        """Returns what ranks compare when `fit` begins: see `training/fits.py`."""
        return {"root": self._root}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Sends the values, if all ranks have built the model.

        Raises:
          ValueError: The ranks have different variables.
        """
        self._is_done = False
        # All ranks must do the same: if one of them has not built the model yet, all of them send later.
        if all(self._collectives.allgather_object(bool(self.model.built), "tsps.built")):
            self._broadcast()
        elif isinstance(self.model.optimizer, DistributedOptimizer):
            initial_sync = step_builder_of(self.model.optimizer).initial_sync
            initial_sync.root = self._root
            _keras_fit.at_end(lambda: setattr(initial_sync, "root", 0))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sends the values, if that was not possible when training began."""
        if not self._is_done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._is_done = True
        weights, optimizer = self.model.weights, self.model.optimizer
        if isinstance(optimizer, DistributedOptimizer):  # outstanding gradients belong to the values that are replaced
            optimizer.drain()
        slots = optimizer.variables if optimizer is not None else []
        broadcast_variables([*weights, *(slots() if callable(slots) else slots)], self._root, self._collectives)
        tables = {table.path: table for weight in weights if (table := binding_of(weight)) is not None}
        if tables and self._collectives.size > 1:
            in_order = sorted(tables.values(), key=lambda table: table.ordinal)
            reconcile(self._collectives, job.current(), in_order, self._root)
