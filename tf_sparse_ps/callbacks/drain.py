"""`Drain`: a schedule applies its outstanding gradients before anything looks at the model."""

from __future__ import annotations

from typing import Any

from tf_sparse_ps import schedules
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer


class Drain(_keras.keras.callbacks.Callback):
    """Drains the optimizer at the end of each epoch, so that all ranks have the same, complete weights there.

    ```python
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=tsps.schedules.DelayedGlobal())
    model.compile(optimizer, loss="mse")
    model.fit(dataset, callbacks=[tsps.callbacks.Drain()])
    ```

    `fit` needs it under `tsps.schedules.DelayedGlobal`, which still has gradients outstanding after a step. Under
    `TimedBuckets(server=True)`, `fit` needs it if the model is saved meanwhile, because each rank has the optimizer's
    slots of its own buckets only. Under other schedules the callback has no visible effect.

    The callback drains before the validation of an epoch if `fit` knows the number of batches. If it does not, the
    callback drains when validation begins; all ranks must then validate, or none. Put it before callbacks that save the
    model or change the learning rate. The moving statistics of normalization layers are averaged with the parameters.
    """

    def _settings_of_fit(self) -> dict[str, Any] | None:
        """Returns what ranks compare when `fit` begins: see `training/fits.py`."""
        schedule = getattr(self.model.optimizer, "schedule", None)
        has_server = isinstance(schedule, schedules.TimedBuckets) and schedule.server
        return {} if has_server or isinstance(schedule, schedules.DelayedGlobal) else None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Has the optimizer average the model's variables that are not trained.

        Raises:
          ValueError: The model's optimizer is not a `DistributedOptimizer`.
        """
        model = self.model
        if not isinstance(model.optimizer, DistributedOptimizer):
            raise ValueError(f"Drain needs a DistributedOptimizer. Received: {type(model.optimizer).__name__}")
        model.optimizer.also_average(lambda: model.non_trainable_variables)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Drains after the last batch of an epoch."""
        if batch + 1 == self.params.get("steps"):
            self.model.optimizer.drain()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Drains before validation."""
        self.model.optimizer.drain()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Drains at the end of an epoch."""
        self.model.optimizer.drain()
