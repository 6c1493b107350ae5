"""`Progress`: a tqdm bar over the steps of `model.fit`, with the samples/s of the whole job."""

from __future__ import annotations

import sys
import time
from typing import Any

import keras
from tqdm import tqdm


class Progress(keras.callbacks.Callback):
    """Shows one bar for the whole fit, and records the losses for the curves.

    Args:
        total_steps: the number of steps of the fit.
        samples_per_step: the number of samples per step, of all ranks together.
        show: whether this rank shows the bar.
        disk: whether to show how many rows this rank has read from disk too late, and how long it has waited for them.

    Attributes:
        losses: (step, mean loss of this rank since the previous entry), about 200 entries over the fit.
        train_seconds: the time spent in epochs, without evaluation and without the first step, which traces.
    """

    def __init__(self, *, total_steps: int, samples_per_step: int, show: bool, disk: bool = False) -> None:
        super().__init__()
        self.losses: list[tuple[int, float]] = []
        self.train_seconds = 0.0
        self._total = total_steps
        self._samples = samples_per_step
        self._every = max(1, total_steps // 200)
        self._show = show
        self._disk = disk
        self._step = 0
        self._began = 0.0
        self._counted = (0, 0.0)  # steps of this epoch that are in `losses`, and the sum of their losses
        self._bar: Any = None

    @property
    def samples_per_second(self) -> float:
        """The samples per second of all ranks together, over `train_seconds`."""
        return (self._step - 1) * self._samples / self.train_seconds if self._step > 1 else 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens the bar."""
        terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=self._total * self._samples,
            unit=" samples",
            unit_scale=True,
            disable=not self._show,
            mininterval=0.5 if terminal else 5.0,  # in a log file every refresh is a line
            dynamic_ncols=terminal,
        )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()
        self._counted = (0, 0.0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Advances the bar."""
        self._step += 1
        if self._step == 1:
            self._began = time.perf_counter()
        self._bar.update(self._samples)
        if self._step % self._every == 0 and logs and "loss" in logs:
            # Keras reports the mean since the beginning of the epoch.
            steps, total = batch + 1, (batch + 1) * float(logs["loss"])
            self.losses.append((self._step, (total - self._counted[1]) / (steps - self._counted[0])))
            self._counted = (steps, total)
            self._bar.set_postfix_str(f"loss {self.losses[-1][1]:.4f}{self._disk_text()}", refresh=False)

    def _disk_text(self) -> str:
        if not self._disk:
            return ""
        statistics = self.model.optimizer.statistics()
        late, read = (tqdm.format_sizeof(statistics[name]) for name in ("rows_read_late", "rows_read"))
        return f", waited {statistics['disk_waited_s']:.1f} s for the disk, {late} of {read} rows late"

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock."""
        self.train_seconds += time.perf_counter() - self._began

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the bar."""
        self._bar.close()

    def say(self, text: str) -> None:
        """Writes a line above the bar."""
        if self._show:
            self._bar.write(text, file=sys.stderr)
