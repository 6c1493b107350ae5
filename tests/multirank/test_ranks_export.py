"""Two ranks train, and rank 0 publishes versions meanwhile."""

from __future__ import annotations

from pathlib import Path

from launch import run


def test_rank_0_publishes_what_both_ranks_train(tmp_path: Path) -> None:
    job = run("export_program.py", str(tmp_path), ranks=2)
    assert job.output.count("rank is done") == 2, job.output[-20000:]
