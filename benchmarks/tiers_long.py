"""The long case of the suite tiers: `python -m benchmarks tiers --long` looks for costs that grow with time.

One process trains a tiered table of which a quarter is in memory, as fast as the disk allows. Its keys are uniform, so
each step moves 10,000 rows to the disk and as many from it, for 15 minutes. After the first three minutes count:

- the 99th percentile of the time of a step, divided by the median: processor time of the whole process, and time by the
  clock;
- the highest ratio of the bytes of the table's files to those of its live rows;
- the most descriptors, and the growth of the process's memory.

Then three tables with about 10, 100 and 1,000 files take turns. Their steps should take equally long.
"""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks import harness
from tf_sparse_ps import optimizers
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.config.tiered import Tiered
from tf_sparse_ps.table import Table, disk_folders, groups

_DIM = 16
_RECORD = 160  # bytes on disk of a row with its slot, key, generation and seal
_IN_MEMORY = 200  # bytes of a row in memory, with index and use count
_PLACE = 12  # bytes for the place of a row on disk
_RULE = optimizers.Adagrad(learning_rate=0.1)
_FILES = (10, 100, 1000)


class _Load:
    """A tiered table, and steps that each move a number of rows.

    Args:
        folder: A folder on the disk.
        shared: A folder in shared memory.
        rows: The number of rows.
        moved: The number of rows that a step moves to the disk, and from it.
        files: The number of files, about; None: as many as any table of this size has.
    """

    def __init__(self, folder: Path, shared: Path, rows: int, moved: int, files: int | None = None) -> None:
        self._rows, self._draw = rows, np.random.default_rng(0)
        memory = (rows // 4 * _IN_MEMORY + rows * _PLACE) * 13 // 10 + (2 << 20)
        config = TableConfig("rows", _DIM, max_rows=rows, optimizer=_RULE, storage=Tiered(folder, memory))
        self._table = _make(shared, config, 0 if files is None else rows * _RECORD // files)
        self._gradients = np.ones((moved * 4 // 3, _DIM), np.float32)  # a quarter of the rows is in memory
        chunk = rows // 64
        with tqdm(total=rows, desc="fill", unit=" rows", unit_scale=True, delay=2, disable=None, leave=False) as bar:
            for start in range(0, rows, chunk):
                keys = np.arange(start, min(start + chunk, rows))
                self._table.assign(keys, np.zeros((len(keys), _DIM), np.float32))
                bar.update(len(keys))

    def step(self) -> tuple[float, float]:
        """Makes a step; returns its milliseconds by the clock, and of processor time of all threads."""
        keys = self._draw.integers(0, self._rows, len(self._gradients))
        began, processor = time.perf_counter(), time.process_time()
        self._table.apply_gradients(keys, self._gradients)
        return (time.perf_counter() - began) * 1e3, (time.process_time() - processor) * 1e3

    def stats(self) -> dict[str, float]:
        """Returns the statistics of the table."""
        return self._table.stats()

    def close(self) -> None:
        """Closes the table."""
        self._table.close()


def run(options: harness.Options) -> list[harness.Result]:
    """Trains for 15 minutes; then compares numbers of files."""
    rows, moved = (80_000, 1_000) if options.quick else (4_000_000, 10_000)
    with (
        tempfile.TemporaryDirectory(prefix="tsps-tiers-", dir="/var/tmp") as disk,
        tempfile.TemporaryDirectory(prefix="tsps-tiers-", dir="/dev/shm") as shared,
    ):
        load = _Load(Path(disk), Path(shared) / "long", rows, moved)
        seconds, ignored = (6.0, 2.0) if options.quick else (900.0, 180.0)
        results = _long(load, seconds, ignored, f"{rows:,} rows, {moved:,} moved per step")
        load.close()
        return results + _numbers_of_files(Path(disk), Path(shared), rows, moved, options)


def _make(folder: Path, config: TableConfig, file_bytes: int) -> Table:
    """Makes a group with a tiered table, whose files have about `file_bytes`; 0: chosen from its memory."""
    group = groups.open_group(os.fspath(folder), create=True)
    group.open_writer()
    path = folder / config.name
    with disk_folders.prepared(config.storage, os.fspath(path)) as (storage_folder, storage_memory):
        index = group.create_table(
            name=config.name,
            uuid=secrets.token_hex(16),
            dim=config.dim,
            key_limit=0,
            max_rows=config.max_rows or 0,
            initializer={"kind": "zeros", "a": 0.0, "b": 0.0, "seed": 0, "salt": 0},
            storage_folder=storage_folder,
            storage_memory=storage_memory,
            storage_file_bytes=file_bytes,
        )
    group.bind_optimizer(index, _RULE.kind, list(_RULE.slot_init), False)
    return Table.open(path, "r+", config)


def _long(load: _Load, seconds: float, ignored: float, case: str) -> list[harness.Result]:
    began = last = time.monotonic()
    clock: list[float] = []
    processor: list[float] = []
    samples: list[tuple[float, int, int]] = []
    with tqdm(total=int(seconds), desc="tiers --long", unit=" s", disable=None) as bar:
        while (now := time.monotonic()) < began + seconds:
            step_ms, processor_ms = load.step()
            if now < began + ignored:
                continue
            clock.append(step_ms)
            processor.append(processor_ms)
            if now - last >= 1.0:
                stats = load.stats()
                share = stats["bytes_on_disk"] / stats["live_bytes_on_disk"]
                samples.append((share, len(os.listdir("/proc/self/fd")), harness.anonymous_bytes()))
                bar.update(int(now - began) - bar.n)
                last = now
    shares, descriptors, memory = zip(*samples, strict=True)
    figures = {
        "step, median": (statistics.median(clock), "ms"),
        "step, 99th percentile / median": (_spread(clock), ""),
        "processor time of a step, median": (statistics.median(processor), "ms"),
        "processor time, 99th percentile / median": (_spread(processor), ""),
        "files / live bytes, highest": (max(shares), ""),
        "descriptors, most": (max(descriptors), ""),
        "memory of the process, growth": ((memory[-1] - memory[0]) / 2**20, "MiB"),
    }
    return [
        harness.Result("tiers", f"{len(clock)} steps, {case}", name, value, value, value, unit, None)
        for name, (value, unit) in figures.items()
    ]


def _spread(times: Sequence[float]) -> float:
    """Returns the 99th percentile, divided by the median."""
    return statistics.quantiles(times, n=100)[98] / statistics.median(times)


def _numbers_of_files(
    disk: Path, shared: Path, rows: int, moved: int, options: harness.Options
) -> list[harness.Result]:
    loads = {f"{files:,} files": _Load(disk, shared / f"of{files}", rows, moved, files) for files in _FILES}
    peer = next(iter(loads))
    results = harness.compare(
        "tiers",
        f"step, {rows:,} rows, {moved:,} moved",
        {name: load.step for name, load in loads.items()},
        peer=peer,
        options=options,
        calls=10 if options.quick else 40,
        warmup=10 if options.quick else 500,
    )
    for load in loads.values():
        load.close()
    return results
