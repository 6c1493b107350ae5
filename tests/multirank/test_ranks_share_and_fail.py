"""Four ranks of one node share one copy of the tables, and end when its leader dies."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from launch import LONGEST_S, ONE_NODE, launched

RANKS = 4
EMBEDDING_BYTES = 100_000 * 32 * 4


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(RANKS)]


def check_sharing(rank_reports: list[dict[str, Any]]) -> None:
    group = Path(rank_reports[0]["group"])
    files = [path for path in group.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    blocks = sum(path.stat().st_blocks * 512 for path in files)
    pss = sum(report["mapped"]["Pss"] for report in rank_reports) * 1024
    rss = [report["mapped"]["Rss"] * 1024 for report in rank_reports]
    print(
        f"group {size} bytes in files, {blocks} in blocks; summed PSS {pss} = {pss / blocks:.3f} x blocks; "
        f"mapped by each rank {rss}"
    )
    assert blocks == pytest.approx(size, rel=0.02), "files with holes, or blocks beyond the files"
    assert pss <= 1.02 * blocks
    assert min(rss) >= EMBEDDING_BYTES, "each rank must have mapped all rows, otherwise the sum means nothing"


def check_writes(rank_reports: list[dict[str, Any]]) -> None:
    steps = rank_reports[0]["step"]
    for report in rank_reports:
        assert report["step"] == steps
        assert report["rows_first"] == rank_reports[0]["rows_first"]
        assert report["counters"]["steps_applied"] == (steps if report["leader"] else 0)
        # All ranks trained all rows. Each row is written once per step, not once per rank.
        assert report["counters"]["rows_written"] == (100_000 if report["leader"] else 0)
    assert [report["leader"] for report in rank_reports] == [True, False, False, False]


def steps_made(folder: Path) -> int:
    """Returns the leader's number of steps, at least. The file is not written at once, so it may be empty."""
    while not (text := (folder / "step-0").read_text()):
        pass
    return int(text)


@pytest.mark.parametrize("mode", ["plain", pytest.param("fork", marks=pytest.mark.nightly)])
def test_a_killed_leader_ends_the_others_with_its_pid_and_step(mode: str) -> None:
    """Ranks are shielded from the launcher, which ends them as soon as one has ended."""
    with launched("shielded.py", "sharing_program.py", mode, hosts=ONE_NODE) as job:
        job.wait_for("READY", LONGEST_S, count=RANKS)
        rank_reports = reports(job.folder)
        if mode == "plain":
            check_sharing(rank_reports)
            check_writes(rank_reports)
        leader, other_processes = rank_reports[0]["pid"], [psutil.Process(report["pid"]) for report in rank_reports[1:]]
        job.wait_for("STEP", LONGEST_S)  # in the middle of training
        before = steps_made(job.folder)
        killed_at = time.monotonic()
        os.kill(leader, signal.SIGKILL)
        _, alive = psutil.wait_procs(other_processes, timeout=LONGEST_S)
        took = time.monotonic() - killed_at
        assert not alive, f"{len(alive)} ranks still run {took:.1f} s after the leader's death:\n{job.output[-20000:]}"
        print(f"{mode}: the others ended {took:.1f} s after the leader was killed")
        (job.folder / "end").touch()
        if mode == "plain":  # the forked child keeps the launcher's pipes open
            assert job.wait() != 0
        for rank in (1, 2, 3):
            report_of_death = re.search(
                rf"rank {rank}: the leader of node 0 \(pid {leader}\) died after step (\d+)", job.output
            )
            assert report_of_death, f"rank {rank} did not name the leader's pid and step:\n{job.output[-20000:]}"
            assert before <= int(report_of_death.group(1))
