"""The tables of these tests have a folder of their own, which is removed at the end."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1] / "layers"))

from layer_support import FOLDER


def pytest_sessionfinish() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
