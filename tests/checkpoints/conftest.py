"""The folder of tables and the seed of the tests in this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
FOLDER = tempfile.mkdtemp(prefix="tf_sparse_ps-checkpoints-", dir="/dev/shm")
os.environ.setdefault("TFSPS_DIR", FOLDER)

import pytest  # noqa: E402

from tf_sparse_ps._compat import _keras  # noqa: E402
from tf_sparse_ps.checkpoints import fault_points  # noqa: E402


def pytest_sessionfinish() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    _keras.keras.utils.set_random_seed(11)
    yield
    fault_points.set_action(None)
