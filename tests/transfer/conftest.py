"""Fixtures of the tests that move rows."""

from __future__ import annotations

import shutil

import pytest
from transfer_support import FOLDER, keras


def pytest_sessionfinish() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    keras.utils.set_random_seed(7)
