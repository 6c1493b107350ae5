"""`callbacks.Export`: versions that appear while `fit` trains, and which of them are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_model import keras, make_model, train
from serving_support import must_equal
from table_versions import make_table, write

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from tf_sparse_ps.serving import ServingTable, fault_points, retention
from tf_sparse_ps.serving.version import Version, numbered

BATCHES = 24


class Record(keras.callbacks.Callback):
    """Keeps the rows of the table, and the answers, after some steps."""

    def __init__(self, layer: Any, every: int) -> None:
        super().__init__()
        self._layer, self._every = layer, every
        self._steps = 0  # of this model; the tables count all steps of the job
        self.seen: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        reader = self._layer.bindings[0].reader()
        self._steps += 1
        if self._steps % self._every == 0:
            keys = np.sort(reader.keys())
            self.seen[reader.step] = (keys, reader.lookup(keys), np.asarray(self.model(IDS)))


IDS = np.arange(40, dtype=np.int64).reshape(-1, 2)


def numbers(directory: Path) -> list[int]:
    return sorted(number for number, _ in numbered(directory))


def fit(model: Any, callbacks: list[Any], seed: int = 0) -> None:
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, 3000, (BATCHES * 50, 2))
    model.fit(ids, np.ones((len(ids), 1), np.float32), batch_size=50, shuffle=False, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("rows", [None, "bfloat16"])
def test_each_version_has_one_step(tmp_path: Path, rows: str | None) -> None:
    import tensorflow as tf

    model, layer = make_model()
    record = Record(layer, 5)
    # Training changes the tables while versions are written.
    fit(model, [record, tsps.callbacks.Export(tmp_path, every_steps=5, keep=100, rows=rows)])
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    for number, (step, (keys, expected, answers)) in enumerate(record.seen.items(), 1):
        version = tmp_path / str(number)
        assert Version(version).manifest.step == step
        table = ServingTable.open(version, verify=True)
        np.testing.assert_array_equal(np.sort(np.concatenate(list(table.key_parts()))), keys)
        np.testing.assert_array_equal(table.lookup(keys), table.as_stored(expected))
        served = tf.saved_model.load(os.fspath(version)).signatures["serving_default"]
        if rows is None:
            np.testing.assert_array_equal(next(iter(served(tf.constant(IDS)).values())), answers)
    del table  # its version would stay
    if rows is None:
        must_equal(tmp_path / "5", model, layer)
    # Another fit continues in the directory, and another process would.
    fit(model, [tsps.callbacks.Export(tmp_path, every_steps=12, keep=2, rows=rows)], seed=1)
    if rows is None:
        must_equal(tmp_path / "7", model, layer)
    else:  # versions that TensorFlow has loaded are in use for a while
        assert sorted(os.listdir(tmp_path)) == ["6", "7"]


@pytest.mark.parametrize("kind", ["tiered", "cached", "evicting", "buckets"])
def test_other_kinds_of_tables_and_schedules(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {
        "tiered": {"storage": tsps.Tiered(tmp_path / "disk", 2 << 20)},
        "cached": {"cache": tsps.DeviceCache(rows=512)},
        "evicting": {"eviction": tsps.Eviction(max_rows=1000)},
        "buckets": {},
    }[kind]
    model, layer = make_model(**options)
    if kind == "buckets":
        schedule = tsps.schedules.TimedBuckets(profile_steps=4)
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5), schedule=schedule), "mse")
    fit(model, [tsps.callbacks.Export(tmp_path / "serve", every_steps=5, keep=100)])
    assert numbers(tmp_path / "serve") == [1, 2, 3, 4, 5]
    must_equal(tmp_path / "serve/5", model, layer)
    # The last version, built on those before, has the rows of a version that is built on none.
    tsps.export(model, tmp_path / "again")
    keys = np.sort(layer.bindings[0].reader().keys())
    layered, again = (ServingTable.open(tmp_path / name) for name in ("serve/5", "again"))
    np.testing.assert_array_equal(layered.lookup(keys), again.lookup(keys))
    assert sum(map(len, layered.key_parts())) == sum(map(len, again.key_parts())) == len(keys)


def test_versions_follow_the_clock(tmp_path: Path) -> None:
    model, layer = make_model()
    export = tsps.callbacks.Export(tmp_path, every_seconds=0.001)
    fit(model, [export])
    assert 1 <= len(numbers(tmp_path)) <= 3
    must_equal(tmp_path / str(numbers(tmp_path)[-1]), model, layer)


def test_a_version_that_fails_is_tried_again(tmp_path: Path) -> None:
    model, layer = make_model()
    failed = []

    def fail(point: str) -> None:
        if point == "tables_ready" and not failed:
            failed.append(point)
            raise OSError("the disk is full")

    fault_points.set_action(fail)
    try:
        with pytest.warns(UserWarning, match="a version of the model was not written to .*: the disk is full"):
            fit(model, [tsps.callbacks.Export(tmp_path, every_steps=8)])
    finally:
        fault_points.set_action(None)
    must_equal(tmp_path / str(numbers(tmp_path)[-1]), model, layer)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.keras2_smoke
def test_an_early_end_leaves_whole_versions(tmp_path: Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 11:
                raise RuntimeError("stopped")

    model, layer = make_model()
    export = tsps.callbacks.Export(tmp_path, every_steps=4)
    with pytest.raises(RuntimeError, match="stopped"):
        fit(model, [export, Stop()])
    export.on_train_end()
    assert Version(tmp_path / str(numbers(tmp_path)[-1])).manifest.step == layer.bindings[0].reader().step
    fit(model, [export])
    must_equal(tmp_path / str(numbers(tmp_path)[-1]), model, layer)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs every_steps or every_seconds, and not both"):
        tsps.callbacks.Export(tmp_path)
    with pytest.raises(ValueError, match=r"`every_steps` must be above 0. Received: every_steps=0"):
        tsps.callbacks.Export(tmp_path, every_steps=0)
    with pytest.raises(ValueError, match=r"`every_steps` must be an integer. Received: every_steps=1.5"):
        tsps.callbacks.Export(tmp_path, every_steps=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`every_seconds` must be a number of seconds. Received: every_seconds='9'"):
        tsps.callbacks.Export(tmp_path, every_seconds="9")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`keep` must be above 0. Received: keep=0"):
        tsps.callbacks.Export(tmp_path, every_steps=1, keep=0)
    with pytest.raises(InvalidArgumentError, match=r"`rows` must be one of .*, or None. Received: 'int2'"):
        tsps.callbacks.Export(tmp_path, every_steps=1, rows="int2")
    model, _ = make_model()
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=tsps.schedules.DelayedGlobal())
    model.compile(optimizer, "mse")
    with pytest.raises(UnsupportedError, match="Export does not work under DelayedGlobal"):
        fit(model, [tsps.callbacks.Export(tmp_path, every_steps=1), tsps.callbacks.Drain()])
    assert not os.listdir(tmp_path)


def test_versions_in_use_and_pinned_ones_stay(tmp_path: Path) -> None:
    model, _ = make_model()
    for number in range(1, 8):
        train(model, np.arange(number, number + 4))
        tsps.export(model, tmp_path / str(number), base=None if number == 1 else tmp_path / str(number - 1))
    opened = ServingTable.open(tmp_path / "2")
    code = (
        "import sys, tf_sparse_ps as tsps\n"
        f"table = tsps.ServingTable.open({os.fspath(tmp_path / '4')!r})\n"
        "print('open', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        retention.pin(tmp_path / "1")
        assert [path.name for path in retention.prune(tmp_path, 2)] == ["5", "3"]
        assert numbers(tmp_path) == [1, 2, 4, 6, 7]
        other.stdin.close()
        other.wait(timeout=60)
    assert [path.name for path in retention.prune(tmp_path, 2)] == ["4"]
    rows = opened.lookup(np.arange(20))
    del opened
    retention.unpin(tmp_path / "1")
    assert [path.name for path in retention.prune(tmp_path, 1)] == ["6", "2", "1"]
    assert rows.shape == (20, 8)
    assert sorted(os.listdir(tmp_path)) == ["7"]
    ServingTable.open(tmp_path / "7").verify()
    with pytest.raises(InvalidArgumentError, match="is not pinned"):
        retention.unpin(tmp_path / "7")
    with pytest.raises(NotFoundError, match="is not a served version, so it cannot be pinned"):
        retention.pin(tmp_path / "9")


def test_a_killed_removal_is_completed(tmp_path: Path) -> None:
    table = make_table(tmp_path / "group", 4)
    directory = tmp_path / "serve"
    for number in (1, 2, 3):
        table.assign([number], np.ones((1, 4), np.float32))
        write(directory / str(number), table)
    table.close()

    def fail(point: str) -> None:
        if point == "set_aside":
            raise KeyboardInterrupt

    fault_points.set_action(fail)
    try:
        with pytest.raises(KeyboardInterrupt):
            retention.prune(directory, 2)
    finally:
        fault_points.set_action(None)
    assert numbers(directory) == [2, 3]
    assert len([name for name in os.listdir(directory) if name.startswith(".removing-")]) == 1
    retention.prune(directory, 2)
    assert sorted(os.listdir(directory)) == ["2", "3"]
