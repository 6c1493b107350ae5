"""`callbacks.Checkpoint` saves the state of other callbacks of `fit`; after a restart they resume with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps import callbacks
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import array_file, callback_states, directory, manifest, stored_checkpoint, tables
from tf_sparse_ps.errors import DamagedFileError, StateError, UnsupportedError

keras = _keras.keras
BATCHES, LIMIT = 4, 30
Seen = list[tuple[int, float, float]]


class Ended(Exception):
    """Ends a job in the middle."""


class Score(keras.callbacks.Callback):
    """Logs a metric that improves in the first epochs only, and ends the job after a number of updates."""

    def __init__(self, end_at: int | None, note: Callable[[tuple[int, float, float]], None]) -> None:
        super().__init__()
        self._end_at, self._note = end_at, note

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._end_at is not None and int(tf.convert_to_tensor(self.model.optimizer.iterations)) == self._end_at:
            raise Ended

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert logs is not None
        logs["score"] = float(max(5 - epoch, 3) + 0.1 * (epoch % 2))
        rate = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))
        self._note((epoch, logs["score"], rate))


class Counter(keras.callbacks.Callback):
    """A callback of a user, with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.batches, self.last = 0, np.zeros(2, np.float32)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.last = np.float32([self.batches, -self.batches])

    def get_state(self) -> dict[str, Any]:
        return {"batches": self.batches, "last": self.last, "pair": (1, [None, "a", np.float32(0.5)])}

    def set_state(self, state: dict[str, Any]) -> None:
        self.batches, self.last = state["batches"], state["last"]
        assert state["pair"] == (1, [None, "a", np.float32(0.5)])
        assert isinstance(state["pair"][1][2], np.float32)


def make(epoch: int) -> tf.data.Dataset:
    random = np.random.default_rng(epoch)
    x = random.integers(0, LIMIT, (4 * BATCHES, 2))
    return tf.data.Dataset.from_tensor_slices((x, random.normal(size=(4 * BATCHES, 1)).astype(np.float32))).batch(4)


def make_unknown(epoch: int) -> tf.data.Dataset:
    return make(epoch).filter(lambda *_: True)


def make_model() -> Any:
    """Returns a model with fixed initial weights. Tables of one process would begin with different values."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((2,), dtype="int64")
    rows = keras.layers.Flatten()(tsps.Embedding(LIMIT, 3)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(rows))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse", jit_compile=False)
    for binding in tables.of(model):
        binding.assign(np.arange(LIMIT), np.random.default_rng(0).normal(size=(LIMIT, 3)).astype(np.float32))
    return model


def content(model: Any) -> list[Any]:
    (binding,) = tables.of(model)
    keys, rows, slots, _ = binding.reader().scan(slots=True).read()
    order = np.argsort(keys)
    return [
        keys[order],
        rows[order],
        *(array[order] for array in slots),
        *(array.numpy() for array in model.weights[1:]),
    ]


class Job:
    """The runs of one job, each in what would be a process of its own."""

    def __init__(
        self, folder: Path, make_callbacks: Callable[[], list[Any]], data: Callable[[int], tf.data.Dataset] = make
    ):
        self._folder, self._make_callbacks, self._data = folder, make_callbacks, data
        self.seen: Seen = []
        self.callbacks: list[Any] = []

    def run(self, end_at: int | None = None, epochs: int = 9, every: int = 3) -> Any:
        model = make_model()
        checkpoint = callbacks.Checkpoint(self._folder, every_steps=every, background=False)
        self.callbacks = self._make_callbacks()
        all_callbacks = [Score(end_at, self.seen.append), *self.callbacks, checkpoint]
        try:
            model.fit(checkpoint.dataset(self._data), epochs=epochs, verbose=0, callbacks=all_callbacks)
        except Ended:
            assert end_at is not None
        else:
            assert end_at is None
        return model


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "callback |the checkpoint has|.*passed over|.*not saved")
        yield


def stopping(**options: Any) -> Any:
    return keras.callbacks.EarlyStopping("score", patience=3, mode="min", **options)


def plateau() -> Any:
    return keras.callbacks.ReduceLROnPlateau("score", factor=0.5, patience=2, mode="min", cooldown=1, min_delta=0.01)


def halving() -> Any:
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.9)


CASES: dict[str, Callable[[], list[Any]]] = {
    "early stopping": lambda: [stopping()],
    "early stopping with its best weights": lambda: [stopping(restore_best_weights=True)],
    "reduced learning rate": lambda: [plateau()],
    "scheduled learning rate, and both": lambda: [halving(), plateau(), stopping()],
    "a user's": lambda: [Counter()],
}


_DAILY = ("early stopping with its best weights", "scheduled learning rate, and both")


@pytest.mark.parametrize(
    ("case", "data"),
    [
        pytest.param(case, data, id=f"{case}, {name}", marks=() if name == days else pytest.mark.nightly)
        for case in CASES
        for name, data in (("known", make), ("unknown", make_unknown))
        for days in ["known" if case in _DAILY else "unknown" if case == "a user's" else "never"]
    ],
)
@pytest.mark.daily_cases(1)
def test_a_restarted_fit_equals_an_uninterrupted_one(
    tmp_path: Path, case: str, data: Callable[[int], tf.data.Dataset]
) -> None:
    uninterrupted, restarted = Job(tmp_path / "whole", CASES[case], data), Job(tmp_path / "broken", CASES[case], data)
    expected = content(uninterrupted.run())
    stops = "stopping" in case or "both" in case
    if stops:
        assert len(uninterrupted.seen) < 9, "this case must stop early, otherwise it does not test the saved patience"
    # The job ends in mid-epoch, before and after the best epoch. Patience and cooldown span each restart.
    for end_at in (6, 13, 19):
        restarted.run(end_at=end_at)
    resumed = content(restarted.run())
    for a, b in zip(expected, resumed, strict=True):
        np.testing.assert_array_equal(a, b)
    assert sorted(set(restarted.seen)) == uninterrupted.seen
    for a, b in zip(uninterrupted.callbacks, restarted.callbacks, strict=True):
        for name in ("wait", "best", "best_epoch", "stopped_epoch", "cooldown_counter", "batches"):
            assert getattr(a, name, None) == getattr(b, name, None), name
    # Another start trains nothing.
    n = len(restarted.seen)
    for a, b in zip(expected, content(restarted.run()), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(restarted.seen) == n


@pytest.mark.nightly
def test_without_its_state_an_epoch_more_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the state, the test above would fail."""
    uninterrupted, restarted = (Job(tmp_path / name, CASES["early stopping"]) for name in ("whole", "broken"))
    uninterrupted.run()
    monkeypatch.setattr(callback_states.CallbackStates, "restore", lambda *_, **__: None)
    restarted.run(end_at=22)
    restarted.run()
    assert len(set(restarted.seen)) > len(uninterrupted.seen)


