"""Looking ahead changes no number of a sharded table, whatever ranks announce and when."""

from __future__ import annotations

import pytest
from launch import TWO_NODES, launched


@pytest.mark.parametrize(
    ("hosts", "ranks", "breaks"),
    [
        ("localhost:1,127.0.0.1:1", 2, 8),
        pytest.param("localhost:1,127.0.0.1:1", 2, 100, marks=pytest.mark.nightly),
        pytest.param(TWO_NODES, 4, 20, marks=pytest.mark.nightly),
        pytest.param("localhost:1,127.0.0.1:2,127.0.0.2:1", 4, 20, marks=pytest.mark.nightly),
    ],
)
def test_tables_are_equal_bit_for_bit(hosts: str, ranks: int, breaks: int) -> None:
    with launched("sharded_ahead_program.py", f"100,{breaks}", hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == ranks
