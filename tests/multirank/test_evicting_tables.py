"""Tables that evict have the rows of the simulation on every node, replicated and sharded."""

from __future__ import annotations

import pytest
from launch import run


def test_evicting_tables_equal_the_simulation() -> None:
    job = run("evicting_program.py", "60")
    assert job.output.count("agrees") == 4


@pytest.mark.nightly
def test_evicting_tables_equal_the_simulation_for_500_steps() -> None:
    job = run("evicting_program.py", "500")
    assert job.output.count("agrees") == 4
