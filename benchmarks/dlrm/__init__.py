"""The jobs of the suites `jobs` and `input`: DLRM as `make train` trains it. They share modules with the examples."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).absolute().parents[2] / "examples"))
