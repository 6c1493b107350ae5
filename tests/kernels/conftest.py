"""Each test has a private group in shared memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest
from kernel_support import Group, tf

from tf_sparse_ps import _ops


@pytest.fixture
def folder() -> Iterator[str]:
    """An empty directory in shared memory."""
    path = tempfile.mkdtemp(prefix="tf_sparse_ps-kernels-", dir="/dev/shm")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def group(folder: str) -> Iterator[Group]:
    new_group = Group(f"{folder}/g")
    yield new_group
    _ops.close_group(new_group.path)


@pytest.fixture(params=["eager", "function", "nested"])
def mode(request: pytest.FixtureRequest) -> Callable[[Callable], Callable]:
    """Wraps a function so that it runs eagerly, in a tf.function, or in a tf.function within another."""
    if request.param == "eager":
        return lambda body: body
    if request.param == "function":
        return tf.function

    def nested(body: Callable) -> Callable:
        inner = tf.function(body)

        @tf.function
        def outer(*args):
            return inner(*args)

        return outer

    return nested
