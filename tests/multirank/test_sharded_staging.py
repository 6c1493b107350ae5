"""Owners of sharded tables that are partly on disk read rows a pass ahead, for the batches of all nodes."""

from __future__ import annotations

import pytest
from launch import TWO_NODES, launched


@pytest.mark.parametrize(
    ("hosts", "ranks"), [("localhost:1,127.0.0.1:1", 2), pytest.param(TWO_NODES, 4, marks=pytest.mark.nightly)]
)
def test_rows_of_other_nodes_are_read_before_they_are_asked_for(hosts: str, ranks: int) -> None:
    with launched("sharded_staging_program.py", hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        print("".join(line for line in job.output.splitlines(True) if "on demand:" in line))
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == ranks
