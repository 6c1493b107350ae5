"""`Checkpointer` and `callbacks.Checkpoint` on one rank: what they save, restore and refuse."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps import callbacks, cli, optimizers
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.callbacks import rank_clock
from tf_sparse_ps.checkpoints import array_file, fault_points, manifest, stored_checkpoint, tables, variables
from tf_sparse_ps.checkpoints.resumable import ResumableDataset
from tf_sparse_ps.errors import NotSavedError, StateError, UnsupportedError

keras = _keras.keras
# Every model of a process has tables of its own, which begin with other values.
pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")


def make_model(
    width: int = 3, n_tables: int = 1, optimizer: Any = None, dtype: str = "float32", cache: Any = None
) -> Any:
    """Returns a compiled model: ids[batch, 2] -> tables -> one output."""
    inputs = keras.Input((2,), dtype="int64")
    configs = [tsps.TableConfig(f"table{i}", width, dtype=dtype) for i in range(n_tables)]
    parts = [
        keras.layers.Flatten()(tsps.Embedding(None, width, table=config, cache=cache)(inputs)) for config in configs
    ]
    joined = parts[0] if n_tables == 1 else keras.layers.Concatenate()(parts)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.BatchNormalization()(joined)))
    model.compile(tsps.DistributedOptimizer(optimizer or keras.optimizers.Adam(0.1)), "mse", metrics=["mae"])
    return model


def make(epoch: int) -> tf.data.Dataset:
    """Returns the five batches of an epoch."""
    random = np.random.default_rng(epoch)
    x = random.integers(0, 50, (20, 2))
    return tf.data.Dataset.from_tensor_slices((x, random.normal(size=(20, 1)).astype(np.float32))).batch(4)


def fit(model: Any, checkpoint: Any, epochs: int = 2, **options: Any) -> Any:
    return model.fit(checkpoint.dataset(make), epochs=epochs, callbacks=[checkpoint], verbose=0, **options)


def content(model: Any) -> list[Any]:
    """Returns keys, rows and slots in the order of the keys, and the dense variables without metrics."""
    arrays: list[Any] = []
    for binding in tables.of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        order = np.argsort(keys)
        arrays += [keys[order], rows[order], *(plane[order] for plane in slots)]
    entries = variables.collect(model, model.optimizer, {})
    return arrays + [entry.variable.numpy() for entry in entries if entry.kind != "metric"]


def must_equal(a: list[Any], b: list[Any]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def folders(path: Path) -> list[str]:
    return sorted(folder.name for folder in path.iterdir())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tables_dense_weights_optimizer_and_position_come_back(tmp_path: Path, dtype: str) -> None:
    saved_model = make_model(n_tables=2, dtype=dtype)
    note = tf.Variable([1.0, 2.0])
    checkpoint = callbacks.Checkpoint(tmp_path, every_steps=3, extra={"note": note})
    fit(saved_model, checkpoint)
    expected, step = content(saved_model), tables.committed_step()
    # The three newest checkpoints, and those that they build on.
    assert folders(tmp_path) == [f"step-{n_updates:012d}" for n_updates in (3, 6, 9, 10)]

    saved_model.fit(make(0), verbose=0)  # all tables of a process count the same steps

    restored_model, restored_note = make_model(n_tables=2, dtype=dtype), tf.Variable([0.0, 0.0])
    checkpointer = tsps.Checkpointer(tmp_path, restored_model, restored_model.optimizer, extra={"note": restored_note})
    assert checkpointer.latest() == str(tmp_path / "step-000000000010")
    assert checkpointer.restore() == checkpointer.latest()
    must_equal(content(restored_model), expected)
    np.testing.assert_array_equal(restored_note.numpy(), [1.0, 2.0])
    assert (checkpointer.position.epoch, checkpointer.position.batch) == (2, 0)
    assert tables.committed_step() == step


def test_the_directory_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "checkpoints").symlink_to("disk")
    model = make_model()
    model.train_on_batch(np.zeros((4, 2), np.int64), np.ones((4, 1)))
    checkpointer = tsps.Checkpointer(tmp_path / "checkpoints", model, model.optimizer)
    checkpointer.save()
    checkpointer.wait()
    assert checkpointer.latest() == str(tmp_path / "checkpoints/step-000000000001")


def test_a_restored_model_trains_as_the_saved_one(tmp_path: Path) -> None:
    saved_model = make_model()
    fit(saved_model, callbacks.Checkpoint(tmp_path / "a", every_steps=7), epochs=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    known = np.concatenate([x.numpy().reshape(-1) for epoch in range(3) for x, _ in make(epoch)])
    for binding in tables.of(saved_model):  # the tables of the second model have other initial values
        binding.assign(np.unique(known), np.ones((len(np.unique(known)), 3), np.float32))
    tsps.Checkpointer(tmp_path / "c", saved_model, saved_model.optimizer, background=False).save()
    restored_model = make_model()
    tsps.Checkpointer(tmp_path / "c", restored_model, restored_model.optimizer).restore()
    for model in (saved_model, restored_model):
        for epoch in (1, 2):
            model.fit(make(epoch), verbose=0)
    must_equal(content(restored_model), content(saved_model))


@pytest.mark.parametrize("is_bound", [False, True])
def test_slots_of_a_later_step_are_reset_by_a_checkpoint_of_before_the_first(tmp_path: Path, is_bound: bool) -> None:
    model = make_model()
    (saved,) = tables.of(model)
    saved.assign(np.arange(50), np.ones((50, 3), np.float32))
    tsps.Checkpointer(tmp_path, model, model.optimizer, background=False).save()

    restarted = make_model()  # a table as a named job finds it again, which was killed in a later step
    (binding,) = tables.of(restarted)
    binding.bind_optimizer(optimizers.Adam())
    binding.assign(np.arange(60), np.full((60, 3), 5, np.float32), [np.full((60, 3), 7, np.float32)] * 2)
    if not is_bound:  # in this process
        binding.optimizer = None
    tsps.Checkpointer(tmp_path, restarted, restarted.optimizer).restore()
    keys, rows, slots, _ = binding.reader().scan(slots=True).read()
    assert sorted(keys) == list(range(50))
    assert (rows == 1).all()
    assert [np.count_nonzero(slot) for slot in slots] == [0, 0]
    restarted.train_on_batch(np.zeros((4, 2), np.int64), np.ones((4, 1)))


@pytest.mark.parametrize("rows", [10, 100])
@pytest.mark.daily_cases(1)
def test_rows_that_are_newer_on_a_device_are_saved_and_restored(tmp_path: Path, rows: int) -> None:
    cache = tsps.DeviceCache(rows=rows)
    saved_model = make_model(cache=cache)
    fit(saved_model, callbacks.Checkpoint(tmp_path, every_steps=4))
    (binding,) = tables.of(saved_model)
    assert binding.cache is not None
    assert binding.cache.statistics()["hits"] > 0
    expected = content(saved_model)
    saved_model.fit(make(0), verbose=0)
    tsps.Checkpointer(tmp_path / "c", saved_model, saved_model.optimizer, background=False).save()
    expected_later = content(saved_model)
    for other_cache in (cache, None):
        restored_model = make_model(cache=other_cache)
        assert tsps.Checkpointer(tmp_path, restored_model, restored_model.optimizer).restore() is not None
        must_equal(content(restored_model), expected)
        restored_model.fit(make(0), verbose=0)
        for x, y in zip(content(restored_model)[1:], expected_later[1:], strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5)


def test_iterating_begins_where_training_goes_on(tmp_path: Path) -> None:
    model = make_model()
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    data = checkpointer.dataset(make)
    batches_seen: list[tuple[int, int]] = []
    for epoch in checkpointer.epochs(2):
        for number, (x, y) in enumerate(data):
            np.testing.assert_array_equal(x, list(make(epoch))[number][0])
            model.train_on_batch(x, y)
            batches_seen.append((epoch, number))
            if (epoch, number) == (1, 2):
                checkpointer.save()
                break
    assert batches_seen == [(0, n) for n in range(5)] + [(1, n) for n in range(3)]
    assert (checkpointer.position.epoch, checkpointer.position.batch) == (2, 0)
    checkpointer.wait()

    restored_model = make_model()
    checkpointer = tsps.Checkpointer(tmp_path, restored_model, restored_model.optimizer)
    remaining = checkpointer.dataset(make)
    checkpointer.restore()
    assert (checkpointer.position.epoch, checkpointer.position.batch) == (1, 3)
    assert list(checkpointer.epochs(1)) == []
    for epoch in checkpointer.epochs(2):
        batches = list(remaining)
        assert (epoch, len(batches)) == (1, 2)
        np.testing.assert_array_equal(batches[0][0], list(make(1))[3][0])


def test_an_update_that_comes_before_the_first_batch_is_read_skips_none(tmp_path: Path) -> None:
    """Within a step, the update and the first read of a batch have no order."""
    model = make_model()
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    batches = iter(checkpointer.dataset(make).prefetch(1))  # later stages hide which batch the loop took
    model.optimizer.iterations.assign_add(1)
    assert len(list(batches)) == 5
    assert checkpointer.position.batch == 1


# --- refusals ---


def test_arguments_are_checked(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(TypeError, match=r"DistributedOptimizer\. Received: optimizer=Adam"):
        tsps.Checkpointer(tmp_path, model, keras.optimizers.Adam())
    for keep in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match=f"keep={keep}"):
            tsps.Checkpointer(tmp_path, model, model.optimizer, keep=keep)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing://"):
        tsps.Checkpointer("nothing://bucket", model, model.optimizer)
    with pytest.raises(TypeError, match=r"extra\['n'\] must be a variable\. Received: int"):
        tsps.Checkpointer(tmp_path, model, model.optimizer, extra={"n": 3})
    for options, message in (
        ({"every_steps": 1, "every_seconds": 1}, "one of `every_steps` and `every_seconds`"),
        ({"every_steps": 0}, r"`every_steps` must be above 0\. Received: every_steps=0"),
        ({"every_steps": 1.5}, r"every_steps=1\.5"),
        ({"every_seconds": -1.0}, r"`every_seconds` must be above 0\. Received: every_seconds=-1\.0"),
        ({"every_seconds": "600"}, "must be a number of seconds. Received: every_seconds='600'"),
        ({"every_steps": 1, "keep": 0}, "keep=0"),
    ):
        with pytest.raises(ValueError, match=message):
            callbacks.Checkpoint(tmp_path, **options)  # type: ignore[arg-type]
    for options, message in (
        ({"extra": {"n": 3}}, r"extra\['n'\] must be a variable\. Received: int"),
        ({"extra": [1]}, r"must be a dict of variables by name\. Received: extra=\[1\]"),
        ({"directory": None}, "`directory` must be a path. Received: directory=None"),
    ):
        with pytest.raises(TypeError, match=message):
            callbacks.Checkpoint(**{"directory": tmp_path, "every_steps": 1, **options})  # type: ignore[arg-type]


def test_other_inputs_of_fit_are_refused(tmp_path: Path) -> None:
    model = make_model()

    def begin(data: Any, *more: Any, resumable: bool = True, **options: Any) -> None:
        checkpoint = callbacks.Checkpoint(tmp_path, every_steps=3)
        resumable_data = checkpoint.dataset(make) if resumable else None
        model.fit(resumable_data if data is None else data, callbacks=[checkpoint, *more], verbose=0, **options)

    with pytest.raises(ValueError, match=r"has every_steps, and fit was not given checkpoint\.dataset"):
        begin(make(0), resumable=False)
    with pytest.raises(ValueError, match="fit makes 5 steps per epoch, but"):
        begin(make(0))
    with pytest.raises(ValueError, match="fit makes 4 steps per epoch, but"):
        begin(None, steps_per_epoch=4)
    with pytest.raises(ValueError, match="fit uses another dataset"):
        begin(make(0).filter(lambda *_: True))
    with pytest.raises(UnsupportedError, match="BackupAndRestore"):
        begin(None, keras.callbacks.BackupAndRestore(tmp_path / "backup"))
    with pytest.raises(UnsupportedError, match=r"two tsps\.callbacks\.Checkpoint"):
        begin(None, callbacks.Checkpoint(tmp_path, every_steps=1))


def test_data_that_cannot_be_gone_on_with_is_refused(tmp_path: Path) -> None:
    model = make_model()
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    with pytest.raises(TypeError, match=r"make\(0\) must return a tf.data.Dataset of batches. Received: list"):
        checkpointer.dataset(lambda epoch: [1])  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="without end"):
        ResumableDataset(lambda epoch: make(epoch).repeat(), checkpointer.position).batches(0)
    data = checkpointer.dataset(lambda epoch: make(epoch) if epoch == 0 else make(epoch).map(lambda x, y: x))
    checkpointer.position.go_to(1, 0)
    with pytest.raises(tf.errors.OpError, match="must return batches like those of make"):
        list(data)


def test_checkpoints_of_another_run_are_not_mixed_with_this_ones(tmp_path: Path) -> None:
    model, other_model = make_model(), make_model()
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    checkpointer.save(5)
    checkpointer.save(6)
    checkpointer.wait()
    with pytest.raises(ValueError, match="has a checkpoint of step 6, and this one is of step 2"):
        checkpointer.save(2)
    other_checkpointer = tsps.Checkpointer(tmp_path, other_model, other_model.optimizer)
    with pytest.raises(StateError, match=r"step-000000000006 and 1 more, .* call restore\(\)"):
        other_checkpointer.save(7)
    other_checkpointer.restore()
    other_checkpointer.save(7)
    other_checkpointer.wait()
    assert folders(tmp_path) == [f"step-{step:012d}" for step in (5, 6, 7)]


def test_other_models_and_optimizers_are_refused_by_name(tmp_path: Path) -> None:
    model = make_model()
    tsps.Checkpointer(tmp_path, model, model.optimizer, background=False).save()
    for other_model, text in (
        (make_model(n_tables=2), r"the model has 2 tables, \['table0', 'table1'\], and checkpoint .* has 1"),
        (make_model(width=4), r"table 'table0' has {'dim': 4, .* of checkpoint .* has {'dim': 3"),
        (make_model(optimizer=keras.optimizers.SGD(0.1)), r"dense variables, checkpoint .* here nothing, stored \S+"),
    ):
        other_model.optimizer.build(other_model.trainable_variables)
        unchanged = content(other_model)
        with pytest.raises(ValueError, match=text):
            tsps.Checkpointer(tmp_path, other_model, other_model.optimizer).restore()
        must_equal(content(other_model), unchanged)


def test_restoring_after_the_first_step_is_refused(tmp_path: Path) -> None:
    model = make_model()
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    assert checkpointer.restore() is None
    checkpointer.save()
    model.fit(make(0), verbose=0)
    with pytest.raises(StateError, match="training has begun"):
        checkpointer.restore()


def _mix(path: Path, file: str, source: Path) -> None:
    """Replaces a file of a checkpoint by that of another one, and adapts the manifest."""
    data = (path / manifest.NAME).read_bytes()
    content = manifest.Manifest.decode(data, "")
    shutil.copy(source / file, path / file)
    entry = manifest.FileEntry(file, (path / file).stat().st_size, stored_checkpoint.file_crc32(path / file))
    files = tuple(entry if old_entry.name == file else old_entry for old_entry in content.files)
    (path / manifest.NAME).write_bytes(dataclasses.replace(content, files=files).encode())


def test_parts_of_different_steps_are_refused_by_name(tmp_path: Path) -> None:
    saved_model = make_model()
    fit(saved_model, callbacks.Checkpoint(tmp_path / "a", every_steps=2, incremental=False), epochs=1)
    names = folders(tmp_path / "a")
    step = tables.committed_step()
    assert cli.main(["checkpoint", "verify", str(tmp_path / "a")]) == 0
    for file, text in (
        ("t0000-table0.tfsps", f"table 'table0' at step {step - 1}, and the checkpoint's other tables .* step {step}:"),
        (manifest.VARIABLES, "variables.npz is of step 4 .* and the checkpoint's manifest of step 5"),
    ):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        _mix(tmp_path / "b" / names[-1], file, tmp_path / "b" / names[-2])
        restored_model = make_model()
        with pytest.raises(StateError, match=text):
            tsps.Checkpointer(tmp_path / "b", restored_model, restored_model.optimizer).restore()
        assert cli.main(["checkpoint", "verify", str(tmp_path / "b")]) == 1


def test_variables_beside_the_model_that_the_optimizer_trains_are_refused(tmp_path: Path) -> None:
    model, extra_layer = make_model(), keras.layers.Dense(1)
    extra_layer.build((None, 2))
    model.optimizer.build([*model.trainable_variables, *extra_layer.trainable_variables])
    with pytest.raises(StateError, match=r"the optimizer trains .*kernel.* no variable of model"):
        tsps.Checkpointer(tmp_path, model, model.optimizer, background=False).save()


# --- failed saves ---


def _full(reached: str) -> None:
    if reached == "file_written":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_training_goes_on_when_the_disk_is_full_and_the_next_save_works(tmp_path: Path) -> None:
    class Fill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            n_updates = int(self.model.optimizer.iterations)
            fault_points.set_action(_full if 3 <= n_updates < 7 else None)

    model = make_model()
    checkpoint = callbacks.Checkpoint(tmp_path, every_steps=2, incremental=False, background=False)
    with pytest.warns(UserWarning, match=r"a checkpoint of step [46] was not saved to .*No space.* Training continues"):
        model.fit(checkpoint.dataset(make), epochs=2, callbacks=[Fill(), checkpoint], verbose=0)
    assert folders(tmp_path) == ["step-000000000002", "step-000000000008", "step-000000000010"]


def test_the_first_checkpoint_must_work(tmp_path: Path) -> None:
    fault_points.set_action(_full)
    model = make_model()
    with pytest.raises(NotSavedError, match="of step 0 was not saved to"):
        fit(model, callbacks.Checkpoint(tmp_path, every_steps=2))
    assert int(model.optimizer.iterations) == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file"):
        fit(model, callbacks.Checkpoint(tmp_path / "file", every_steps=2))


# --- time ---


def test_ranks_save_when_time_has_passed_on_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [100.0]
    monkeypatch.setattr(rank_clock.time, "monotonic", lambda: time[0])

    class Ranks:
        asked = 0

        def broadcast_object(self, value: Any, root: int, name: str) -> Any:
            self.asked += 1
            return value

    ranks = Ranks()
    clock = rank_clock.RankClock(60.0, ranks, 7, "test.clock")  # type: ignore[arg-type]
    saved = []
    for n_updates in range(8, 2008):
        time[0] += 0.25
        if clock.is_time(n_updates):
            saved.append(time[0])
    gaps = np.diff([100.0, *saved])
    assert (gaps >= 60.0).all()
    assert (gaps < 66.0).all()
    assert len(saved) >= 7
    assert ranks.asked < 120


def test_stored_arrays_are_those_of_the_manifest(tmp_path: Path) -> None:
    model = make_model()
    path = Path(tsps.Checkpointer(tmp_path, model, model.optimizer, background=False).save())
    content = stored_checkpoint.check(path).manifest
    facts, arrays = array_file.read(path / manifest.VARIABLES)
    assert facts["id"] == content.id
    shapes = {number: list(array.shape) for number, array in arrays}
    assert [shapes[number] for number in range(len(shapes))] == [entry["shape"] for entry in content.variables]
    # Keras 2 makes metrics at the first batch.
    kinds = {"weight", "optimizer", "metric"} if _keras.IS_KERAS_3 else {"weight", "optimizer"}
    assert {entry["kind"] for entry in content.variables} == kinds
