"""A checkpoint that is written during training contains the step at which `save` was called."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tables_support import dense, dense_of_checkpoint, kinds, make_model, of_checkpoint, of_tables, train

import tf_sparse_ps as tsps
from tf_sparse_ps.checkpoints import fault_points, save_in_progress, tables
from tf_sparse_ps.checkpoints.captured import Captured
from tf_sparse_ps.errors import NotSavedError, UnavailableError, WriterLockedError

pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")
HERE = Path(__file__).resolve().parent


class Gate:
    """Stops the writing thread at a fault point until the gate is opened."""

    def __init__(self, point: str) -> None:
        self._point, self._open, self.reached = point, threading.Event(), threading.Event()
        self._trains = threading.get_ident()
        fault_points.set_action(self._pass)

    def _pass(self, point: str) -> None:
        if point == self._point and not self._open.is_set():
            assert threading.get_ident() != self._trains, f"the training thread reached {point}"
            self.reached.set()
            assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that closes before the first file (dense weights) is complete, when no row was written yet."""
    closed_gate = Gate("file_written")
    yield closed_gate
    closed_gate.open()


@pytest.mark.parametrize("incremental", [False, True])
def test_a_checkpoint_is_of_the_step_at_which_it_was_saved(tmp_path: Path, incremental: bool, gate: Gate) -> None:
    model, random = make_model(2), np.random.default_rng(0)
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer, incremental=incremental)
    train(model, random, 500)
    if incremental:
        fault_points.set_action(None)
        checkpointer.save()
        checkpointer.wait()
        fault_points.set_action(gate._pass)
        train(model, random)
    expected = of_tables(model), dense(model)
    path = checkpointer.save()
    assert gate.reached.wait(60)
    for _ in range(5):
        train(model, random, 300, keys=600)
    assert not Path(path).exists()
    assert of_tables(model)[0] != expected[0][0]
    gate.open()
    checkpointer.wait()
    assert kinds(path) == ["changes" if incremental else "all"] * 2
    assert of_checkpoint(path) == expected[0]
    for value, expected_value in zip(dense_of_checkpoint(path), expected[1], strict=True):
        np.testing.assert_array_equal(value, expected_value)
    # The next increment contains what was trained meanwhile.
    path = checkpointer.save()
    checkpointer.wait()
    assert of_checkpoint(path) == of_tables(model)


def test_the_test_fails_if_rows_are_read_when_they_are_written(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Captured.write

    def late(self: Any, *arguments: Any) -> Any:
        self._scan, self._n_rows = self_model[0].reader().scan(), None
        return write(self, *arguments)

    monkeypatch.setattr(Captured, "write", late)
    model, random = make_model(), np.random.default_rng(0)
    self_model = tables.of(model)
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    train(model, random, 500)
    expected = of_tables(model)
    path = checkpointer.save()
    train(model, random, 300)
    gate.open()
    checkpointer.wait()
    assert of_checkpoint(path) != expected


def test_dense_weights_are_copied_when_save_is_called(tmp_path: Path, gate: Gate) -> None:
    model = make_model()
    train(model, np.random.default_rng(1))
    note = tf.Variable([1.0, 2.0, 3.0])
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer, extra={"note": note})
    fault_points.set_action(None)
    begun = threading.Event()
    run = save_in_progress.SaveInProgress._run

    def late(self: Any) -> None:
        assert begun.wait(60)
        run(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save_in_progress.SaveInProgress, "_run", late)
        path = checkpointer.save()
        for _ in range(3):
            note.assign_add([10.0, 10.0, 10.0])  # in place
        begun.set()
        checkpointer.wait()
    assert any(np.array_equal(value, [1.0, 2.0, 3.0]) for value in dense_of_checkpoint(path))


def test_the_next_save_and_latest_wait_for_the_one_before(tmp_path: Path, gate: Gate) -> None:
    model, random = make_model(), np.random.default_rng(2)
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    train(model, random)
    path_1 = checkpointer.save()
    train(model, random)
    opened = threading.Timer(0.5, gate.open)
    opened.start()
    assert checkpointer.latest() == path_1
    path_2 = checkpointer.save()
    checkpointer.wait()
    assert checkpointer.latest() == path_2
    opened.join()


