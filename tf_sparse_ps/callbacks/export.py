"""`Export`: publishes versions of the model while `fit` trains it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_sparse_ps import job, schedules
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.callbacks.rank_clock import RankClock
from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.config.plain_numbers import check_interval, plain
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.exporting.captured_tables import Options
from tf_sparse_ps.exporting.publisher import Publisher, ShardSender
from tf_sparse_ps.exporting.shard_collection import WRITER
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.serving import table_files
from tf_sparse_ps.urls import local_path


class Export(_keras.keras.callbacks.Callback):
    """Publishes versions of the model while `fit` trains it, for servers that watch a directory (docs/serving.md).

    ```python
    model.fit(dataset, callbacks=[tsps.callbacks.Export("serve", every_seconds=300)])
    ```

    The versions are folders with numbers as names. Each has the dense weights and the tables of one step. The first one
    has all rows; later ones share its files, and add what has changed. Rank 0 writes them in a thread, while training
    continues. A version that is due while another one is written follows it. `fit` ends with a version of its last
    step. If tables are sharded, give the callback to all ranks: training waits while they send to rank 0 what has
    changed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 3,
        rows: str | None = None,
        absent: str = "initial",
        signatures: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the callback. It writes nothing yet.

        Args:
          directory: The directory of versions, on a file system of rank 0.
          every_steps: The number of steps from one version to the next.
          every_seconds: The time from one version to the next. Give one of the two.
          keep: The number of versions to keep, at least 1. Versions that are pinned, or open in a process of the
            machine, are kept, too.
          rows, absent, signatures: As for `tsps.export`.

        Raises:
          ValueError: Both or none of `every_steps` and `every_seconds` are given, or a number is not above 0.
          InvalidArgumentError: `rows` or `absent` has another value.
        """
        super().__init__()
        every_steps, every_seconds, keep = plain(every_steps), plain(every_seconds), plain(keep)
        if (every_steps is None) == (every_seconds is None):
            raise ValueError(
                "Export needs every_steps or every_seconds, and not both. Received: "
                f"every_steps={every_steps!r}, every_seconds={every_seconds!r}"
            )
        check_interval(every_steps, every_seconds)
        if not keep > 0:
            raise ValueError(f"`keep` must be above 0. Received: keep={keep!r}")
        table_files.check_options(rows, absent)
        self.directory = local_path(directory, "directory")
        self._every_steps, self._every_seconds, self._keep = every_steps, every_seconds, keep
        self._options, self._signatures = Options(rows, absent), signatures
        self._publisher: Publisher | ShardSender | None = None
        self._clock: RankClock | None = None  # if ranks must agree on the step
        self._is_prepared = False
        self._due_at = 0.0
        self._step = self._published_step = 0

    def _settings_of_fit(self) -> dict[str, Any] | None:
        """Returns what ranks compare when `fit` begins, if all of them take part: see `training/fits.py`."""
        if not _are_sharded(model_tables.of(self.model)):
            return None
        return {"every_steps": self._every_steps, "every_seconds": self._every_seconds}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to count.

        Raises:
          UnsupportedError: The model is trained under `DelayedGlobal`.
        """
        if isinstance(getattr(self.model.optimizer, "schedule", None), schedules.DelayedGlobal):
            raise UnsupportedError(
                "Export does not work under DelayedGlobal, whose ranks differ until they drain. Call "
                "optimizer.drain() and tsps.export on all ranks between two calls of fit"
            )
        if self._publisher is not None:  # of a `fit` that an exception has ended
            self._publisher.close()
        self._publisher, self._clock, self._is_prepared = None, None, False
        self._step = self._published_step = self._updates()
        self._due_at = time.monotonic() + (self._every_seconds or 0)

    def _prepare(self) -> None:
        """Prepares to publish, after the first batch, which may have built the model."""
        self._is_prepared = True
        bindings = model_tables.of(self.model)
        self._publisher = self._make_publisher(bindings)
        if _are_sharded(bindings) and self._every_seconds is not None:
            ranks = job.current().collectives
            self._clock = RankClock(self._every_seconds, ranks, self._step, "tsps.export.clock")

    def _make_publisher(self, bindings: Sequence[TableBinding]) -> Publisher | ShardSender | None:
        if bindings and job.current().rank != WRITER:
            return ShardSender(bindings) if _are_sharded(bindings) else None
        return Publisher(
            self.model,
            bindings,
            Path(self.directory),
            keep=self._keep,
            options=self._options,
            signatures=self._signatures,
        )

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Publishes a version if it is due."""
        if not self._is_prepared:
            self._prepare()
        if self._publisher is None:
            return
        before, self._step = self._step, self._updates()
        if self._every_steps is not None:
            is_due = before // self._every_steps != self._step // self._every_steps
        elif self._clock is not None:
            is_due = self._clock.is_time(self._step)
        else:
            is_due = time.monotonic() >= self._due_at and not self._publisher.is_writing
        if is_due:
            self._publish()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Publishes the last step, and waits until its version is there."""
        if self._publisher is None:
            return
        self._step = self._updates()
        if self._step != self._published_step:
            self._publish()
        self._publisher.close()

    def _publish(self) -> None:
        assert self._publisher is not None
        self._due_at = time.monotonic() + (self._every_seconds or 0)
        self._published_step = self._step
        self._publisher.begin()

    def _updates(self) -> int:
        return int(tf.convert_to_tensor(self.model.optimizer.iterations))


def _are_sharded(bindings: Sequence[TableBinding]) -> bool:
    return any(binding.placement == "sharded" for binding in bindings)
