"""Each of N nodes holds a sharded table in a part of the memory that a replicated one takes."""

from __future__ import annotations

import pytest
from launch import launched


@pytest.mark.parametrize(
    "hosts", ["localhost:1,127.0.0.1:1", pytest.param("localhost:1,127.0.0.1:1,127.0.0.2:1", marks=pytest.mark.nightly)]
)
def test_each_node_holds_its_part_and_buffers_of_a_step(hosts: str) -> None:
    ranks = hosts.count(":")
    with launched("sharded_memory_program.py", hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        print("".join(line for line in job.output.splitlines(True) if "of exchanges" in line))
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == ranks