def test_an_error_is_told_by_the_next_call_once_and_training_goes_on(tmp_path: Path) -> None:
    def full(point: str) -> None:
        if point == "manifest_written":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model, random = make_model(), np.random.default_rng(3)
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    fault_points.set_action(full)
    for call in (checkpointer.wait, checkpointer.save):
        train(model, random)
        checkpointer.save()
        assert not checkpointer.unsaved
        with pytest.raises(NotSavedError, match=r"a checkpoint of step . was not saved to .*: OSError: .* No space"):
            call()
        assert checkpointer.unsaved
        checkpointer.wait()
        assert list(tmp_path.iterdir()) == []
    fault_points.set_action(None)
    path = checkpointer.save()
    checkpointer.wait()
    assert of_checkpoint(path) == of_tables(model)


def test_images_that_find_no_room_make_the_next_save_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If training changes more rows than the scan can preserve, the next save is written between two steps."""
    write, start = Captured.write, save_in_progress.SaveInProgress.start
    in_background_calls: list[bool] = []  # for each save, whether it runs in the background

    def begin(self: Any, *, in_background: bool) -> None:
        in_background_calls.append(in_background)
        start(self, in_background=in_background)

    def no_room(self: Any, *arguments: Any) -> Any:
        if in_background_calls[-1]:
            raise UnavailableError("more rows were written than there is room for")
        return write(self, *arguments)

    monkeypatch.setattr(save_in_progress.SaveInProgress, "start", begin)
    monkeypatch.setattr(Captured, "write", no_room)
    model = make_model()
    train(model, np.random.default_rng(4))
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    checkpointer.save()
    with pytest.raises(NotSavedError, match="room"):
        checkpointer.wait()
    path = checkpointer.save()
    assert of_checkpoint(path) == of_tables(model)
    checkpointer.wait()
    checkpointer.save()  # this save runs in the background again
    with pytest.raises(NotSavedError, match="room"):
        checkpointer.wait()


def test_another_process_cannot_save_beside_it(tmp_path: Path, gate: Gate) -> None:
    from tf_sparse_ps.checkpoints.directory import CheckpointDirectory

    model = make_model()
    train(model, np.random.default_rng(5))
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    checkpointer.save()
    with (
        pytest.raises(WriterLockedError, match="is being written by rank 0"),
        CheckpointDirectory(tmp_path).saving(9, "another"),
    ):
        pass
    gate.open()
    checkpointer.wait()


def test_more_tables_than_scans_are_captured(tmp_path: Path) -> None:
    model = make_model(12)
    train(model, np.random.default_rng(6))
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    path = checkpointer.save()
    checkpointer.wait()
    assert of_checkpoint(path) == of_tables(model)


_PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import tf_sparse_ps as tsps
from tables_support import make_model, train
from tf_sparse_ps.checkpoints import fault_points

def slow(point):
    if point == "file_written":
        time.sleep(0.5)
        if sys.argv[3] == "fail":
            raise OSError("no room")

model = make_model()
train(model, np.random.default_rng(0))
fault_points.set_action(slow)
print(tsps.Checkpointer(sys.argv[2], model, model.optimizer).save())
"""


@pytest.mark.parametrize("how", ["work", "fail"])
@pytest.mark.daily_cases(1)
def test_a_process_ends_when_its_save_has(tmp_path: Path, how: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _PROGRAM, str(HERE), str(tmp_path), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    path = done.stdout.split()[-1]
    if how == "work":
        assert len(of_checkpoint(path)[0]) > 0
        assert "was not saved" not in done.stderr
    else:
        assert not Path(path).exists()
        assert f"tf_sparse_ps: checkpoint {path} was not saved: OSError: no room" in done.stderr


def test_fit_waits_for_the_last_save_and_warns_of_one_that_failed(tmp_path: Path) -> None:
    failing = threading.Event()

    def full(point: str) -> None:
        if point == "manifest_written" and failing.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    random = np.random.default_rng(7)
    x, y = random.integers(0, 50, (40, 2)), random.normal(size=(40, 1)).astype(np.float32)

    def make(epoch: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)

    class Fail(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            failing.set() if 3 <= int(self.model.optimizer.iterations) < 7 else failing.clear()

    fault_points.set_action(full)
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, every_steps=2, keep=9)
    with pytest.warns(UserWarning, match=r"a checkpoint of step [46] was not saved to .*No space.* Training continues"):
        model.fit(checkpoint.dataset(make), epochs=1, callbacks=[Fail(), checkpoint], verbose=0)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "step-000000000000"
    assert names[-1] == "step-000000000010"
    assert len(names) < 6
    assert of_checkpoint(tmp_path / names[-1]) == of_tables(model)
