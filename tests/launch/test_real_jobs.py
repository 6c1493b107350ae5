"""Jobs of TensorFlow: the ranks connect, train a table, and leave nothing over when one fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher import Launcher, Launchers

HERE = Path(__file__).resolve().parent
LONGEST_S = 300.0  # on a machine with other work


def horovod_job(launch: Launchers, way: str, rank: int = -1) -> Launcher:
    pytest.importorskip("horovod")
    (launch.folder / "tables").mkdir(0o700)
    job = launch.start(
        ["-np", "2", "--collectives", "horovod", sys.executable, str(HERE / "horovod_program.py"), way, str(rank)]
    )
    job.wait(LONGEST_S)
    return job


def leftovers(launch: Launchers) -> list[str]:
    """Returns the names of leftover tables."""
    return [path.name for path in (launch.folder / "tables").iterdir() if path.name != ".lock"]


@pytest.mark.nightly
def test_a_job_of_horovod_trains_and_says_nothing_else(launch: Launchers) -> None:
    job = horovod_job(launch, "well")
    assert job.process.returncode == 0, job.said
    assert job.stdout.startswith(b"trained; tables in ")
    assert "oneDNN" not in job.said
    assert leftovers(launch) == []


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.nightly
def test_a_killed_rank_leaves_no_tables(rank: int, launch: Launchers) -> None:
    job = horovod_job(launch, "kill", rank)
    assert job.process.returncode == 137, job.said
    assert f"tf-sparse-ps: rank {rank} failed first, killed by SIGKILL" in job.said
    assert leftovers(launch) == []


@pytest.mark.nightly
def test_an_error_of_a_rank_is_shown(launch: Launchers) -> None:
    job = horovod_job(launch, "raise", 1)
    assert job.process.returncode == 1
    shown = job.said.partition("rank 1 failed first, with exit status 1 (its last lines):")[2]
    assert "ValueError: mine" in shown
    assert shown.count("Traceback") == 1
    assert leftovers(launch) == []


@pytest.mark.nightly
def test_workers_of_a_strategy_find_each_other(launch: Launchers) -> None:
    job = launch.start(["-np", "2", "--collectives", "tensorflow", sys.executable, str(HERE / "strategy_program.py")])
    assert job.wait(LONGEST_S) == 0, job.said
    assert job.stdout == b"total 3.0\n"
