"""After a signal, `fit` saves at the next step and raises SystemExit. The same command resumes at the next batch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fit_support import BATCH, BATCHES, EXTRA, IDS, Y, keras, make_model, must_equal

import tf_sparse_ps as tsps
from tf_sparse_ps.checkpoints import fault_points
from tf_sparse_ps.errors import UnsupportedError

EPOCHS = 3
LAST = EPOCHS * BATCHES


class Send(keras.callbacks.Callback):
    """Sends this process signals after a number of updates, or at the end of that step's epoch."""

    def __init__(self, at: int, *numbers: int, when: str = "batch") -> None:
        super().__init__()
        self._at, self._numbers, self._when = at, numbers, when

    def _send(self, when: str) -> None:
        if when == self._when and int(tf.convert_to_tensor(self.model.optimizer.iterations)) == self._at:
            for number in self._numbers:
                signal.raise_signal(number)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._send("batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._send("epoch")

    def on_train_end(self, logs: Any = None) -> None:
        self._send("end")


class Ends(keras.callbacks.Callback):
    """Counts the epochs that have ended. The learning rate depends on it, so a lost count changes the training."""

    count = 0

    def get_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1
        self.model.optimizer.learning_rate.assign(0.01 / (1 + self.count))


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of this process must be those from before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


def run(folder: Path, *others: Any, other_input: bool = False, validates: bool = False) -> Any:
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(folder, keep=99, on_preemption=True)
    if other_input:
        data: dict[str, Any] = {"x": [IDS, EXTRA], "y": Y, "batch_size": BATCH, "shuffle": False}
    else:
        data = {"x": checkpoint.dataset((IDS, EXTRA), Y, batch_size=BATCH, shuffle=True)}
    if validates:
        data["validation_data"] = ([IDS, EXTRA], Y)
    model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=[*others, Ends(), checkpoint])
    return model


def preempted(folder: Path, *others: Any, **options: Any) -> int:
    """Runs the job until a signal ends it; returns the status."""
    with pytest.raises(SystemExit) as ended:
        run(folder, *others, **options)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("whole"))


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))


def test_the_next_step_is_saved_and_the_restart_equals_an_uninterrupted_run(
    tmp_path: Path, whole: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert preempted(tmp_path, Send(3, signal.SIGTERM)) == 143
    assert "rank 0 got SIGTERM, so this job ends with status 143. It was saved" in capfd.readouterr().err
    assert steps(tmp_path) == [0, 3]
    # At the last batch of an epoch; a signal that comes twice, as from a launcher and from a scheduler.
    assert preempted(tmp_path, Send(BATCHES, signal.SIGINT, signal.SIGINT)) == 130
    assert "resumes at batch 0 of epoch 1" in capfd.readouterr().err
    assert preempted(tmp_path, Send(2 * BATCHES, signal.SIGTERM, signal.SIGTERM, signal.SIGINT, when="epoch")) == 143
    # When nothing is left to train, the job still ends with the status.
    assert preempted(tmp_path, Send(LAST, signal.SIGTERM, when="end")) == 143
    assert steps(tmp_path)[-1] == LAST
    must_equal(run(tmp_path), whole)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_many_random_moments(tmp_path: Path, whole: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    for at in sorted(random.integers(1, LAST + 1, 10)):
        when = random.choice(["batch", "epoch"] if at % BATCHES == 0 else ["batch"])
        others = [Send(int(at), int(random.choice([signal.SIGTERM, signal.SIGINT])), when=str(when))]
        if steps(tmp_path) and steps(tmp_path)[-1] >= at:
            continue
        assert preempted(tmp_path, *others, validates=bool(random.integers(2))) in (130, 143)
        assert steps(tmp_path)[-1] == at
    must_equal(run(tmp_path), whole)


def test_other_inputs_lose_the_epoch_and_the_message_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert preempted(tmp_path / "a", Send(BATCHES + 2, signal.SIGTERM), other_input=True) == 143
    assert "resumes at the beginning of epoch 1: the 2 steps of this epoch are lost" in capfd.readouterr().err
    assert steps(tmp_path / "a") == [0, BATCHES]
    # Its last step is known to be the last one of the epoch, which therefore ends.
    assert preempted(tmp_path / "a", Send(2 * BATCHES, signal.SIGTERM), other_input=True) == 143
    assert "It was saved, and the same command resumes at batch 0 of epoch 2" in capfd.readouterr().err
    must_equal(run(tmp_path / "a", other_input=True), run(tmp_path / "b", other_input=True))


def test_a_save_that_fails_is_named_and_the_job_still_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                fault_points.set_action(fail)

    def fail(point: str) -> None:
        raise OSError(28, "No space left on device")

    assert preempted(tmp_path, Fail(), Send(3, signal.SIGTERM)) == 143
    text = capfd.readouterr().err
    assert "a checkpoint of step 3 was not saved" in text
    assert "The same command resumes from the checkpoint before" in text
    assert steps(tmp_path) == [0]


def test_the_programs_own_handler_is_called_after_the_save(tmp_path: Path) -> None:
    found: list[Any] = []

    def note(number: int, _: Any) -> None:
        found.append((number, steps(tmp_path), signal.getsignal(signal.SIGTERM) is note))

    before = signal.signal(signal.SIGTERM, note)
    try:
        assert preempted(tmp_path, Send(3, signal.SIGTERM)) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found == [(signal.SIGTERM, [0, 3], True)]


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        run(tmp_path, Send(3, signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_no_step_follows_gets_the_handler_from_before(tmp_path: Path) -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                signal.raise_signal(signal.SIGTERM)
                raise ValueError("of the program")

    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    try:
        with pytest.raises(ValueError, match="of the program"):
            run(tmp_path, Fails())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found == [signal.SIGTERM]


def test_a_later_interrupt_ends_the_step_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tf_sparse_ps.callbacks.preemption._SAME_S", -1.0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Send(3, signal.SIGINT, signal.SIGINT))


def test_a_fit_of_another_thread_is_refused(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def train() -> None:
        try:
            run(tmp_path)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    thread.join()
    assert isinstance(errors[0], UnsupportedError)
    assert "runs in thread 'trainer'. Call fit in the main thread" in str(errors[0])
