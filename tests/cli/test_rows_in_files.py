"""`tf-sparse-ps export` and `import`: rows go to files and come back, from tables, checkpoints and files."""

from __future__ import annotations

from pathlib import Path

import machine
import numpy as np
import pytest
from cli_support import Run, validate

from tf_sparse_ps import optimizers
from tf_sparse_ps import rows as row_files
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A parameter file of keys -50 to 49 with slots."""
    config = TableConfig("words", 4, optimizer=optimizers.Adagrad(learning_rate=0.1), seed=3)
    with Table.create(tmp_path / "group/words", config) as table:
        keys = np.arange(-50, 50)
        table.apply_gradients(keys, np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32))
        row_files.export_rows(table, tmp_path / "words.npz", slots=True)
    row_files.import_rows(tmp_path / "words.npz", tmp_path / "words.tfsps")
    return tmp_path / "words.tfsps"


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".csv"])
def test_rows_and_slots_come_back(words: Path, tmp_path: Path, run: Run, suffix: str) -> None:
    pytest.importorskip("pyarrow")
    file, again = tmp_path / f"rows{suffix}", tmp_path / "again.tfsps"
    done = run("export", words, "--to", file, "--slots", "--json")
    assert done.status == 0, done.err
    validate("export", done.facts)
    assert done.facts["rows"] == 100
    done = run("import", file, "--into", again, "--json")
    assert done.status == 0, done.err
    validate("import", done.facts)
    assert done.facts["rows"] == 100
    assert run("diff", words, again).status == 0
    assert run("export", words, "--to", file).out == f"{file} has 100 rows\n"


def test_keys_are_selected(words: Path, tmp_path: Path, run: Run) -> None:
    keys, file = tmp_path / "keys.txt", tmp_path / "some.npz"
    keys.write_text("3\n-7\n\n1000\n")
    assert run("export", words, "--to", file, "--keys", keys, "--json").facts["rows"] == 2
    assert sorted(np.load(file)["keys"]) == [-7, 3]
    assert run("export", words, "--to", file, "--key-range", "-2", "3", "--json").facts["rows"] == 5
    keys.write_text("red\nblue\n")
    assert run("export", words, "--to", file, "--keys", keys, "--strings", "--json").facts["rows"] == 0
    done = run("export", words, "--to", file, "--keys", keys)
    assert done.status == 2
    assert "keys.txt, line 1: must be an integer of int64. Received: 'red'" in done.err
    done = run("export", words, "--to", file, "--strings")
    assert (done.status, "--strings needs --keys" in done.err) == (2, True)


def test_the_rows_of_one_machine_are_called_so(tmp_path: Path, run: Run) -> None:
    machine.make_sharded(tmp_path / "job-n1" / "t0000-words", node=1, nodes=3)
    done = run("export", tmp_path / "job-n1", "--to", tmp_path / "rows.npz")
    n = len(np.load(tmp_path / "rows.npz")["keys"])
    assert (done.status, done.out) == (0, f"{tmp_path}/rows.npz has {n} rows\n")
    table = f"table {tmp_path}/job-n1/t0000-words"
    assert f"export: {table} has the rows of node 1 of 3 only. Export on each machine" in done.err


def test_what_cannot_be_read_or_written_is_named(words: Path, tmp_path: Path, run: Run) -> None:
    done = run("export", tmp_path / "missing", "--to", tmp_path / "x.npz")
    assert done.status == 2
    assert "missing" in done.err
    done = run("export", words, "--to", tmp_path / "rows.xlsx")
    assert done.status == 2
    assert ".parquet" in done.err
    done = run("import", words, "--into", words)
    assert done.status == 2
    assert str(words) in done.err
    assert run("import", words, "--into", tmp_path / "copy.tfsps", "--no-slots").status == 0
    done = run("export", tmp_path / "copy.tfsps", "--to", tmp_path / "x.npz", "--slots")
    assert done.status == 2
    assert "slots" in done.err
