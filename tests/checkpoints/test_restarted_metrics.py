"""After a restart, the metrics of `fit` equal those of an uninterrupted run, and callbacks that watch them agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras, _keras_state
from tf_sparse_ps.checkpoints import tables

keras = _keras.keras
BATCHES, LIMIT = 4, 30
NOISY = 1  # the number of an epoch whose loss is far above that of the others
ONLY_KERAS_3 = pytest.mark.skipif(not _keras.IS_KERAS_3, reason="Keras 2 makes metrics with the first batch")


class Ended(Exception):
    """Ends a job in the middle."""


class End(keras.callbacks.Callback):
    """Ends the job after a number of updates."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self._at = at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(tf.convert_to_tensor(self.model.optimizer.iterations)) == self._at:
            raise Ended


def make(epoch: int) -> tf.data.Dataset:
    random = np.random.default_rng(epoch)
    x = random.integers(0, LIMIT, (4 * BATCHES, 2))
    y = 3 + random.normal(size=(4 * BATCHES, 1)) * (10 if epoch == NOISY else 0.1)
    return tf.data.Dataset.from_tensor_slices((x, y.astype(np.float32))).batch(4, drop_remainder=True)


def make_model(**of_embedding: Any) -> Any:
    """Returns a model with fixed initial weights. Tables of one process would begin with different values."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((2,), dtype="int64")
    rows = keras.layers.Flatten()(tsps.Embedding(LIMIT, 3, **of_embedding)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(rows))
    metrics = ["mae", keras.metrics.MeanAbsolutePercentageError(name="percent")]
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", metrics=metrics, jit_compile=False)
    for binding in tables.of(model):
        binding.assign(np.arange(LIMIT), np.random.default_rng(0).normal(size=(LIMIT, 3)).astype(np.float32))
    return model


def run(folder: Path, every: int, end_at: int | None = None, epochs: int = 4, watching: bool = False) -> Any:
    """Starts or resumes the job of `folder`. Returns the logs of `fit` by epoch."""
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(folder, every_steps=every, background=False)
    watchers = [keras.callbacks.EarlyStopping("loss", patience=2)] if watching else []
    try:
        history = model.fit(
            checkpoint.dataset(make), epochs=epochs, verbose=0, callbacks=[End(end_at), *watchers, checkpoint]
        )
    except Ended:
        assert end_at is not None
        return {}
    assert end_at is None
    return {
        epoch: {name: values[i] for name, values in history.history.items()} for i, epoch in enumerate(history.epoch)
    }


@pytest.mark.parametrize(
    ("every", "end_at"),
    [
        pytest.param(BATCHES, 2 * BATCHES + 1, id="behind an epoch's end"),
        pytest.param(3, 7, id="in mid-epoch", marks=ONLY_KERAS_3),
        pytest.param(1, 2 * BATCHES + 3, id="behind its last batch but one", marks=ONLY_KERAS_3),
    ],
)
@pytest.mark.daily_cases(1)
def test_epochs_behind_a_restart_have_the_metrics_of_an_uninterrupted_run(
    tmp_path: Path, every: int, end_at: int
) -> None:
    uninterrupted = run(tmp_path / "whole", every)
    run(tmp_path / "broken", every, end_at=end_at)
    restarted = run(tmp_path / "broken", every)
    assert sorted(restarted) == list(range(end_at // BATCHES, 4))
    assert set(uninterrupted[0]) == {"loss", "mae", "percent"}
    for epoch, logs in restarted.items():
        assert logs == uninterrupted[epoch], epoch


def test_more_epochs_of_a_job_that_had_ended_have_metrics_of_their_own(tmp_path: Path) -> None:
    uninterrupted = run(tmp_path / "whole", BATCHES)
    run(tmp_path / "more", BATCHES, epochs=NOISY + 1)
    assert run(tmp_path / "more", BATCHES) == {epoch: uninterrupted[epoch] for epoch in (2, 3)}


def test_who_watches_a_metric_ends_training_where_it_would_have(tmp_path: Path) -> None:
    uninterrupted = run(tmp_path / "whole", BATCHES, epochs=6, watching=True)
    run(tmp_path / "broken", BATCHES, end_at=2 * BATCHES + 1, epochs=6, watching=True)
    restarted = run(tmp_path / "broken", BATCHES, epochs=6, watching=True)
    assert max(restarted) == max(uninterrupted) > NOISY + 1


@ONLY_KERAS_3
def test_metrics_that_cannot_be_given_their_values_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, 3, end_at=7)
    monkeypatch.setattr(_keras_state, "build_metrics", lambda *_: None)
    with pytest.warns(UserWarning, match="metrics of epoch 1 are from batch 2 on"):
        run(tmp_path, 3)


def test_a_fit_with_another_optimizer_or_model_is_refused(tmp_path: Path) -> None:
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(tmp_path / "a", every_steps=3)
    model.fit(checkpoint.dataset(make), epochs=1, verbose=0, callbacks=[checkpoint])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.001)), "mse")
    with pytest.raises(ValueError, match=r"another optimizer than the one before, .*model\.compile made a new"):
        model.fit(checkpoint.dataset(make), epochs=2, verbose=0, callbacks=[checkpoint])
    with pytest.raises(ValueError, match="another model than the one before"):
        make_model().fit(checkpoint.dataset(make), epochs=2, verbose=0, callbacks=[checkpoint])
    new_checkpoint = tsps.callbacks.Checkpoint(tmp_path / "b", every_steps=3)
    model.fit(new_checkpoint.dataset(make), epochs=2, verbose=0, callbacks=[new_checkpoint])
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 2 * BATCHES


@pytest.mark.parametrize("around", ["nothing", "prefetch", "lookahead"])
@pytest.mark.daily_cases(1)
def test_a_fit_that_has_the_dataset_and_not_the_callback_is_refused(tmp_path: Path, around: str) -> None:
    model = make_model(**({"cache": tsps.DeviceCache(rows=LIMIT)} if around == "lookahead" else {}))
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, every_steps=3)
    data = checkpoint.dataset(make)
    if around == "prefetch":
        data = data.map(lambda x, y: (x, y)).prefetch(1)
    elif around == "lookahead":
        data = tsps.lookahead(data, model)
    with pytest.raises(ValueError, match=r"without the callback.* Give fit callbacks=\[checkpoint\]"):
        model.fit(data, verbose=0)
    model.fit(data, verbose=0, callbacks=[checkpoint])
    model.evaluate(checkpoint.dataset(make), verbose=0)
    model.fit(make(0), verbose=0)


def test_a_fit_behind_steps_without_the_callback_is_refused_at_once(tmp_path: Path) -> None:
    """Such a job could not be restarted."""
    model = make_model()
    model.fit(make(0), verbose=0)
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, every_steps=3)
    with pytest.raises(tsps.errors.StateError, match=r"training has begun, and has made 4 updates.* first fit"):
        model.fit(checkpoint.dataset(make), verbose=0, callbacks=[checkpoint])
    assert not list(tmp_path.glob("step-*"))
