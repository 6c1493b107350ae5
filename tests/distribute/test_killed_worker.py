"""Workers of one node share one copy of the tables. If one is killed, the other ends and names it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from workers import started

LONGEST_S = 500.0
EMBEDDING_BYTES = 50_000 * 32 * 4


@pytest.mark.nightly
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_ends_the_other_which_names_it(killed: int) -> None:
    with started("killed_program.py", nodes=[0, 0]) as job:
        job.wait_for("READY", LONGEST_S, count=2)
        reports = [json.loads((job.folder / f"report-{rank}.json").read_text()) for rank in (0, 1)]
        group = Path(reports[0]["group"])
        assert reports[1]["group"] == reports[0]["group"]
        blocks = sum(path.stat().st_blocks * 512 for path in group.rglob("*") if path.is_file())
        pss = sum(report["mapped"]["Pss"] for report in reports) * 1024
        print(f"summed PSS {pss} = {pss / blocks:.3f} x the group's {blocks} bytes")
        assert pss <= 1.02 * blocks
        assert min(report["mapped"]["Rss"] for report in reports) * 1024 >= EMBEDDING_BYTES
        at = time.monotonic()
        job.processes[killed].kill()
        status = job.processes[1 - killed].wait(LONGEST_S)
        print(f"the other ended {time.monotonic() - at:.1f} s later, with status {status}")
        assert status != 0
        job.wait(LONGEST_S)
        pid = reports[killed]["pid"]
        # The watch finds the death, or a merge that waits for the rank.
        patterns = (
            rf"rank 1: (the leader of node 0|rank 0) \(pid {pid}\) died (after|in) step \d+",
            rf"rank 0: rank 1 (of node 0 )?\(pid {pid}\) died in step \d+",
        )[killed]
        assert re.search(patterns, job.output), job.output
