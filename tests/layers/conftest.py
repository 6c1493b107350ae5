"""Fixtures of the tests of layers."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from layer_support import FOLDER, keras

import tf_sparse_ps as tsps


def pytest_sessionfinish() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    keras.utils.set_random_seed(7)


@pytest.fixture
def pair() -> Callable[..., tuple[tsps.Embedding, keras.layers.Embedding]]:
    """Makes a tsps and a Keras layer with the same arguments and the same values."""

    def make(*args: object, **kwargs: object) -> tuple[tsps.Embedding, keras.layers.Embedding]:
        keras_layer = keras.layers.Embedding(*args, **kwargs)
        keras_layer.build((None, 2))
        tsps_layer = tsps.Embedding(*args, **kwargs)
        tsps_layer.build((None, 2))
        tsps_layer.set_weights(keras_layer.get_weights())
        return tsps_layer, keras_layer

    return make
