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


def check_sharing(found: list[dict[str, Any]]) -> None:
    group = Path(found[0]["group"])
    files = [path for path in group.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    blocks = sum(path.stat().st_blocks * 512 for path in files)
    pss = sum(one["mapped"]["Pss"] for one in found) * 1024
    rss = [one["mapped"]["Rss"] * 1024 for one in found]
    print(
        f"group {size} bytes in files, {blocks} in blocks; summed PSS {pss} = {pss / blocks:.3f} x blocks; "
        f"mapped by each rank {rss}"
    )
    assert blocks == pytest.approx(size, rel=0.02), "files with holes, or blocks beyond the files"
    assert pss <= 1.02 * blocks
    assert min(rss) >= EMBEDDING_BYTES, "every rank has all rows in its own map, or the sum says nothing"


def check_writes(found: list[dict[str, Any]]) -> None:
    steps = found[0]["step"]
    for one in found:
        assert one["step"] == steps
        assert one["rows_first"] == found[0]["rows_first"]
        assert one["counters"]["steps_applied"] == (steps if one["leader"] else 0)
        # All ranks brought all rows: each is written once per step, not once per rank.
        assert one["counters"]["rows_written"] == (100_000 if one["leader"] else 0)
    assert [one["leader"] for one in found] == [True, False, False, False]


def steps_made(folder: Path) -> int:
    """By the leader, at least: the file is not written in one go."""
    while not (text := (folder / "step-0").read_text()):
        pass
    return int(text)


@pytest.mark.parametrize("mode", ["plain", pytest.param("fork", marks=pytest.mark.nightly)])
def test_a_killed_leader_ends_the_others_with_its_pid_and_step(mode: str) -> None:
    """Ranks are shielded from the launcher, which ends them as soon as one has ended."""
    with launched("shielded.py", "sharing_program.py", mode, hosts=ONE_NODE) as job:
        job.wait_for("READY", LONGEST_S, count=RANKS)
        found = reports(job.folder)
        if mode == "plain":
            check_sharing(found)
            check_writes(found)
        leader, others = found[0]["pid"], [psutil.Process(one["pid"]) for one in found[1:]]
        job.wait_for("STEP", LONGEST_S)  # well into training
        before = steps_made(job.folder)
        killed_at = time.monotonic()
        os.kill(leader, signal.SIGKILL)
        _, alive = psutil.wait_procs(others, timeout=LONGEST_S)
        took = time.monotonic() - killed_at
        assert not alive, f"{len(alive)} ranks still run {took:.1f} s after the leader's death:\n{job.output[-20000:]}"
        print(f"{mode}: the others ended {took:.1f} s after the leader was killed")
        (job.folder / "end").touch()
        if mode == "plain":  # the forked child keeps the launcher's pipes open
            assert job.wait() != 0
        for rank in (1, 2, 3):
            said = re.search(rf"rank {rank}: the leader of node 0 \(pid {leader}\) died after step (\d+)", job.output)
            assert said, f"rank {rank} did not name the leader's pid and step:\n{job.output[-20000:]}"
            assert before <= int(said.group(1))
