"""`TableMetrics`: writes what tables and ranks do for TensorBoard, while `fit` trains."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import _table, job
from tf_sparse_ps._compat import _keras, _keras_fit
from tf_sparse_ps.callbacks.event_files import EventFiles
from tf_sparse_ps.config.plain_numbers import check_interval, plain
from tf_sparse_ps.errors import InvalidArgumentError, TableError
from tf_sparse_ps.monitoring import own_groups, rates, readings, row_samples
from tf_sparse_ps.monitoring.rates import Rates
from tf_sparse_ps.monitoring.readings import GroupReading, TableSize
from tf_sparse_ps.monitoring.row_samples import RowSample
from tf_sparse_ps.training import progress_line, samples
from tf_sparse_ps.urls import local_path

_WRITER = 0  # the rank that writes files
_SAMPLED_ROWS = 2048  # of each table


@dataclasses.dataclass(frozen=True)
class _NodeFigures:
    """The figures of a node. `rates`: None if no time has passed. `rows`: samples of rows by the names of tables."""

    node: int
    tables: tuple[TableSize, ...]
    rates: Rates | None
    rows: dict[str, RowSample]


@dataclasses.dataclass(frozen=True)
class _Moment:
    """The group of this rank's node after a step. A group without tables counts no steps, but the optimizer does."""

    step: int
    group: GroupReading


class TableMetrics(_keras.keras.callbacks.Callback):
    """Writes what tables and ranks do for TensorBoard, while `fit` trains (docs/metrics.md).

    ```python
    model.fit(dataset, callbacks=[tsps.callbacks.TableMetrics("logs/run-1", every_steps=100)])
    ```

    The figures are those of `tf-sparse-ps top` and Prometheus. Rates are of the time since the last figures, or since
    the epoch began. The progress line of `fit` shows `samples_per_s` of the job, and `largest_wait`: the largest share
    of time that a node waited for one cause. `History` and other callbacks do not see them.

    In a job of several ranks, give it to all of them. Rank 0 writes the files: figures of the job into the directory,
    and those of each node into its subdirectory `node-N`. In a job of several nodes the leaders send their figures to
    rank 0 in one collective operation every `every_steps` steps.

    `fit` fails after its first step if rank 0 cannot write to the directory. If writing fails later, such as on a full
    disk, a warning says so and training continues without figures.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, every_steps: int = 100) -> None:
        """Makes the callback. It writes nothing yet.

        Args:
          log_dir: The directory, on a file system of rank 0. Later calls of `fit` add to what it has.
          every_steps: The number of optimizer steps from one set of figures to the next.

        Raises:
          TypeError: `log_dir` is not a path.
          ValueError: `log_dir` is empty, or `every_steps` is not an integer above 0.
        """
        super().__init__()
        if not isinstance(log_dir, str | os.PathLike) or not isinstance(os.fspath(log_dir), str):
            raise TypeError(f"`log_dir` must be a str or an os.PathLike of a directory. Received: log_dir={log_dir!r}")
        if not os.fspath(log_dir):
            raise ValueError("`log_dir` must be the path of a directory. Received: log_dir=''")
        every_steps = plain(every_steps)
        if every_steps is None:
            raise ValueError("`every_steps` must be an integer. Received: every_steps=None")
        check_interval(every_steps, None)
        self.log_dir = local_path(log_dir, "log_dir")
        self._every_steps = every_steps
        self._files: EventFiles | None = None
        self._last: _Moment | None = None
        self._last_step = 0
        self._random = np.random.default_rng()

    def _settings_of_fit(self) -> dict[str, Any]:
        """Returns what ranks compare when `fit` begins: see `training/fits.py`."""
        return {"every_steps": self._every_steps}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to count.

        Raises:
          InvalidArgumentError: The model has no optimizer, whose steps are counted.
        """
        if getattr(self.model, "optimizer", None) is None:
            raise InvalidArgumentError(
                f"TableMetrics counts the steps of the model's optimizer. Call compile() of model {self.model.name!r} "
                "with an optimizer first"
            )
        self._close()
        self._last, self._last_step = None, self._steps()
        _keras_fit.at_end(self._close)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Leaves out of the next rates what was between two epochs, such as validation."""
        if self._last is not None:
            self._last = self._read()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes figures if they are due."""
        if self._last is None:  # the first batch may have built the model and its tables
            self._begin()
            return
        before, self._last_step = self._last_step, self._steps()
        if before // self._every_steps != self._last_step // self._every_steps:
            self._write()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the files."""
        self._close()

    def _begin(self) -> None:
        if job.current().rank == _WRITER:
            _check_directory(self.log_dir)
            self._files = EventFiles(self.log_dir)
        self._last_step = self._steps()
        samples.count(self.model)
        self._last = self._read()

    def _write(self) -> None:
        """Collects the figures of all nodes. Rank 0 writes them."""
        samples.count(self.model)
        current, own = job.current(), None
        if current.is_leader:
            own = self._figures(current.node)
        if len(current.leaders) > 1:
            everyone = current.collectives.allgather_object(own, "tsps.table_metrics")
            nodes = [figures for figures in everyone if figures is not None]
        else:
            nodes = [] if own is None else [own]
        if current.rank == _WRITER and self._files is not None:
            try:
                _write_all(self._files, nodes, self._last_step)
            except (OSError, tf.errors.OpError) as error:
                warnings.warn(
                    f"TableMetrics writes no more figures to {self.log_dir}: {error}. Training continues", stacklevel=2
                )
                self._close_files()
        progress_line.show(self.model, _line(nodes))

    def _figures(self, node: int) -> _NodeFigures:
        before, self._last = self._last, self._read()
        assert before is not None
        steps = max(self._last.step - before.step, 0)
        earlier, group = before.group, self._last.group
        found = rates.between(earlier.reports, group.reports, group.time - earlier.time, steps)
        return _NodeFigures(node, group.tables, found, self._sampled_rows())

    def _read(self) -> _Moment:
        return _Moment(self._last_step, readings.read_group(job.current().group_path))

    def _sampled_rows(self) -> dict[str, RowSample]:
        """Reads some rows of each table. A table that cannot be read now, such as a new one, is left out."""
        rows = {}
        group = _table.Group.open(job.current().group_path)
        for table, info, stats in own_groups.rows_of(group):
            try:
                if stats["rows"]:
                    rows[info["name"]] = row_samples.sample(group, table, _SAMPLED_ROWS, self._random)
            except TableError:
                continue
        return rows

    def _steps(self) -> int:
        return int(tf.convert_to_tensor(self.model.optimizer.iterations))

    def _close(self) -> None:
        self._close_files()
        progress_line.show(self.model, {})

    def _close_files(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            with contextlib.suppress(OSError, tf.errors.OpError):  # what was written is flushed already
                files.close()


def _check_directory(path: str) -> None:
    """Makes a directory, and raises InvalidArgumentError if it cannot be written to."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"TableMetrics cannot write to `log_dir`: {error}. Name a directory of this user. Received: "
            f"log_dir={path!r}"
        ) from error


