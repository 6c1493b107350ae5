"""Fixtures of the tests that start jobs again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from restart_support import Whole


@pytest.fixture
def shared_memory() -> Iterator[str]:
    """A TFSPS_DIR that outlives jobs."""
    folder = tempfile.mkdtemp(prefix="tsps-test-restarts-", dir="/dev/shm")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Uninterrupted runs."""
    from restart_support import Whole  # imports TensorFlow

    return Whole(tmp_path_factory.mktemp("whole"))
