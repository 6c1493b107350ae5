"""The checkpoints suite: saves, increments and restores of a table with Adagrad, against copying and reading its bytes.

Everything is on one disk, in one run. Copying is `cp` and `fsync` of the table's file while the file is in memory. For
reading and restoring, the file is not in memory.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import tf_sparse_ps as tsps
from benchmarks import harness
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import directory, stored_checkpoint, tables

keras = _keras.keras
_DIM = 32
_CHUNK = 1 << 18
_FEATURES, _BATCH, _BATCHES = 26, 2048, 16
_TRAIN_S = 6.0  # of training without a save


class _Anonymous:
    """Watches the anonymous memory of this process, and measures its growth."""

    def __init__(self) -> None:
        self._began, self._most, self._end = harness.anonymous_bytes(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(0.01):
            self._most = max(self._most, harness.anonymous_bytes())

    def grown_mib(self) -> float:
        """Stops watching; returns the most growth."""
        self._end.set()
        self._thread.join()
        return max(0, self._most - self._began) / 2**20


def run(options: harness.Options) -> list[harness.Result]:
    """Measures with 10 million rows of 32 floats with Adagrad: 2.6 GB."""
    rows = 200_000 if options.quick else 10_000_000
    blocks = min(options.blocks, 3)
    base = Path("build/benchmarks")
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base, prefix="checkpoints-") as folder:
        return _Suite(Path(folder), rows, blocks).run()


class _Suite:
    def __init__(self, folder: Path, rows: int, blocks: int) -> None:
        self._folder, self._rows, self._blocks = folder, rows, blocks
        self._case = f"{rows:,} rows of {_DIM}, Adagrad"
        self._results: list[harness.Result] = []
        self._model = _model()
        self._train = _train(self._model)
        ids = harness.zipf_ids(rows, _BATCH * _FEATURES, _BATCHES)
        labels = np.random.default_rng(2).integers(0, 2, (_BATCH, 1)).astype(np.float32)
        self._batches = harness.Cycle([(tf.constant(x.reshape(_BATCH, _FEATURES)), tf.constant(labels)) for x in ids])

    def run(self) -> list[harness.Result]:
        for _ in range(3):
            self._step()
        self._older = Path(self._checkpointer("small", background=False).save())
        _fill(tables.of(self._model)[0], self._rows)
        self._full()
        self._beside_training()
        self._increment()
        self._restore()
        return self._results

    def _step(self) -> float:
        began = time.perf_counter()
        self._train(*self._batches())
        return (time.perf_counter() - began) * 1e3

    def _checkpointer(self, name: str, **options: Any) -> Any:
        optimizer = self._model.optimizer
        return tsps.Checkpointer(self._folder / name, self._model, optimizer, keep=1, **options)

    def _full(self) -> None:
        checkpointer = self._checkpointer("full", incremental=False, background=False)
        checkpointer.save()
        copied, saved, memory = [], [], []
        for _ in tqdm(range(self._blocks), desc="full saves", delay=2, disable=None):
            self._file, self._bytes = _table_file(self._folder / "full")
            copied.append(self._bytes / 1e6 / _timed(self._copy))
            self._step()
            watch = _Anonymous()
            saved.append(self._bytes / 1e6 / _timed(checkpointer.save))
            memory.append(watch.grown_mib())
        self._full_s = self._bytes / 1e6 / statistics.median(saved)
        self._add("saving, training idles", {"cp and fsync": copied, "save": saved}, "MB/s", "cp and fsync")
        self._add("saving, training idles", {"anonymous memory grows by": memory}, "MiB")

    def _copy(self) -> None:
        target = self._folder / "copy"
        subprocess.run(["cp", "--reflink=never", str(self._file), str(target)], check=True)
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        target.unlink()

    def _beside_training(self) -> None:
        checkpointer = self._checkpointer("beside", incremental=False)
        alone: list[float] = []
        beside: list[float] = []
        took: list[float] = []
        memory: list[float] = []
        blocked: list[float] = []
        for _ in tqdm(range(self._blocks), desc="beside training", delay=2, disable=None):
            end = time.perf_counter() + _TRAIN_S
            while time.perf_counter() < end:
                alone.append(self._step())
            watch = _Anonymous()
            began = time.perf_counter()
            checkpointer.save()
            blocked.append((time.perf_counter() - began) * 1e3)
            while checkpointer.is_saving:
                beside.append(self._step())
            took.append(time.perf_counter() - began)
            checkpointer.wait()
            memory.append(watch.grown_mib())
        case = "saving beside training"
        self._add(
            case,
            {"a save that training idles for": [self._full_s], "the save": took},
            "s",
            "a save that training idles for",
        )
        self._add(case, {"`save()` returns after": blocked}, "ms")
        self._add(
            case, {"step without a save": alone, "step beside one": beside}, "ms", "step without a save", means=True
        )
        median = statistics.median(beside)
        self._add(case, {"median step beside one": [median], "longest": [max(beside)]}, "ms", "median step beside one")
        self._add(case, {"anonymous memory grows by": memory}, "MiB")

    def _increment(self) -> None:
        checkpointer = self._checkpointer("increments", background=False)
        checkpointer.save()
        (binding,) = tables.of(self._model)
        random = np.random.default_rng(3)
        took, sizes = [], []
        for _ in range(self._blocks):
            keys = random.choice(self._rows, self._rows // 100, replace=False)
            binding.assign(keys, np.ones((len(keys), _DIM), np.float32))
            began = time.perf_counter()
            path = checkpointer.save()
            took.append(time.perf_counter() - began)
            content = stored_checkpoint.look(Path(path)).manifest
            assert content.chain
            sizes.append(content.table_bytes / 1e6)
        case = "increment after 1 % of rows"
        self._add(case, {"a full save": [self._full_s], "the increment": took}, "s", "a full save")
        self._add(case, {"a full save": [self._bytes / 1e6], "the increment": sizes}, "MB", "a full save")
        self._chain = self._folder / "increments"

    def _restore(self) -> None:
        shutil.rmtree(self._folder / "beside")
        shutil.rmtree(self._chain)
        # With an older checkpoint to fall back to, as jobs have it, rows are read only once.
        shutil.copytree(self._older, self._folder / "full" / self._older.name)
        size = self._bytes / 1e6
        read, restored, memory = [], [], []
        del self._train
        self._model = None
        for _ in tqdm(range(self._blocks), desc="restores", delay=2, disable=None):
            _forget(self._folder)
            self._file, _ = _table_file(self._folder / "full")
            read.append(
                size / _timed(lambda: subprocess.run(["cat", str(self._file)], stdout=subprocess.DEVNULL, check=True))
            )
            keras.backend.clear_session()
            gc.collect()  # removes the tables of deleted models
            model = _model()
            _forget(self._folder)
            checkpointer = tsps.Checkpointer(self._folder / "full", model, model.optimizer)
            watch = _Anonymous()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # keys that were never trained have other initial values
                restored.append(size / _timed(checkpointer.restore))
            memory.append(watch.grown_mib())
            (binding,) = tables.of(model)
            if len(binding.reader()) < self._rows:
                raise RuntimeError(f"{len(binding.reader())} of {self._rows} rows were restored")
            del model, checkpointer, binding
        self._add(
            "restoring, from the disk", {"reading the bytes": read, "restore": restored}, "MB/s", "reading the bytes"
        )
        self._add("restoring, from the disk", {"anonymous memory grows by": memory}, "MiB")

    def _add(
        self, case: str, figures: dict[str, list[float]], unit: str, peer: str | None = None, *, means: bool = False
    ) -> None:
        if means:  # a mean over many steps shows how much of its speed training keeps
            figures = {name: [statistics.fmean(values)] for name, values in figures.items()}
        self._results += harness.summarize("checkpoints", f"{case}; {self._case}", figures, peer=peer, unit=unit)


def _model() -> Any:
    inputs = keras.Input((_FEATURES,), dtype="int64")
    hidden = keras.layers.Flatten()(tsps.Embedding(None, _DIM, table=tsps.TableConfig("ids", _DIM, seed=1))(inputs))
    hidden = keras.layers.Dense(64, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(harness.LEARNING_RATE)), "mse")
    return model


def _train(model: Any) -> Callable[..., None]:
    optimizer = model.optimizer

    @tf.function
    def train(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    return train


def _fill(binding: Any, rows: int) -> None:
    random = np.random.default_rng(0)
    for start in tqdm(range(0, rows, _CHUNK), desc="fill", delay=2, disable=None):
        keys = np.arange(start, min(rows, start + _CHUNK), dtype=np.int64)
        values = random.random((len(keys), _DIM), np.float32)
        binding.assign(keys, values, (values + np.float32(0.1),))


def _table_file(folder: Path) -> tuple[Path, int]:
    """Returns the file of the newest checkpoint's table, and its size."""
    path = directory.CheckpointDirectory(folder).find()[0].path
    (file,) = path.glob("*.tfsps")
    return file, file.stat().st_size


def _timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _forget(folder: Path) -> None:
    """Drops files from the page cache, so that they are read from the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
