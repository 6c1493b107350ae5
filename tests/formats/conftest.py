"""Private folders for the tests of the formats. Tables of models are in a folder of the test run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
FOLDER = tempfile.mkdtemp(prefix="tf_sparse_ps-formats-", dir="/dev/shm")
os.environ.setdefault("TFSPS_DIR", FOLDER)


def pytest_sessionfinish() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in shared memory, with mode 0700, that is removed after the test."""
    path = tempfile.mkdtemp(prefix="tf_sparse_ps-formats-", dir="/dev/shm")
    yield Path(path)
    shutil.rmtree(path, ignore_errors=True)
