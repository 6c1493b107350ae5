"""Several ranks train, and rank 0 publishes versions meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import run


def test_rank_0_publishes_what_both_ranks_train(tmp_path: Path) -> None:
    job = run("export_program.py", str(tmp_path), ranks=2)
    assert job.output.count("rank is done") == 2, job.output[-20000:]


@pytest.mark.daily
def test_nodes_publish_sharded_tables(tmp_path: Path) -> None:
    job = run("sharded_export_program.py", str(tmp_path), ranks=3, hosts="localhost:2,127.0.0.1:1")
    assert job.output.count("rank is done") == 3, job.output[-20000:]
