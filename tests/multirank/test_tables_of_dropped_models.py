"""Dropped models leave nothing on any rank: no tables, mappings or descriptors."""

from __future__ import annotations

import pytest
from launch import run


@pytest.mark.parametrize("models", [6, pytest.param(30, marks=pytest.mark.nightly)])
def test_two_ranks_take_after_many_models_what_they_took_after_three(models: int) -> None:
    job = run("../layers/lifetime_program.py", str(models), hosts="localhost:2", ranks=2)
    assert job.output.count("rank is done") == 2
