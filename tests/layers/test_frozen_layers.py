"""Layers that are built frozen, as the first phase of fine-tuning does, and trained later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layer_support import IDS, TARGETS, keras

import tf_sparse_ps as tsps

pytestmark = pytest.mark.keras2_smoke

ROWS, DIM = 10, 4


def model(layer: Any) -> Any:
    inputs = keras.Input(IDS.shape[1:], dtype="int64")
    hidden = keras.layers.Flatten()(layer(inputs))
    return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.3))(hidden))


def train(one: Any, optimizer: Any) -> None:
    one.compile(optimizer, "mse")
    one.fit(IDS, TARGETS, batch_size=2, epochs=2, shuffle=False, verbose=0)


def ours() -> Any:
    return tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))


def test_a_layer_that_was_built_frozen_trains_once_it_is_not() -> None:
    """Both phases give what keras.layers.Embedding gives."""
    values = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    found = []
    for make, optimizer in ((tsps.Embedding, ours), (keras.layers.Embedding, lambda: keras.optimizers.SGD(0.1))):
        layer = make(ROWS, DIM, trainable=False)
        one = model(layer)
        layer.set_weights([values])
        train(one, optimizer())
        np.testing.assert_array_equal(layer.get_weights()[0], values)
        assert len(one.trainable_weights) == 2
        layer.trainable = True
        assert len(one.trainable_weights) == 3
        train(one, optimizer())
        assert np.abs(layer.get_weights()[0] - values).max() > 1e-5
        found.append(one.get_weights())
    for own, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-6)


def test_a_frozen_model_that_was_loaded_can_be_unfrozen(tmp_path: Path) -> None:
    layer = tsps.Embedding(ROWS, DIM)
    one = model(layer)
    layer.trainable = False
    train(one, ours())
    one.save(tmp_path / "frozen.keras")
    loaded = keras.models.load_model(tmp_path / "frozen.keras")
    before = loaded.layers[1].get_weights()[0]
    train(loaded, ours())
    np.testing.assert_array_equal(loaded.layers[1].get_weights()[0], before)
    loaded.layers[1].trainable = True
    train(loaded, ours())
    assert np.abs(loaded.layers[1].get_weights()[0] - before).max() > 1e-5


def reduced(config: tsps.TableConfig) -> Any:
    return tsps.EmbeddingReduce(None, DIM, table=config)


def collected(config: tsps.TableConfig) -> Any:
    return tsps.EmbeddingCollection({"item": tsps.FeatureConfig(config)})


@pytest.mark.parametrize("make", [reduced, collected])
def test_two_layers_with_one_table_config_are_told_that_they_share_nothing(
    make: Callable[[tsps.TableConfig], Any], recwarn: pytest.WarningsRecorder
) -> None:
    config = tsps.TableConfig(f"items-{make.__name__}", DIM)
    first, second = tsps.Embedding(None, DIM, table=config), make(config)
    first.build(None)
    said = f"two layers were given one TableConfig, '{config.name}', and each has its own rows"
    with pytest.warns(UserWarning, match=said):
        second.build(None)
    # Equal configurations of two models, and names that layers have by themselves, are no reason to warn.
    recwarn.clear()
    make(tsps.TableConfig(config.name, DIM)).build(None)
    for _ in range(2):
        tsps.Embedding(None, DIM, name="equal").build(None)
    assert not [one for one in recwarn if "were given one TableConfig" in str(one.message)]
