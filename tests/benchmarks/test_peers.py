"""Comparing suites with other libraries: the report, and one run of ours against the Keras of this environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import feature_sizes, harness, peers

ROOT = Path(__file__).resolve().parents[2]


def figures(name: str, lookup: list[float], step: list[float]) -> list[harness.Result]:
    return [
        result
        for case, blocks in ((peers.LOOKUP, lookup), (peers.STEP, step))
        for result in harness.summarize("step", case, {name: blocks}, peer=None, unit="ms")
    ]


def test_each_peer_is_compared_with_the_one_of_ours_that_does_the_same_work() -> None:
    results = figures("ours, Adagrad", [1, 3], [10, 14]) + figures("ours, row-wise Adagrad", [2, 2], [5, 5])
    results += figures("Keras 2, Adagrad", [3, 3], [22, 22]) + figures("FBGEMM, row-wise Adagrad", [1, 1], [20, 20])
    assert peers.table("step", results).splitlines()[2:] == [
        "| ours, Adagrad | 1.5 ms | 11 ms | 10 - 14 |  |  |",
        "| ours, row-wise Adagrad | 2 ms | 5 ms | 5 - 5 | 0.75 | 2.20 |",
        "| Keras 2, Adagrad | 3 ms | 22 ms | 22 - 22 | 0.50 | 0.50 |",
        "| FBGEMM, row-wise Adagrad | 1 ms | 20 ms | 20 - 20 | 2.00 | 0.25 |",
    ]


def test_each_size_has_a_table() -> None:
    results = [
        result
        for name, times in (("ours, a collection", [1.0]), ("Keras 2, a layer for each feature", [2.0]))
        for kind in (peers.LOOKUP, peers.STEP)
        for sizes in ("8 ids", "9 ids")
        for result in harness.summarize("layers", peers.case(kind, sizes), {name: times}, peer=None, unit="ms")
    ]
    lines = peers.table("layers", results).splitlines()
    assert [line for line in lines if line.endswith("ids")] == ["8 ids", "9 ids"]
    assert lines.count("| Keras 2, a layer for each feature | 2 ms | 2 ms | 2 - 2 | 0.50 | 0.50 |") == 2


@pytest.mark.parametrize("suite", peers.PEERS)
def test_every_peer_has_one_of_ours_beside_it(suite: str) -> None:
    names = [peer.name for peer in peers.PEERS[suite]]
    assert len(set(names)) == len(names)
    assert all(peer.beside in names and peer.beside.startswith("ours") for peer in peers.PEERS[suite])


@pytest.mark.nightly
@pytest.mark.parametrize("suite", peers.PEERS)
def test_what_is_here_is_measured_by_turns(suite: str) -> None:
    of_this_environment = [peer for peer in peers.PEERS[suite] if peer.venv is None]
    here = [of_this_environment[0], of_this_environment[-1]]
    assert here[-1].module == "keras_layer"
    results = peers.run(suite, here, harness.Options(blocks=2, quick=True))
    cases = {"step": [""], "layers": [str(sizes) for sizes in feature_sizes.PEER_CASES]}[suite]
    assert [(result.variant, result.case, len(result.blocks)) for result in results] == [
        (peer.name, peers.case(kind, sizes), 2)
        for peer in here
        for sizes in cases
        for kind in (peers.LOOKUP, peers.STEP)
    ]
    assert all(result.low > 0 for result in results)


def test_other_suites_have_no_peers() -> None:
    command = [sys.executable, "-m", "benchmarks", "ranks", "--peers"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 2
    assert "--peers goes with one of the suites step, layers, jobs" in done.stderr
