"""What tests of several folders import, and the marks of the folders whose tests start ranks."""

from __future__ import annotations

import collections
import gc
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# The reference, the launcher of ranks with its batches, models, and the example programs' helpers.
SHARED = (TESTS / "reference", TESTS / "training", TESTS / "multirank", ROOT / "examples")
sys.path[:0] = map(str, SHARED)
sys.path.append(str(ROOT))  # the benchmarks; at the end, because `make simd` tests another build of the package

NEED_HOROVOD = ("multirank", "matrix")
HOROVOD = importlib.util.find_spec("horovod") is not None
# Not collected: their modules import Horovod.
collect_ignore = [] if HOROVOD else list(NEED_HOROVOD)

# Folders, and files of other folders, that take minutes.
LONG = {"multirank", "distribute", "benchmarks", "examples", "test_cached_kills.py", "test_cached_devices.py"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--collectives",
        choices=("horovod", "tensorflow"),
        default="horovod",
        help="what connects the ranks of tests/multirank (default: horovod)",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ["TSPS_TEST_COLLECTIVES"] = config.getoption("--collectives")  # launch.VARIABLE
    tested, expected = importlib.util.find_spec("tf_sparse_ps"), os.environ.get("TSPS_TEST_PACKAGE")
    if expected and (tested is None or not Path(str(tested.origin)).is_relative_to(expected)):
        raise pytest.UsageError(f"tf_sparse_ps comes from {tested}, and {expected} is to be tested")


def pytest_collection_finish() -> None:
    # What is imported now stays. A collection that looks at TensorFlow's modules takes .4 s each time.
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not HOROVOD:
        folders = " and ".join(f"tests/{folder}" for folder in NEED_HOROVOD)
        terminalreporter.write_line(f"SKIPPED {folders}: Horovod is not installed here (make horovod-tf215)")
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] = seconds.get(file, 0.0) + report.duration
    for file, time_s in sorted(seconds.items(), key=lambda item: -item[1]):
        if time_s >= 1:
            terminalreporter.write_line(f"file {time_s:7.1f} s  {file}")  # tools/test_stages.py reads these lines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Long files first: what is run beside the last of them should be short.
    items.sort(key=lambda item: not LONG & set(item.path.parts))
    seen: collections.Counter[str] = collections.Counter()
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if TESTS in item.path.parents else ""
        if folder == "multirank":
            item.add_marker(pytest.mark.multirank)
        if (cases := item.get_closest_marker("daily_cases")) and not item.get_closest_marker("nightly"):
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > cases.args[0]:
                item.add_marker(pytest.mark.nightly)
        # What starts several ranks is nightly, unless it is the one launch of its mode that runs every day.
        if folder == "matrix" or (folder == "multirank" and not item.get_closest_marker("daily")):
            item.add_marker(pytest.mark.nightly)