def test_the_best_of_model_checkpoint_is_kept(tmp_path: Path) -> None:
    saver = lambda: [  # noqa: E731
        keras.callbacks.ModelCheckpoint(str(tmp_path / "best.weights.h5"), "score", save_best_only=True, mode="min")
    ]
    for model in (job := Job(tmp_path / "checkpoints", saver)).run(end_at=18), job.run(epochs=5):
        assert model is not None
    assert job.callbacks[0].best == pytest.approx(3.0)
    del job
    resumed = Job(tmp_path / "checkpoints", saver)
    written = (tmp_path / "best.weights.h5").stat().st_mtime_ns
    resumed.run(epochs=8)  # no later epoch is better
    assert (tmp_path / "best.weights.h5").stat().st_mtime_ns == written


@pytest.mark.nightly
def test_training_that_stopped_goes_on_with_more_patience(tmp_path: Path) -> None:
    patience = [3]
    job = Job(tmp_path, lambda: [keras.callbacks.EarlyStopping("score", patience=patience[0], mode="min")])
    job.run()
    n = len(job.seen)
    assert n < 9
    job.run()
    assert len(job.seen) == n
    patience[0] = 5
    job.run()
    assert len(job.seen) == n + 2


def test_a_fit_that_is_ended_in_mid_epoch_goes_on_there(tmp_path: Path) -> None:
    """A handler of SIGTERM ends training in this way."""

    class End(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(tf.convert_to_tensor(self.model.optimizer.iterations)) == 6:
                self.model.stop_training = True

    uninterrupted, restarted = Job(tmp_path / "whole", list), Job(tmp_path / "broken", list)
    expected = content(uninterrupted.run(epochs=3))
    ended = Job(tmp_path / "broken", lambda: [End()]).run(epochs=3)
    assert int(tf.convert_to_tensor(ended.optimizer.iterations)) == 6
    for a, b in zip(expected, content(restarted.run(epochs=3)), strict=True):
        np.testing.assert_array_equal(a, b)


# --- warnings and refusals ---


def test_others_that_change_in_training_are_named(tmp_path: Path) -> None:
    class Careless(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.fixed, self.calls, self.losses = 3, 0, []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.calls += 1
            self.losses.append(0.0)

    with pytest.warns(UserWarning, match=r"callback Careless changes calls, losses in training.*get_state") as caught:
        Job(tmp_path, lambda: [Careless()]).run(epochs=2)
    assert sum("Careless" in str(warning.message) for warning in caught) == 1


def test_callbacks_that_are_new_or_gone_are_named(tmp_path: Path) -> None:
    Job(tmp_path, lambda: [stopping()]).run(end_at=6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Job(tmp_path, lambda: [plateau()]).run(end_at=7)
    texts = " ".join(str(warning.message) for warning in caught)
    assert "has no state of ReduceLROnPlateau: it starts from its initial state" in texts
    assert "has the state of EarlyStopping, and fit has no such callback" in texts


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    model = make_model()
    checkpoint = callbacks.Checkpoint(tmp_path, every_steps=3)
    data = checkpoint.dataset(make)
    for callback in (stopping(), plateau(), Counter()):
        with pytest.raises(
            UnsupportedError,
            match=f"{type(callback).__name__} comes after .*Put Checkpoint after {type(callback).__name__}",
        ):
            model.fit(data, verbose=0, callbacks=[checkpoint, callback])

    class Half(keras.callbacks.Callback):
        def get_state(self) -> int:
            return 1

    with pytest.raises(UnsupportedError, match=r"callback Half has one of get_state\(\) and set_state\(state\)"):
        model.fit(data, verbose=0, callbacks=[Half(), checkpoint])

    class Odd(Counter):
        def get_state(self) -> dict[str, Any]:
            return {"value": odd[0]}

    odd: list[Any] = [None]
    for odd[0] in (object(), tf.constant(1), np.array(["text"]), {1: 2}):
        with pytest.raises(TypeError, match="the state of callback Odd has a"):
            model.fit(data, verbose=0, callbacks=[Odd(), checkpoint])
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 0


class Ranks:
    """Rank `rank` of two ranks. `peer_values`: The values that the other rank sends, by name."""

    def __init__(self, rank: int, peer_values: dict[str, Any]) -> None:
        self.rank, self.size, self._peer_values = rank, 2, peer_values

    def allgather_object(self, value: Any, name: str) -> list[Any]:
        return [value, self._peer_values[name]] if self.rank == 0 else [self._peer_values[name], value]


def test_each_rank_gets_its_own_state_and_equal_arrays_are_stored_once(tmp_path: Path) -> None:
    class Part(Counter):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self._rank = rank

        def get_state(self) -> dict[str, Any]:
            return {"same": np.arange(1000.0), "own": np.float32([self._rank, np.nan]), "best": np.inf}

    sent: dict[str, Any] = {}

    class Recorder(Ranks):
        def allgather_object(self, value: Any, name: str) -> list[Any]:
            sent[name] = value
            rank_0_value = (None, ([], [f"float64[1000]-{same}"])) if name.endswith("callbacks") else {}
            return [rank_0_value, value]

    import hashlib

    same = hashlib.blake2b(np.arange(1000.0).view(np.uint8), digest_size=16).hexdigest()
    callback_states.CallbackStates([Part(1)]).capture(Recorder(1, {}), keep=False)  # type: ignore[arg-type]
    assert [name[:7] for name in sent["tsps.checkpoint.callbacks.arrays"]] == ["float32"], (
        "rank 1 must not send an array that rank 0 has"
    )
    captured = callback_states.CallbackStates([Part(0)]).capture(Ranks(0, sent), keep=True)  # type: ignore[arg-type]
    stamp = {"step": 3, "table_step": 2, "id": "x"}
    assert list(captured.write(tmp_path, stamp)) == [manifest.CALLBACKS]
    _, arrays = array_file.read(tmp_path / manifest.CALLBACKS)
    assert sorted(array.size for _, array in arrays) == [2, 2, 1000]
    for rank in range(2):
        ((name, state),) = callback_states.read(tmp_path, stamp, rank, 2)
        assert (name, state["best"]) == ("Part", np.inf)
        np.testing.assert_array_equal(state["own"], np.float32([rank, np.nan]))
    with pytest.warns(UserWarning, match="was saved by 2 ranks, whose callbacks' states differed"):
        ((_, state),) = callback_states.read(tmp_path, stamp, 2, 3)
    assert state["own"][0] == 0
    with pytest.raises(StateError, match="not of one step"):
        callback_states.read(tmp_path, stamp | {"step": 4}, 0, 2)
    array_file.write(tmp_path / manifest.CALLBACKS, [], stamp | {"records": [[["Part", {"odd": 1, "more": 2}]]]})
    with pytest.raises(DamagedFileError, match=r"callbacks.npz is damaged"):
        callback_states.read(tmp_path, stamp, 0, 1)


def test_a_checkpoint_without_such_callbacks_has_no_file_of_them(tmp_path: Path) -> None:
    Job(tmp_path, list).run(epochs=1)
    (newest, *_) = directory.CheckpointDirectory(tmp_path).find()
    assert manifest.CALLBACKS not in {file.name for file in stored_checkpoint.check(newest.path).manifest.files}
