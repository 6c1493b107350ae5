"""Attacks by another local user. Only root can run as another user, so `make nightly` needs root for them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent / "checkpoints"), str(FOLDER.parent / "launch")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another user"))


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder like /tmp that everybody can write, with a folder `home` that only its owner can enter."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder)
        path.chmod(0o1777)
        (path / "home").mkdir(mode=0o700)
        (path / "home" / "thesis").write_text("precious")
        yield path
        assert (path / "home" / "thesis").read_text() == "precious"
