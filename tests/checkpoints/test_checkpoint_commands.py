"""`tf-sparse-ps checkpoint diff | compact | export`, and how `list` and `verify` describe increments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tables_support import dense_of_checkpoint, erase, kinds, make_model, of_checkpoint, of_tables, train

import tf_sparse_ps as tsps
from tf_sparse_ps import cli
from tf_sparse_ps.checkpoints import compaction, directory, stored_checkpoint, tables
from tf_sparse_ps.checkpoints.verification import verify
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.rows import import_rows
from tf_sparse_ps.table import Table

pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")


def run(*arguments: object) -> int:
    return cli.main(["checkpoint", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any, Any]:
    """A directory with a base and three increments, of steps 1 to 4; the model; its checkpointer."""
    tmp_path = tmp_path / "checkpoints"
    model, random = make_model(2), np.random.default_rng(0)
    note = tf.Variable(tf.constant([1.5, -2.0], tf.bfloat16), name="note")
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer, keep=9, background=False, extra={"note": note})
    train(model, random, 1000)
    checkpointer.save()
    for _ in range(3):
        train(model, random)
        erase(model, random.integers(0, 400, 20))
        checkpointer.save()
    assert [kinds(checkpoint) for checkpoint in sorted(tmp_path.iterdir())] == [["all"] * 2] + [["changes"] * 2] * 3
    return tmp_path, model, checkpointer


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def step(n: int) -> str:
    return f"step-{n:012d}"


def test_list_and_verify_tell_what_is_built_on(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = saved
    for command in ("list", "verify"):
        assert run(command, path) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].endswith(f"increment 3 of {step(1)}")
        assert lines[3].endswith("on 1 machine")
        assert run(command, path, "--json") == 0
        listed = json.loads(capsys.readouterr().out)
        assert [entry["builds_on"] for entry in listed] == [[step(n) for n in range(1, 1 + m)] for m in (3, 2, 1, 0)]
    (path / step(2) / "t0000-table0.tfsps").unlink()
    assert run("list", path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [("NOT WHOLE" in line, f"builds on {step(2)}" in line) for line in lines] == [
        (True, True),
        (True, True),
        (True, False),
        (False, False),
    ]


def test_compact_merges_and_the_job_goes_on(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, model, checkpointer = saved
    rows, values = of_tables(model), dense_of_checkpoint(path / step(4))
    assert run("compact", path) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{step(4)}  removed"]
    assert names(path) == [step(1), step(2), step(3), f"{step(4)}-2"]
    compacted = path / f"{step(4)}-2"
    assert (kinds(compacted), stored_checkpoint.look(compacted).builds_on) == (["all", "all"], ())
    assert of_checkpoint(compacted) == rows
    for value, expected in zip(dense_of_checkpoint(compacted), values, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert run("verify", path) == 0
    capsys.readouterr()
    # The base of these increments was deleted, so the job saves all rows.
    train(model, np.random.default_rng(1))
    last = checkpointer.save()
    assert kinds(last) == ["all", "all"]
    assert of_checkpoint(last) == of_tables(model)
    # Nothing is left to merge, and `--keep 1` removes all other checkpoints.
    assert run("compact", path, "--keep", 1, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "checkpoint": step(5),
        "merged": [],
        "removed": [step(1), step(2), step(3), f"{step(4)}-2"],
        "bytes": sum(file.size for file in stored_checkpoint.look(Path(last)).manifest.files),
    }
    assert names(path) == [step(5)]


def test_compact_leaves_the_checkpoints_of_before_an_import(saved: Any, tmp_path: Path) -> None:
    path, _, _ = saved
    before, rows = {*names(path)}, tmp_path / "rows.npz"
    np.savez(rows, keys=np.arange(3), rows=np.full((3, 3), 7, np.float32))
    import_rows(rows, path, table="0", slots=False)
    imported = path / f"{step(4)}-2"
    assert verify(imported).manifest.id != stored_checkpoint.look(path / step(4)).manifest.id
    compaction.compact(path)
    assert {*names(path)} == before | {imported.name}
    restored_model = make_model(2)
    note = tf.Variable(tf.constant([0.0, 0.0], tf.bfloat16), name="note")
    tsps.Checkpointer(path, restored_model, restored_model.optimizer, extra={"note": note}).restore()
    np.testing.assert_array_equal(tables.of(restored_model)[0].reader().lookup([2]), [[7, 7, 7]])


def test_compact_is_refused_if_the_job_has_saved_meanwhile(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model, checkpointer = saved
    newest_here = directory.CheckpointDirectory.newest_here

    def slow(self: Any) -> Any:
        found = newest_here(self)
        train(model, np.random.default_rng(1))
        checkpointer.save()
        return found

    monkeypatch.setattr(directory.CheckpointDirectory, "newest_here", slow)
    with pytest.raises(StateError, match=r"was saved to .* meanwhile"):
        compaction.compact(path, keep=1)
    assert run("verify", path) == 0
    assert names(path) == [step(n) for n in range(1, 6)]


def test_a_compacted_checkpoint_is_restored(saved: Any) -> None:
    path, model, _ = saved
    done = compaction.compact(path, keep=1)
    assert done.merged == tuple(step(n) for n in range(1, 5))
    assert names(path) == [f"{step(4)}-2"]
    restored_model = make_model(2)
    note = tf.Variable(tf.constant([0.0, 0.0], tf.bfloat16), name="note")
    checkpointer = tsps.Checkpointer(path, restored_model, restored_model.optimizer, extra={"note": note})
    assert checkpointer.restore() == str(done.checkpoint)
    assert of_tables(restored_model) == of_tables(model)
    np.testing.assert_array_equal(note.numpy().astype(np.float32), [1.5, -2.0])


def test_compact_passes_over_damage_and_is_refused_beside_a_save(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, _ = saved
    file = path / step(4) / "t0001-table1.tfsps"
    file.write_bytes(file.read_bytes()[:-1])
    with directory.CheckpointDirectory(path).saving(9, "rank 0"):
        assert run("compact", path) == 2
        assert "is being written by rank 0" in capsys.readouterr().err
    assert run("compact", path, "--json") == 0
    printed = capsys.readouterr()
    assert "is passed over" in printed.err
    assert json.loads(printed.out)["checkpoint"] == f"{step(3)}-2"
    (path / "empty").mkdir()
    assert run("compact", path / "empty") == 2
    assert "has no checkpoint that is whole" in capsys.readouterr().err


def test_diff_counts_rows_and_names_variables(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = saved
    assert run("diff", path, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["old"], report["new"]) == ({"name": step(3), "step": 3}, {"name": step(4), "step": 4})
    old, new = of_checkpoint(path / step(3)), of_checkpoint(path / step(4))
    for number, counts in enumerate(report["tables"].values()):
        a, b = old[number], new[number]
        common = a.keys() & b.keys()
        assert counts == {
            "equal": sum(a[key] == b[key] for key in common),
            "changed": sum(a[key] != b[key] for key in common),
            "added": len(b.keys() - a.keys()),
            "removed": len(a.keys() - b.keys()),
        }
        assert min(counts.values()) > 0
    assert any("kernel" in name for name in report["variables"]["changed"])
    assert "note" not in report["variables"]["changed"]
    compaction.compact(path)
    assert run("diff", path / f"{step(4)}-2", path) == 0
    out = capsys.readouterr().out
    assert "0 changed, 0 added, 0 removed" in out
    assert run("diff", path / step(2), path / step(3)) == 1
    assert ": changed\n" in capsys.readouterr().out
    assert run("diff", path / step(1), path / "none") == 2


def test_export_writes_files_that_tables_and_numpy_read(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, model, _ = saved
    out = path.parent / "exported"
    assert run("export", path, "--to", out) == 0
    assert capsys.readouterr().out.split() == [
        str(out / name) for name in ("table0.tfsps", "table1.tfsps", "variables.npz", "checkpoint.json")
    ]
    for number, rows in enumerate(of_tables(model)):
        config = TableConfig(f"table{number}", 3, optimizer=tsps.optimizers.Adagrad(learning_rate=0.1))
        with Table.create(path.parent / f"group{number}" / config.name, config) as table:
            assert table.restore(out) == len(rows)
            block = table.scan().read()
            values = np.concatenate([block.rows, *block.slots], 1)
            assert {int(k): v.tobytes() for k, v in zip(block.keys, values, strict=True)} == rows
    facts = json.loads((out / "checkpoint.json").read_text())
    assert (facts["checkpoint"], facts["step"], facts["batch"]) == (step(4), 4, 4)
    with np.load(out / "variables.npz") as arrays:
        assert set(arrays.files) == set(facts["variables"])
        np.testing.assert_array_equal(arrays["note"], np.float32([1.5, -2.0]))
        assert facts["variables"]["note"] == "extra"
    assert run("export", path / step(2), "--to", out) == 2
    assert "export to a folder that is empty" in capsys.readouterr().err
    assert run("export", path / step(2), "--to", path.parent / "other", "--json") == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == step(2)


def test_mistakes_are_told(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = saved
    for arguments in (["compact", path, "--keep", 0], ["export", path], ["diff"], ["merge", path]):
        with pytest.raises(SystemExit, match="2"):
            run(*arguments)
    capsys.readouterr()


def test_one_checkpoint_may_be_named(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = saved
    for command in ("list", "verify"):
        assert run(command, path / step(3)) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.endswith(f"increment 2 of {step(1)}")
    (path / step(1) / "manifest.json").unlink()
    assert run("verify", path / step(3)) == 1
    assert f"it builds on {step(1)}" in capsys.readouterr().out
    for arguments, message in (
        (("compact", path / step(3)), "is a checkpoint. compact takes the directory that it is in"),
        (("compact", path, "--keep", "0"), "must be an integer of at least 1. Received: '0'"),
        (("export", path, "--to", path / step(3) / "variables.npz"), "is there, and no folder"),
    ):
        with pytest.raises(SystemExit):
            run(*arguments)
        assert message in capsys.readouterr().err


def test_the_commands_need_no_tensorflow(saved: Any) -> None:
    path, _, _ = saved
    code = (
        "import sys; from tf_sparse_ps import cli;"
        f"s = [cli.main(['checkpoint', *a]) for a in (['verify', {str(path)!r}], ['diff', {str(path)!r}],"
        f" ['export', {str(path)!r}, '--to', {str(path.parent / 'out')!r}], ['compact', {str(path)!r}])];"
        "assert s == [0, 1, 0, 0], s; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=120)
