"""`MetricAverage`: the metrics of an epoch are means over the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps._compat import _keras


class MetricAverage(_keras.keras.callbacks.Callback):
    """Replaces the metrics of each epoch by their means over the ranks.

    ```python
    early_stopping = keras.callbacks.EarlyStopping("val_loss", patience=3)
    model.fit(dataset, callbacks=[tsps.callbacks.MetricAverage(), early_stopping])
    ```

    Put it before callbacks that act on metrics, such as ReduceLROnPlateau, EarlyStopping and ModelCheckpoint. They then
    see the same values, and decide the same, on all ranks. If only some ranks have a metric, because only they
    evaluate, the mean is over these ranks. Each rank has the same weight in a mean, however many samples it has.
    """

    def __init__(self, *, collectives: str = "auto") -> None:
        """Makes the callback.

        Args:
          collectives: "auto", "horovod", "tensorflow" or "local": how the ranks talk to each other.
        """
        super().__init__()
        self._collectives = collectives_lib.resolve(collectives)

    def _settings_of_fit(self) -> dict[str, Any]:
        """Returns what ranks compare when `fit` begins: see `training/fits.py`."""
        return {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the numbers in `logs`, in place."""
        if logs is None:
            return
        local_metrics = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        all_metrics = self._collectives.allgather_object(local_metrics, "tsps.metrics")
        for name in local_metrics:
            logs[name] = float(np.mean([metrics[name] for metrics in all_metrics if name in metrics]))
