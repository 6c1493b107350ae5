"""A table that is mostly on disk is trained like a table in memory, by several ranks of several nodes."""

from __future__ import annotations

import pytest
from launch import ONE_NODE, TWO_NODES, launched


@pytest.mark.daily
@pytest.mark.parametrize(("hosts", "ranks"), [(ONE_NODE, 2), pytest.param(TWO_NODES, 4, marks=pytest.mark.nightly)])
def test_rows_and_slots_are_equal_bit_for_bit(hosts: str, ranks: int) -> None:
    with launched("tiered_program.py", "200", hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == ranks
        assert not list(job.folder.glob("disk/*")), "rows on disk must be removed"
