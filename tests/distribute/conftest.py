"""Makes the reference, and the batches and simulation of tests/multirank, importable."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "reference"), str(TESTS / "multirank")]
