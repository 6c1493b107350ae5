"""Makes the reference importable, and every test here one that starts several ranks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

for folder in ("reference", "training"):  # as the ranks have it (launch.py)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.multirank)
            if importlib.util.find_spec("horovod") is None:
                item.add_marker(pytest.mark.skip(reason="Horovod is not installed here: make horovod-tf215"))
