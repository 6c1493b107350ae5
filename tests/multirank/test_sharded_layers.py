"""The use of sharded tables on several nodes, and which ranks are named when a rank does not look up."""

from __future__ import annotations

import re
import time

import pytest
from launch import LONGEST_S, launched

TWO_AND_ONE = "localhost:2,127.0.0.1:1"
ONE_EACH = "localhost:1,127.0.0.1:1"
TIMEOUT_S = 8


def test_what_users_do_with_sharded_tables() -> None:
    with launched("sharded_layers_program.py", "all", hosts=TWO_AND_ONE, ranks=3) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == 3
        assert "AutoGraph could not" not in job.output


@pytest.mark.parametrize(
    ("way", "hosts", "says"),
    [
        # The last rank is the second one of its node, or the only one.
        ("graph-slow", "localhost:1,127.0.0.1:2", "waited|have waited"),
        ("eager-slow", ONE_EACH, "have waited"),
        pytest.param("fit-slow", ONE_EACH, "have waited", marks=pytest.mark.nightly),
        ("graph-kill", "localhost:1,127.0.0.1:2", "died"),
        ("graph-raise", "localhost:1,127.0.0.1:2", "failed|ended with InvalidArgumentError"),
    ],
)
def test_ranks_that_do_not_look_up_are_named_by_those_that_wait(way: str, hosts: str, says: str) -> None:
    """This holds on all nodes, unless a rank is killed.

    Ranks are shielded from the launcher, which ends all ranks after the first.
    """
    ranks = sum(int(host.partition(":")[2]) for host in hosts.split(","))
    last = ranks - 1
    timeout = TIMEOUT_S if way.endswith("slow") else LONGEST_S
    program = ("shielded.py", "sharded_absent_program.py", way)
    with launched(*program, hosts=hosts, ranks=ranks, env={"TFSPS_TIMEOUT_S": str(timeout)}) as job:
        happened = job.wait_for(f"rank {last}: {way.partition('-')[2]}", LONGEST_S)
        pid = re.search(rf"rank {last} is pid (\d+)", job.output)
        assert pid

        whom = rf"rank {last} .*" + ("" if way.endswith("raise") else rf"pid {pid[1]}\)")

        def silent() -> list[int]:
            # A dead rank is named at the beginning of a sentence, and a rank that is waited for at the end.
            patterns = [rf"\[{rank}\]<\w+>:.*(({says}).*{whom}|{whom}.*({says}))" for rank in range(last)]
            if way.endswith("kill"):  # Horovod may abort ranks of the other node when their connections close
                patterns[0] += r"|\[0\]<stderr>:.*Connection (closed|reset) by peer"
            if way.startswith("fit"):  # the ranks wait for each other, in different operations
                patterns[0] += r"|\[0\]<\w+>:.*have waited .* for rank 0 of node 0 .* in operation 'tsps\.pull"
            return [rank for rank, pattern in enumerate(patterns) if not re.search(pattern, job.output)]

        while silent() and time.monotonic() < happened + 120 and job.talks:
            time.sleep(0.1)
        assert not silent(), f"ranks {silent()} did not say who:\n{job.output[-20000:]}"
        (job.folder / "end").touch()
