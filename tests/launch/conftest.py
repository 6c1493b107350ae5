from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher import Launchers


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launchers]:
    launchers = Launchers(tmp_path)
    yield launchers
    launchers.end()