def _job_rates(nodes: list[_NodeFigures]) -> dict[str, float]:
    """Returns the figures per second of a job: all of its nodes make each step."""
    found = [figures.rates for figures in nodes if figures.rates is not None]
    if not found:
        return {}
    per_second = {"steps": found[0].steps}
    samples_of_nodes = [each.samples for each in found if each.samples is not None]
    return per_second | ({"samples": sum(samples_of_nodes)} if samples_of_nodes else {})


def _line(nodes: list[_NodeFigures]) -> dict[str, float]:
    """Returns what the progress line shows."""
    found = _job_rates(nodes)
    line = {"samples_per_s": round(found["samples"], 1)} if "samples" in found else {}
    waits = [figures.rates.largest_wait()[1] for figures in nodes if figures.rates is not None]
    return line | ({"largest_wait": round(max(waits), 4)} if waits else {})


def _write_all(files: EventFiles, nodes: list[_NodeFigures], step: int) -> None:
    files.write("", {f"job/{name}_per_second": value for name, value in _job_rates(nodes).items()}, {}, step)
    for figures in nodes:
        histograms: dict[str, npt.NDArray[Any]] = {}
        for table, rows in figures.rows.items():
            histograms[f"{table}/row_norm"] = rows.norms
            if rows.ages is not None:
                histograms[f"{table}/row_age_steps"] = rows.ages
        files.write(f"node-{figures.node}", _scalars(figures), histograms, step)


def _scalars(figures: _NodeFigures) -> dict[str, float]:
    """Returns the scalars of a node, by name. A ratio of nothing has none."""
    scalars: dict[str, float | None] = {}
    for table in figures.tables:
        sizes = dataclasses.asdict(table)
        sizes |= {"memory_bytes": sizes.pop("memory"), "disk_bytes": sizes.pop("disk")}
        scalars |= {f"{sizes['name']}/{name}": value for name, value in sizes.items() if name != "name"}
    if (found := figures.rates) is not None:
        scalars |= {f"per_second/{name}": value for name, value in found.per_second().items()}
        scalars |= {f"waits/{cause}": share for cause, share in found.waits.items()}
        scalars |= {f"ratios/{name}": share for name, share in dataclasses.asdict(found.ratios).items()}
        scalars["per_step/rows_updated"] = found.rows_updated / found.steps if found.steps else None
    return {name: value for name, value in scalars.items() if value is not None}
