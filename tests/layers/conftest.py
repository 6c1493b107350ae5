"""Fixtures of the layers' tests."""

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
    """Makes our layer and Keras's with the same arguments and the same values."""

    def make(*args: object, **kwargs: object) -> tuple[tsps.Embedding, keras.layers.Embedding]:
        theirs = keras.layers.Embedding(*args, **kwargs)
        theirs.build((None, 2))
        ours = tsps.Embedding(*args, **kwargs)
        ours.build((None, 2))
        ours.set_weights(theirs.get_weights())
        return ours, theirs

    return make
