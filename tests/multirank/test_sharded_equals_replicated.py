"""A sharded table is trained like a table that every node has, by one or several ranks of each node."""

from __future__ import annotations

import pytest
from launch import TWO_NODES, launched

THREE_NODES = "localhost:1,127.0.0.1:2,127.0.0.2:1"


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        (TWO_NODES, 4),
        pytest.param("localhost:1,127.0.0.1:1", 2, marks=pytest.mark.nightly),
        pytest.param(THREE_NODES, 4, marks=pytest.mark.nightly),
    ],
)
def test_rows_and_slots_are_equal_bit_for_bit(hosts: str, ranks: int) -> None:
    with launched("sharded_program.py", "200", hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == ranks
