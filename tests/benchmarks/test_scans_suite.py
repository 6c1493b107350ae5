"""The scans suite: its check of one committed state, its report of invented figures, and a short run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import scan_content, scans
from benchmarks.job_sizes import DIM

ROOT = Path(__file__).resolve().parents[2]

N = 21  # a step whose batch is neither the first nor the last


@pytest.fixture(scope="module")
def content() -> scan_content.Content:
    return scan_content.Content(scan_content.QUICK)


def rows(content: scan_content.Content, keys: scan_content.Keys, n: int) -> list[scan_content.Floats]:
    return [np.repeat(column[:, None], DIM, axis=1) for column in content.rows(keys, n)]


def test_rows_follow_from_the_steps(content: scan_content.Content) -> None:
    batches = scan_content.Batches(scan_content.QUICK)
    keys = content.keys(N)
    first = np.where((keys >= 0) & (keys < scan_content.QUICK.rows), scan_content.first_gradient(keys), 0)
    values, sums = np.zeros(len(keys), np.float32), np.ones(len(keys), np.float32)
    for gradients in [first, *(np.isin(keys, _touched(batches, n)) for n in range(1, N + 1))]:
        sums += gradients.astype(np.float32) ** 2
        values -= gradients.astype(np.float32) / np.sqrt(sums + np.float32(1e-7))
    expected_arrays = content.rows(keys, N)
    np.testing.assert_array_equal(expected_arrays[0], values)
    np.testing.assert_array_equal(expected_arrays[1], sums)
    absent = scan_content.new_keys(N + 1)
    assert not np.isin(absent, keys).any()
    assert not content.wrong_rows(absent, np.zeros((len(absent), DIM), np.float32), N)


def _touched(batches: scan_content.Batches, n: int) -> scan_content.Keys:
    return np.concatenate([batches.of_rank(n, rank) for rank in range(scan_content.RANKS)])


def test_a_mixture_of_two_states_is_noticed(content: scan_content.Content) -> None:
    keys = content.keys(N)
    now, later = rows(content, keys, N), rows(content, keys, N + 1)
    assert not content.wrong_rows(keys, now[0], N, now[1])
    moved = np.flatnonzero((now[0] != later[0]).any(axis=1))
    assert len(moved) == len(np.unique(_touched(scan_content.Batches(scan_content.QUICK), N + 1))) - 8  # new keys
    for plane in (0, 1):
        mixed = [array.copy() for array in now]
        mixed[plane][moved[-1], DIM // 2] = later[plane][moved[-1], DIM // 2]
        (wrong,) = content.wrong_rows(keys, mixed[0], N, mixed[1])
        assert f"1 of {len(keys)} {('rows', 'accumulators')[plane]} are not those of step {N}" in wrong
    assert content.wrong_rows(keys, later[0], N)


def test_keys_of_no_state_are_noticed(content: scan_content.Content) -> None:
    keys = content.keys(N)
    assert not content.wrong_keys(keys[::-1], N - 1, N + 1)
    assert not content.wrong_count(len(keys), N)
    assert content.wrong_keys(keys, N + 1, N + 2)
    assert content.wrong_keys(keys[:-1], N, N)
    assert content.wrong_keys(
        np.where(keys == scan_content.new_keys(N)[0], scan_content.new_keys(N + 1)[0], keys), N, N
    )
    assert content.wrong_count(len(keys) - 1, N)


def block(steps: int, seconds: float, lookup: float) -> dict[str, Any]:
    return {
        "steps": steps,
        "seconds": seconds,
        "processor_s": seconds / 2,
        "ranks_processor_s": seconds,
        "times": {"lookup": [lookup] * 50},
        "meanwhile": {"lookup": 2},
        "blocked": [0.001] * 49 + [lookup],
        "errors": [],
        "wrong": [],
    }


def test_the_copy_is_what_the_job_is_divided_by() -> None:
    answers = {
        "alone": [block(100, 2.0, 0.1), block(100, 2.0, 0.1)],
        "copy": [block(80, 2.0, 0.1), block(80, 2.0, 0.1)],
        "job": [block(76, 2.0, 0.2), block(76, 2.0, 0.2)],
    }
    results = {(result.parameters["figure"], result.variant): result for result in scans.report("a table", answers)}
    assert results["steps", "job"].median == pytest.approx(38)
    assert results["steps", "job"].ratio == pytest.approx(0.95)
    assert results["steps during lookup", "job"].ratio == pytest.approx(0.5)
    assert results["lookup mean", "job"].median == pytest.approx(200)
    assert results["blocked p50", "job"].median == pytest.approx(1)
    assert results["blocked max", "job"].median == pytest.approx(200)
    assert results["errors", "job"].median == 0


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "scans",
        "--quick",
        "--blocks",
        "2",
        "--json",
        str(tmp_path / "r.json"),
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # then it ends what it started
        process.communicate(timeout=200)
    for leftover in Path("/dev/shm").glob(f"tsps-scans-{process.pid}-*"):
        shutil.rmtree(leftover)


@pytest.mark.multirank
@pytest.mark.nightly
def test_every_result_of_a_short_run_is_of_one_state(tmp_path: Path, started: subprocess.Popen[str]) -> None:
    pytest.importorskip("horovod")
    _, errors = started.communicate(timeout=280)
    assert started.returncode == 0, errors
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    results_by_figure = {(r["parameters"]["figure"], r["variant"]): r for r in results}
    for where in ("copy", "job"):
        assert results_by_figure["errors", where]["median"] == 0, results_by_figure["errors", where]["parameters"][
            "texts"
        ]
        assert results_by_figure["wrong", where]["median"] == 0
        assert all(
            results_by_figure[f"{name} mean", where]["median"] > 0 for name in ("keys", "save", "verify", "lookup")
        )
    assert results_by_figure["steps", "job"]["ratio"] > 0
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"tsps-scans-{started.pid}-")]
