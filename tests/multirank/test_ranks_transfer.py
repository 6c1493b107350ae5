"""`tsps.transfer` on two machines: replicated and sharded tables, from layers, arrays and files of rows."""

from __future__ import annotations

from launch import run

ONE_RANK_EACH = "localhost:1,127.0.0.1:1"


def test_two_machines_transfer_rows() -> None:
    job = run("transfer_program.py", hosts=ONE_RANK_EACH, ranks=2)
    assert job.output.count("rank is done") == 2


def test_two_ranks_of_a_machine_transfer_rows() -> None:
    job = run("transfer_program.py", hosts="localhost:2", ranks=2)
    assert job.output.count("rank is done") == 2
