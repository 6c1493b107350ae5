"""Tables without TensorFlow. Each test has a folder of its own in shared memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table


@pytest.fixture
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="tf_sparse_ps-core-", dir="/dev/shm")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def create(folder: str) -> Callable[..., Table]:
    """Makes tables of the test's group."""

    def make(name: str = "user", dim: int = 4, *, group: str = "group", **kwargs: Any) -> Table:
        kwargs.setdefault("optimizer", optimizers.SGD(learning_rate=1.0))
        return Table.create(f"{folder}/{group}/{name}", TableConfig(name, dim, **kwargs))

    return make
