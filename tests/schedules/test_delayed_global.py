"""DelayedGlobal: its options, its refusals, and its results on one rank."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

keras = tf.keras
Delayed = tsps.schedules.DelayedGlobal


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"staleness": 0}, "staleness must be an integer of at least 1. Received: 0"),
        ({"cycle": 1.5}, "cycle must be an integer"),
        ({"apply": "oldest"}, "apply must be one of"),
        ({"sparse": 1}, "sparse must be a bool"),
        ({"late_after_s": 0.0}, "late_after_s must be a positive number"),
        ({"late_after_s": 1.0, "reproducible": True}, "differs from run to run"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Delayed(**options)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), "cannot clip"),
        (lambda: keras.optimizers.Adam(clipvalue=1.0), "cannot clip"),
        (lambda: keras.optimizers.Adam(global_clipnorm=1.0), "cannot clip"),
        (lambda: keras.optimizers.Adam(weight_decay=0.01), "weight decay"),
        (lambda: keras.optimizers.RMSprop(), "RMSprop"),
    ],
)
def test_optimizers_that_cannot_be_delayed_are_refused(optimizer: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tsps.DistributedOptimizer(optimizer(), sparse_optimizer="sgd", schedule=Delayed())


def test_replicas_of_a_strategy_are_refused_and_other_collectives_are_not() -> None:
    with pytest.raises(ValueError, match=r"under a tf\.distribute strategy.*local steps.*'horovod' and 'tensorflow'"):
        Delayed().refuse(keras.optimizers.SGD(0.1), types.SimpleNamespace(kind="tf.distribute", size=2))
    for kind in ("horovod", "tensorflow"):
        Delayed().refuse(keras.optimizers.SGD(0.1), types.SimpleNamespace(kind=kind, size=2))


@pytest.mark.skipif(not _keras.IS_KERAS_3, reason="an option of Keras 3")
def test_a_loss_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="loss_scale_factor"):
        tsps.DistributedOptimizer(keras.optimizers.SGD(0.1, loss_scale_factor=8.0), schedule=Delayed())


def test_the_schedule_is_part_of_the_configuration() -> None:
    schedule = Delayed(3, 7, apply="newest", sparse=False, late_after_s=0.5)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=schedule)
    assert tsps.DistributedOptimizer.from_config(optimizer.get_config()).schedule == schedule


def train(schedule: Any) -> tuple[list[np.ndarray], np.ndarray, Any]:
    """Trains a model, and returns dense weights, rows and the optimizer."""
    keras.utils.set_random_seed(1)
    ids = keras.layers.Input((3,), dtype="int64")
    layer = tsps.Embedding(40, 4, embeddings_initializer="zeros")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1), schedule=schedule), "mse")
    x = np.random.default_rng(0).integers(0, 40, (64, 3))
    model.fit(x, (x % 5).sum(1), batch_size=8, epochs=2, verbose=0, shuffle=False, callbacks=[tsps.callbacks.Drain()])
    return model.layers[-1].get_weights(), np.asarray(layer(tf.range(40))), model.optimizer


def test_on_one_rank_nothing_is_delayed() -> None:
    (weights, rows, optimizer), (plain_weights, plain_rows, _) = train(Delayed(staleness=2)), train(None)
    for weight, plain_weight in zip(weights, plain_weights, strict=True):
        np.testing.assert_array_equal(weight, plain_weight)
    np.testing.assert_array_equal(rows, plain_rows)
    assert not optimizer._step_builder.outstanding()


def test_drain_needs_our_optimizer() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Drain needs a DistributedOptimizer"):
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=[tsps.callbacks.Drain()])
