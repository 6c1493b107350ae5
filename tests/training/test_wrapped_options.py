"""Options that are set on a DistributedOptimizer act on tables and dense weights alike, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from models import DIM, KERAS_3, ROWS, keras

import tf_sparse_ps as tsps

IDS, TARGETS = np.array([[1, 2]] * 8), np.zeros((8, 1), np.float32)


def one_step(optimizer: Any, **options: Any) -> tuple[float, float]:
    """Returns how far the kernel and a row have moved after a step. Both start as ones."""
    layer = tsps.Embedding(ROWS, DIM, "ones", **options)
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), dense])
    model.compile(optimizer, "mse")
    model.fit(IDS, TARGETS, verbose=0)
    return float(1 - dense.get_weights()[0][0, 0]), float(1 - layer.get_weights()[0][1, 0])


def adamw(**options: Any) -> Any:
    return keras.optimizers.AdamW(1e-4, weight_decay=100.0, **options)


@pytest.mark.parametrize("on", ["wrapper", "wrapped"])
def test_rows_are_left_out_of_weight_decay_by_name(on: str) -> None:
    optimizer = tsps.DistributedOptimizer(adamw())
    (optimizer if on == "wrapper" else optimizer.inner_optimizer).exclude_from_weight_decay(var_names=["embeddings"])
    kernel, row = one_step(optimizer)
    assert kernel == pytest.approx(1e-2, rel=0.05)  # with decay
    assert row == pytest.approx(1e-4, rel=0.05)
    kernel, row = one_step(tsps.DistributedOptimizer(adamw()))
    assert row == pytest.approx(1e-2, rel=0.05)


def test_rows_are_left_out_of_weight_decay_by_variable() -> None:
    excluded_layer, decayed_layer = tsps.Embedding(ROWS, DIM, "ones"), tsps.Embedding(ROWS, DIM, "ones")
    ids = keras.Input([2], dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(excluded_layer(ids) + decayed_layer(ids))))
    optimizer = tsps.DistributedOptimizer(adamw())
    optimizer.exclude_from_weight_decay(var_list=[excluded_layer.embeddings])
    model.compile(optimizer, "mse")
    model.fit(IDS, TARGETS, verbose=0)
    moved = [float(abs(1 - layer.get_weights()[0][1]).max()) for layer in (excluded_layer, decayed_layer)]
    assert moved == [pytest.approx(1e-4, rel=0.05), pytest.approx(1e-2, rel=0.05)]
    with pytest.raises(ValueError, match="before the optimizer is built"):
        optimizer.exclude_from_weight_decay(var_names=["embeddings"])


def test_clipping_that_is_set_on_the_wrapper_acts_on_rows_and_dense_weights() -> None:
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.clipnorm = 1e-3
    assert optimizer.inner_optimizer.clipnorm == optimizer.clipnorm == 1e-3
    kernel, row = one_step(optimizer)
    assert 0 < abs(kernel) <= 1e-3
    assert 0 < abs(row) <= 1e-3
    with pytest.raises(ValueError, match="once training has begun"):
        optimizer.clipnorm = 1.0


def test_what_is_set_on_the_wrapped_optimizer_before_the_first_step_acts_on_rows() -> None:
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.inner_optimizer.momentum = 0.5
    layer = tsps.Embedding(ROWS, DIM)
    model = keras.Sequential([keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(IDS, TARGETS, verbose=0)
    assert layer.bindings[0].optimizer == tsps.optimizers.SGD(momentum=0.5)


def test_options_that_would_have_no_effect_are_refused() -> None:
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adam(0.1))
    with pytest.raises(ValueError, match=r"inner_optimizer\.beta_1"):
        optimizer.beta_1 = 0.5
    with pytest.raises(ValueError, match="use_ema=True"):
        optimizer.use_ema = True
    assert not optimizer.inner_optimizer.use_ema
    if KERAS_3:
        with pytest.raises(ValueError, match="gradient_accumulation_steps"):
            optimizer.gradient_accumulation_steps = 2
    delayed = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=tsps.schedules.DelayedGlobal())
    with pytest.raises(ValueError, match="DelayedGlobal cannot clip"):
        delayed.clipnorm = 1.0
    assert delayed.clipnorm is None
