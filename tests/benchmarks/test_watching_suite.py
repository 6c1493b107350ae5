"""The watching suite: its report of invented turns, and a short run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.watching import Turn, report

ROOT = Path(__file__).resolve().parents[2]


def test_a_turn_is_compared_with_the_unwatched_ones_around_it() -> None:
    turns = [
        Turn("unwatched", 100.0, 2.0, 0.0),
        Turn("top", 99.0, 2.0, 0.02),
        Turn("unwatched", 120.0, 2.0, 0.0),
        Turn("endpoint", 100.0, 2.0, 0.01),
        Turn("unwatched", 80.0, 2.0, 0.0),
        Turn("top", 90.0, 2.0, 0.04),
        Turn("unwatched", 100.0, 2.0, 0.0),
    ]
    results = {(result.case.split(",")[0], result.unit, result.variant): result for result in report("c", turns)}
    assert results["samples/s", "samples/s", "unwatched"].median == 100
    assert results["samples/s", "%", "top"].blocks == pytest.approx((90, 100))
    assert results["samples/s", "%", "endpoint"].median == pytest.approx(100)
    assert results["processor time of top", "%", "top"].median == pytest.approx(1.5)
    assert results["processor time of the launcher", "%", "endpoint"].median == pytest.approx(0.5)


@pytest.mark.nightly
@pytest.mark.multirank
def test_suite_runs_with_small_sizes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "watching", "--quick", "--blocks", "2"]
    command += ["--json", str(tmp_path / "r.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert {result["variant"] for result in results} == {"unwatched", "top", "endpoint"}
    assert all(result["median"] > 0 for result in results if result["unit"] == "samples/s")
