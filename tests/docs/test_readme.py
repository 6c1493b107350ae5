"""README's example runs on one rank and on two. README's table shows the measured figures."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from fork_server import run_forked
from launch import launched
from readme_program import README, SAMPLES, example

from benchmarks import readme

HERE = Path(__file__).resolve().parent


def check(report: dict[str, Any]) -> None:
    """Fails unless the model and its rows have learnt."""
    assert report["loss"] < 0.5 * report["variance"]
    assert report["moved"] > 0.5  # relative to a row's initial size


def test_the_example_learns_on_one_rank(tmp_path: Path) -> None:
    done = run_forked(HERE / "readme_program.py", [str(tmp_path)], TFSPS_DIR=str(tmp_path / "tables"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "0.json").read_text())
    assert report["samples"] == list(range(SAMPLES))
    check(report)


@pytest.mark.multirank
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed here")
@pytest.mark.parametrize("collectives", [pytest.param("horovod", marks=pytest.mark.nightly), "tensorflow"])
def test_two_ranks_train_the_example_together_on_different_shards(collectives: str) -> None:
    program, by_horovodrun = str(HERE / "readme_program.py"), collectives == "horovod"
    with launched(program, hosts="localhost:2", ranks=2, by_horovodrun=by_horovodrun, collectives=collectives) as job:
        assert job.wait(240) == 0, job.output[-20000:]
        reports = [json.loads((job.folder / f"{rank}.json").read_text()) for rank in range(2)]
    shards = [report["samples"] for report in reports]
    assert len(shards[0]) == len(shards[1]) == SAMPLES // 2
    assert not set(shards[0]) & set(shards[1])
    assert reports[0]["dense"] == reports[1]["dense"]
    for report in reports:
        check(report)


def test_the_example_says_shard() -> None:
    assert "shard" in example()


def test_the_table_is_that_of_the_measured_figures() -> None:
    """One command measures all figures, and writes them to one file."""
    table = readme.table(json.loads(readme.FIGURES.read_text()))
    assert README.read_text() == readme.with_table(README.read_text(), table)
