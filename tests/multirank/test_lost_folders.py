"""Nodes of a named job whose tables were made in different runs train alike, or are told that they cannot."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from launch import launched

import tf_sparse_ps as tsps
from tf_sparse_ps.rows import export_rows

HOSTS = "localhost:1,127.0.0.1:1"


@pytest.fixture
def tables() -> Iterator[Path]:
    """The folder of tables of all runs of a test."""
    folder = Path(tempfile.mkdtemp(prefix="tsps-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def run(tables: Path, what: str, results: Path, status: int = 0) -> str:
    """Runs the job on two nodes. Returns its output."""
    environment = {"TFSPS_DIR": str(tables), "TFSPS_JOB": "lost"}
    with launched("lost_folder_program.py", what, str(results), hosts=HOSTS, ranks=2, env=environment) as job:
        assert (job.wait() == 0) == (status == 0), job.output[-20000:]
        return job.output


def group_of_node(tables: Path, node: int) -> Path:
    (path,) = tables.glob(f"**/lost-n{node}")
    return path


@pytest.mark.daily
def test_nodes_train_alike_after_one_has_lost_its_folder(tables: Path, tmp_path: Path) -> None:
    run(tables, "make", tmp_path)
    shutil.rmtree(group_of_node(tables, 1))
    run(tables, "train", tmp_path)
    for name in ("trained0", "trained1", "loaded0", "loaded1"):
        first, second = (np.load(tmp_path / f"{name}-{rank}.npz") for rank in (0, 1))
        np.testing.assert_array_equal(first["keys"], second["keys"], name)
        np.testing.assert_array_equal(first["rows"], second["rows"], name)
    assert len(np.load(tmp_path / "trained0-0.npz")["keys"]) == 1000
    assert 0 < len(np.load(tmp_path / "trained1-0.npz")["keys"]) < 1500


def test_a_write_that_an_earlier_run_made_on_one_node_only_is_replaced(tables: Path, tmp_path: Path) -> None:
    run(tables, "make", tmp_path)
    folders = sorted(group_of_node(tables, 1).glob("t0001-*"))  # of the table, and of its counts
    with tsps.Table.open(folders[0], "r+") as half_written:  # node 0 was killed before its write
        half_written.assign([5000], np.ones((1, 3), np.float32))
    run(tables, "train", tmp_path)
    first, second = (np.load(tmp_path / f"trained1-{rank}.npz") for rank in (0, 1))
    np.testing.assert_array_equal(first["keys"], second["keys"])
    np.testing.assert_array_equal(first["rows"], second["rows"])


@pytest.mark.daily
def test_a_checkpoint_before_the_first_step_has_what_one_rank_has_loaded(tables: Path, tmp_path: Path) -> None:
    run(tables, "save", tmp_path)
    for rank in (0, 1):
        assert np.load(tmp_path / f"saved0-{rank}.npz")["keys"].tolist() == list(range(100))
    np.testing.assert_array_equal(*(np.load(tmp_path / f"dense-{rank}.npy") for rank in (0, 1)))
    assert export_rows(tmp_path / "checkpoints", tmp_path / "rows.npz", table="0") == 100


def test_groups_of_different_runs_are_refused(tables: Path, tmp_path: Path) -> None:
    run(tables, "make", tmp_path)
    kept = group_of_node(tables, 1)
    shutil.move(kept, tmp_path / "kept")
    shutil.rmtree(group_of_node(tables, 0))
    run(tables, "make", tmp_path)
    shutil.rmtree(kept)
    shutil.move(tmp_path / "kept", kept)
    output = run(tables, "train", tmp_path, status=1)
    assert "index seed of table 0" in output
    assert "index seed of the counts of table 1" in output
    assert "Remove the job's folders on all machines" in output
