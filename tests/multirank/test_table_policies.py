"""Tables that admit and evict have the rows of the simulation on every node, replicated and sharded."""

from __future__ import annotations

import pytest
from launch import run


def test_tables_with_policies_equal_the_simulation() -> None:
    job = run("policies_program.py", "60")
    assert job.output.count("agrees") == 4


@pytest.mark.nightly
def test_tables_with_policies_equal_the_simulation_for_500_steps() -> None:
    job = run("policies_program.py", "500")
    assert job.output.count("agrees") == 4
