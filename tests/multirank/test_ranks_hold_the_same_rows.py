"""Rows that Python wrote, on all ranks or on rank 0 alone, are on all nodes when training begins."""

from __future__ import annotations

from launch import launched


def test_written_loaded_and_saved_rows_are_the_same_on_two_nodes() -> None:
    with launched("rows_program.py") as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        assert job.output.count("rank is done") == 4
