"""All ranks save sharded tables, and any number of nodes and ranks loads them."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from launch import TWO_NODES, Launch, launched, run
from sharded_saving_support import ASKED, SERVED

import tf_sparse_ps as tsps

THREE = "localhost:1,127.0.0.1:1,127.0.0.2:1"
FIVE = "localhost:2,127.0.0.1:2,127.0.0.2:1"
LIBRARY = str(Path(tsps.__file__).with_name("_ops_lib.so"))
SERVE = """
import sys, numpy as np, tensorflow as tf
tf.load_op_library(sys.argv[1])
with np.load(sys.argv[2]) as noted:
    for path in sys.argv[4:]:
        call = tf.saved_model.load(path).signatures["serving_default"]
        (output,) = call(tf.constant(np.load(sys.argv[3]))).values()
        np.testing.assert_allclose(output, noted["predictions"], rtol=1e-5, atol=1e-6, err_msg=path)
"""


def finished(program: str, *arguments: str, ranks: int, **options: str) -> Launch:
    """Runs a job to its end. All of its ranks must have done everything."""
    job = run(program, *arguments, ranks=ranks, **options)
    assert job.output.count("rank is done") == ranks, job.output[-20000:]
    return job


@pytest.fixture(scope="module")
def saved() -> Iterator[Path]:
    """The files that three nodes of one rank each have saved, and a record of their tables' contents."""
    with tempfile.TemporaryDirectory(prefix="tsps-test-") as folder:
        finished("sharded_saving_program.py", "save", folder, ranks=3, hosts=THREE)
        yield Path(folder)


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        ("localhost:1,127.0.0.1:1", 2),
        pytest.param("localhost:1", 1, marks=pytest.mark.nightly),
        pytest.param("localhost:2", 2, marks=pytest.mark.nightly),
        pytest.param(FIVE, 5, marks=pytest.mark.nightly),
    ],
)
def test_any_number_of_nodes_and_ranks_loads_the_same_rows_and_slots(saved: Path, hosts: str, ranks: int) -> None:
    finished("sharded_saving_program.py", "load", str(saved), ranks=ranks, hosts=hosts)


def test_an_export_is_served_without_ranks(saved: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", ASKED)
    for folder in (saved / "bounded-False", saved / "bounded-True"):
        paths = [str(folder / name) for name in SERVED]
        arguments = [LIBRARY, str(folder / "content.npz"), str(tmp_path / "ids.npy"), *paths]
        subprocess.run([sys.executable, "-c", SERVE, *arguments], check=True, timeout=120)


def test_what_fails_on_one_rank_fails_on_all_and_the_job_goes_on() -> None:
    finished("sharded_saving_errors_program.py", "wrong,tiered", ranks=3, hosts=THREE)


def test_saving_and_loading_pass_rows_on_in_chunks() -> None:
    finished("sharded_saving_errors_program.py", "memory", ranks=3, hosts=THREE)


def test_a_named_job_goes_on_with_as_many_nodes_as_before_alone() -> None:
    with tempfile.TemporaryDirectory(prefix="tsps-test-", dir="/dev/shm") as folder:
        env = {"TFSPS_JOB": "named", "TFSPS_DIR": folder}
        for hosts, ranks in ((THREE, 3), (THREE, 3), ("localhost:1,127.0.0.1:1", 2)):
            with launched("sharded_saving_errors_program.py", "named", hosts=hosts, ranks=ranks, env=env) as job:
                status = job.wait()
                assert (status == 0) == (ranks == 3), job.output[-20000:]
    for text in (
        "with the rows of node 0 of 3; this program makes it with the rows of node 0 of 2",
        "another TFSPS_JOB",
    ):
        assert text in job.output, job.output[-20000:]


def test_a_rank_that_saves_alone_is_told_who_is_missing() -> None:
    with launched(
        "sharded_saving_errors_program.py", "alone", hosts=TWO_NODES, ranks=4, env={"TFSPS_TIMEOUT_S": "4"}
    ) as job:
        assert job.wait() != 0
    assert "in operation 'tsps.save" in job.output, job.output[-20000:]
    # Whichever asks first, the rank in the save or the others elsewhere, names the missing ranks, and where they are.
    assert re.search(
        r"ranks have waited \d+ s in operation '\S+' of step \d+ (\(line .*\) )?for rank \d of node \d", job.output
    )
