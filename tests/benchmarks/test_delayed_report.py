"""The delayed suite: its report of invented times, and its job on one rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import delayed, timeline

ROOT = Path(__file__).resolve().parents[2]


def test_ways_are_compared_with_the_larger_of_both_alone() -> None:
    times = {
        "computing": [100.0, 110.0, 90.0],
        "communication": [118.0, 120.0, 122.0],
        "synchronous": [215.0, 220.0, 230.0],
        "delayed-1": [126.0, 132.0, 120.0],
    }
    result_of = {(result.case, result.variant): result for result in delayed.report("dense, 10 Mbit/s", times)}
    assert result_of["dense, 10 Mbit/s", "delayed-1"].ratio == pytest.approx(126 / 220)
    shares = {
        variant: result.median for (case, variant), result in result_of.items() if case.endswith("of the larger alone")
    }
    assert shares == pytest.approx({"synchronous": 220 / 120, "delayed-1": 126 / 120})


def test_overlap_of_delayed_steps_is_of_computing_and_the_wire() -> None:
    ms = 1_000_000
    spans = [("computing", 0, 10 * ms), ("tsps.0.delayed.1.float32", 5 * ms, 25 * ms), ("computing", 20 * ms, 30 * ms)]
    assert timeline.overlap(spans, timeline._DELAYED) == pytest.approx((20.0, 10.0))


@pytest.mark.nightly
def test_the_job_runs_every_way(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    ways = "computing,communication,synchronous,delayed-1"
    command = [sys.executable, "-m", "benchmarks.delay_job", "--out", str(out), "--ways", ways, "--tables", "--late"]
    command += ["--steps", "1", "--blocks", "1", "--batch", "16", "--record", "synchronous"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert sorted(figures["step_ms"]) == sorted(ways.split(","))
    assert any(name == "computing" for name, _, _ in figures["spans"][0])
