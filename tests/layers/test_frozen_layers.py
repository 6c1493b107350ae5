"""Layers that are built frozen, as in the first phase of fine-tuning, and trained later."""

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


def train(keras_model: Any, optimizer: Any) -> None:
    keras_model.compile(optimizer, "mse")
    keras_model.fit(IDS, TARGETS, batch_size=2, epochs=2, shuffle=False, verbose=0)


def ours() -> Any:
    return tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))


def test_a_layer_that_was_built_frozen_trains_once_it_is_not() -> None:
    """Both phases give the results of keras.layers.Embedding."""
    values = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    results = []
    for make, optimizer in ((tsps.Embedding, ours), (keras.layers.Embedding, lambda: keras.optimizers.SGD(0.1))):
        layer = make(ROWS, DIM, trainable=False)
        keras_model = model(layer)
        layer.set_weights([values])
        train(keras_model, optimizer())
        np.testing.assert_array_equal(layer.get_weights()[0], values)
        assert len(keras_model.trainable_weights) == 2
        layer.trainable = True
        assert len(keras_model.trainable_weights) == 3
        train(keras_model, optimizer())
        assert np.abs(layer.get_weights()[0] - values).max() > 1e-5
        results.append(keras_model.get_weights())
    for weight, expected in zip(*results, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)


def test_a_frozen_model_that_was_loaded_can_be_unfrozen(tmp_path: Path) -> None:
    layer = tsps.Embedding(ROWS, DIM)
    keras_model = model(layer)
    layer.trainable = False
    train(keras_model, ours())
    keras_model.save(tmp_path / "frozen.keras")
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
    message = f"two layers were given one TableConfig, '{config.name}', and each has its own rows"
    with pytest.warns(UserWarning, match=message):
        second.build(None)
    # Equal configurations of two models, and automatic names of layers, cause no warning.
    recwarn.clear()
    make(tsps.TableConfig(config.name, DIM)).build(None)
    for _ in range(2):
        tsps.Embedding(None, DIM, name="equal").build(None)
    assert not [warning for warning in recwarn if "were given one TableConfig" in str(warning.message)]
