"""Each batch of these models contains every id once, so that tsps and Keras must give the same results."""

from __future__ import annotations

import os
import shutil
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
FOLDER = tempfile.mkdtemp(prefix="tf_sparse_ps-training-", dir="/dev/shm")
os.environ.setdefault("TFSPS_DIR", FOLDER)

import pytest  # noqa: E402

from tf_sparse_ps._compat import _keras  # noqa: E402


def pytest_sessionfinish() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    _keras.keras.utils.set_random_seed(11)
