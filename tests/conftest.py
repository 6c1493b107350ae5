"""What tests of several folders import, and the marks of the folders whose tests start ranks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# The reference, the launcher of ranks with its batches, models, and the example programs' helpers.
SHARED = (TESTS / "reference", TESTS / "training", TESTS / "multirank", TESTS.parent / "examples")
sys.path[:0] = map(str, SHARED)

NO_HOROVOD = pytest.mark.skip(reason="Horovod is not installed here: make horovod-tf215")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    horovod = importlib.util.find_spec("horovod") is not None
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if TESTS in item.path.parents else ""
        if folder == "multirank":
            item.add_marker(pytest.mark.multirank)
        if folder == "matrix":
            item.add_marker(pytest.mark.nightly)  # for `make matrix` and `make nightly`
        if folder in ("multirank", "matrix") and not horovod:
            item.add_marker(NO_HOROVOD)
