"""`Export`: publishes versions of the model while `fit` trains it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_sparse_ps import job, schedules
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.config.plain_numbers import check_interval, plain
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.exporting.captured_tables import WRITER, Options
from tf_sparse_ps.exporting.publisher import Publisher
from tf_sparse_ps.serving import table_files


class Export(_keras.keras.callbacks.Callback):
    """Publishes versions of the model while `fit` trains it, for servers that watch a directory (docs/serving.md).

    ```python
    model.fit(dataset, callbacks=[tsps.callbacks.Export("serve", every_seconds=300)])
    ```

    The versions are folders with numbers as names. Each has the dense weights and the tables of one step. The first one
    has all rows; later ones share its files, and add what has changed. Rank 0 writes them in a thread, while training
    continues. A version that is due while another one is written follows it. `fit` ends with a version of its last
    step.
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
        self.directory = os.path.abspath(directory)
        self._every_steps, self._every_seconds, self._keep = every_steps, every_seconds, keep
        self._options, self._signatures = Options(rows, absent), signatures
        self._publisher: Publisher | None = None
        self._due_at = 0.0
        self._step = self._published_step = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Prepares to publish.

        Raises:
          UnsupportedError: The model has sharded tables, or is trained under `DelayedGlobal`.
        """
        bindings = model_tables.of(self.model)
        sharded = [binding.config.name for binding in bindings if binding.placement == "sharded"]
        if sharded:
            raise UnsupportedError(
                f"Export cannot publish sharded tables while training continues, and {sharded} are sharded. Call "
                "tsps.export on all ranks between two calls of fit"
            )
        if isinstance(getattr(self.model.optimizer, "schedule", None), schedules.DelayedGlobal):
            raise UnsupportedError(
                "Export does not work under DelayedGlobal, whose ranks differ until they drain. Call "
                "optimizer.drain() and tsps.export on all ranks between two calls of fit"
            )
        if bindings and job.current().rank != WRITER:
            return
        if self._publisher is not None:  # of a `fit` that an exception has ended
            self._publisher.close()
        self._publisher = Publisher(
            self.model,
            bindings,
            Path(self.directory),
            keep=self._keep,
            options=self._options,
            signatures=self._signatures,
        )
        self._step = self._published_step = self._updates()
        self._due_at = time.monotonic() + (self._every_seconds or 0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Publishes a version if it is due."""
        if self._publisher is None:
            return
        before, self._step = self._step, self._updates()
        if self._every_steps is not None:
            is_due = before // self._every_steps != self._step // self._every_steps
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
