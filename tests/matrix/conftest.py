"""All of it is for `make matrix` and `make nightly`; the launcher of ranks is that of tests/multirank."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "multirank"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.nightly)
            if importlib.util.find_spec("horovod") is None:
                item.add_marker(pytest.mark.skip(reason="Horovod is not installed here: make horovod-tf215"))
