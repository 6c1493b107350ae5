"""Rows that are erased in a job and from its checkpoints stay away: `layer.erase`, `tf-sparse-ps checkpoint erase`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables_support import KEYS, dense_of_checkpoint, keras, kinds, make_model, of_checkpoint, of_tables, train

import tf_sparse_ps as tsps
from tf_sparse_ps import cli
from tf_sparse_ps.checkpoints import directory, erasing
from tf_sparse_ps.errors import InvalidArgumentError, StateError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")
GONE = np.arange(0, KEYS, 7)


KILLED = """
import os, signal
from tf_sparse_ps.checkpoints import fault_points
from tf_sparse_ps import cli
fault_points.set_action(lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == {point!r} else None)
cli.main({command})
"""


def run(*arguments: object) -> int:
    return cli.main(["checkpoint", *map(str, arguments)])


def layer_of(model: Any, number: int = 0) -> Any:
    return [layer for layer in model.layers if isinstance(layer, tsps.Embedding)][number]


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def contains(path: Path, needle: bytes) -> bool:
    """Whether the bytes of any file below a folder contain a needle."""
    return any(needle in file.read_bytes() for file in path.rglob("*") if file.is_file())


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any, Any]:
    """A directory with a base and two increments; the model of two tables; its checkpointer."""
    path = tmp_path / "checkpoints"
    model, random = make_model(2), np.random.default_rng(0)
    checkpointer = tsps.Checkpointer(path, model, model.optimizer, keep=9, background=False)
    train(model, random, 1000)
    checkpointer.save()
    for _ in range(2):
        train(model, random)
        checkpointer.save()
    return path, model, checkpointer


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    file = tmp_path / "ids.txt"
    file.write_text("\n".join(map(str, GONE)) + "\n")
    return file


# --- in a job ---


def test_an_increment_after_an_erasure_restores_without_the_rows(saved: Any) -> None:
    path, model, checkpointer = saved
    layer_of(model).erase(GONE)
    last = checkpointer.save()
    assert kinds(last)[0] == "changes"
    expected = of_tables(model)
    assert not set(GONE.tolist()) & set(expected[0])
    assert set(GONE.tolist()) <= set(expected[1])
    restored = make_model(2)
    tsps.Checkpointer(path, restored, restored.optimizer).restore()
    assert of_tables(restored) == expected


# --- from checkpoints ---


def test_no_file_has_the_rows_afterwards(saved: Any, ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model, _ = saved
    before, dense = of_tables(model), dense_of_checkpoint(path / names(path)[-1])
    needle = before[0][int(GONE[3])][:12]  # the row of one of the keys, float32[3]
    assert contains(path, needle)
    assert run("erase", path, "--keys", ids, "--table", "table0") == 0
    kept_name = "step-000000000003-2"
    assert capsys.readouterr().out.splitlines() == [
        f"{kept_name}  without {len(GONE)} rows of {len(GONE)} ids",
        *(f"step-{number:012d}  removed" for number in (1, 2, 3)),
    ]
    assert names(path) == [kept_name]
    assert not contains(path, needle)
    expected = {key: row for key, row in before[0].items() if key not in set(GONE.tolist())}
    assert of_checkpoint(path / kept_name) == [expected, before[1]]
    for value, saved_value in zip(dense_of_checkpoint(path / kept_name), dense, strict=True):
        np.testing.assert_array_equal(value, saved_value)
    assert run("verify", path) == 0
    restored = make_model(2)
    tsps.Checkpointer(path, restored, restored.optimizer).restore()
    assert of_tables(restored) == [expected, before[1]]


def test_the_job_saves_all_rows_next(saved: Any, ids: Path) -> None:
    path, model, checkpointer = saved
    layer_of(model).erase(GONE)
    assert run("erase", path, "--keys", ids, "--table", "table0") == 0
    train(model, np.random.default_rng(5), keys=5)
    last = checkpointer.save()
    assert kinds(last) == ["all", "all"]
    assert of_checkpoint(last) == of_tables(model)


def test_without_a_rewrite_the_rows_are_found(saved: Any) -> None:
    """The control of `contains`: compaction keeps the rows."""
    path, model, _ = saved
    needle = of_tables(model)[0][int(GONE[3])][:12]
    assert run("compact", path, "--keep", 1) == 0
    assert contains(path, needle)


def test_a_killed_erasure_is_done_by_the_next(saved: Any, ids: Path) -> None:
    path, model, _ = saved
    before = of_tables(model)
    for point in ("manifest_written", "renamed", "set_aside", "removed"):
        command = ["checkpoint", "erase", str(path), "--keys", str(ids), "--table", "table0"]
        killed = subprocess.run(
            [sys.executable, "-c", KILLED.format(point=point, command=command)],
            env={**os.environ, "PYTHONPATH": str(Path(tsps.__file__).parent.parent)},
            check=False,
            timeout=60,
            capture_output=True,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert of_checkpoint(directory.CheckpointDirectory(path).find()[0].path)[1] == before[1]
    assert run("erase", path, "--keys", ids, "--table", "table0") == 0
    assert len(names(path)) == 1
    assert not set(GONE.tolist()) & set(of_checkpoint(path / names(path)[0])[0])


def test_only_one_table_needs_no_name(tmp_path: Path, ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model = tmp_path / "checkpoints", make_model(1)
    train(model, np.random.default_rng(0), 1000)
    tsps.Checkpointer(path, model, model.optimizer, background=False).save()
    assert run("erase", path, "--keys", ids, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "checkpoint": "step-000000000001-2",
        "rows": len(GONE),
        "removed": ["step-000000000001"],
    }
    assert run("erase", path, "--keys", ids, "--json") == 0  # they are gone, which is no error
    assert json.loads(capsys.readouterr().out)["rows"] == 0


def test_what_cannot_be_erased_is_named(saved: Any, ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = saved
    before = names(path)
    assert run("erase", path, "--keys", ids) == 2
    assert "has the tables ['table0', 'table1']. Select one" in capsys.readouterr().err
    assert run("erase", path, "--keys", ids, "--table", "tabel0") == 2
    assert "'tabel0'" in capsys.readouterr().err
    assert run("erase", path, "--keys", path / "absent", "--table", "table0") == 2
    assert "absent" in capsys.readouterr().err
    with directory.CheckpointDirectory(path).saving(9, "rank 0") as save:
        assert run("erase", path, "--keys", ids, "--table", "table0") == 2
        save.discard()
        assert "is being written by rank 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("erase", path / before[0], "--keys", ids)
    assert names(path) == before


def test_a_checkpoint_that_is_saved_meanwhile_stays(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model, checkpointer = saved
    newest = directory.CheckpointDirectory.newest

    def save_after(self: Any, *args: Any) -> Any:
        found = newest(self, *args)
        train(model, np.random.default_rng(8))
        checkpointer.save()
        return found

    monkeypatch.setattr(directory.CheckpointDirectory, "newest", save_after)
    with pytest.raises(StateError, match=r"was saved to .* meanwhile\. Nothing was changed"):
        erasing.erase(path, GONE, "table0")
    assert names(path) == [f"step-{number:012d}" for number in range(1, 5)]


def test_a_directory_of_one_machine_is_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "checkpoints", make_model(1)
    train(model, np.random.default_rng(0), 1000)
    tsps.Checkpointer(path, model, model.optimizer, background=False, per_node=True).save()
    with pytest.raises(UnsupportedError, match=r"of machine 0 only \(per_node=True\)"):
        erasing.erase(path, GONE)


def test_tables_of_one_name_are_selected_by_their_place(tmp_path: Path) -> None:
    inputs = keras.Input((2,), dtype="int64")
    config = [tsps.TableConfig("user", 3) for _ in range(2)]
    parts = [keras.layers.Flatten()(tsps.Embedding(None, 3, table=one)(inputs)) for one in config]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    train(model, np.random.default_rng(0), 1000)
    path = tmp_path / "checkpoints"
    tsps.Checkpointer(path, model, model.optimizer, background=False).save()
    with pytest.raises(InvalidArgumentError, match=r"\['user', 'user'\]. Select one .*Received: 'user'"):
        erasing.erase(path, GONE, "user")
    done = erasing.erase(path, GONE, "1")
    before = of_tables(model)
    assert of_checkpoint(done.checkpoint)[0] == before[0]
    assert set(of_checkpoint(done.checkpoint)[1]) == set(before[1]) - set(GONE.tolist())
    assert done.rows == len(set(before[1]) & set(GONE.tolist())) > 0


def test_no_ids_change_nothing(saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = saved
    before = names(path)
    (tmp_path / "none.txt").touch()
    assert run("erase", path, "--keys", tmp_path / "none.txt", "--table", "table0") == 2
    assert "there are no ids to erase" in capsys.readouterr().err
    assert names(path) == before


def test_an_erasure_is_something_to_save(saved: Any) -> None:
    _, model, checkpointer = saved
    assert not checkpointer.unsaved
    layer_of(model).erase(GONE)
    assert checkpointer.unsaved
    checkpointer.save()
    assert not checkpointer.unsaved


# --- files of keys ---


def test_files_of_integers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"1\n -2 \n\n{2**63 - 1}\n{-(2**63)}")
    np.testing.assert_array_equal(erasing.read_keys(tmp_path / "a.txt"), [1, -2, 2**63 - 1, -(2**63)])
    np.save(tmp_path / "a.npy", np.array([[1], [2**63 - 1]], np.uint64))
    np.testing.assert_array_equal(erasing.read_keys(tmp_path / "a.npy"), [1, 2**63 - 1])
    (tmp_path / "empty.txt").touch()
    assert erasing.read_keys(tmp_path / "empty.txt").dtype == np.int64


def test_files_of_strings(tmp_path: Path) -> None:
    expected = tsps.keys.fingerprint(["rome", "zürich", " lima"])
    for text in ("rome\nzürich\n\n lima", "\ufeffrome\r\nzürich\r\n lima\r\n"):
        (tmp_path / "a.txt").write_bytes(text.encode())
        np.testing.assert_array_equal(erasing.read_keys(tmp_path / "a.txt", strings=True), expected)
    np.save(tmp_path / "a.npy", np.array(["rome", "zürich", " lima"]))
    (tmp_path / "a.npy").rename(tmp_path / "a.NPY")
    np.testing.assert_array_equal(erasing.read_keys(tmp_path / "a.NPY", strings=True), expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1\nx\n", "line 2: must be an integer of int64. Received: 'x'"),
        ("1.5", "line 1"),
        ("1_000", "'1_000'"),
        (str(2**63), f"line 1: .*Received: '{2**63}'"),
        ("9" * 5000, f"Received: '{'9' * 60}'$"),
    ],
)
def test_lines_that_are_no_keys(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(InvalidArgumentError, match=words):
        erasing.read_keys(tmp_path / "a.txt")


@pytest.mark.parametrize("array", [[1.5], ["a"], np.array([2**63], np.uint64)], ids=str)
def test_arrays_that_are_no_keys(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "a.npy", np.array(array))
    with pytest.raises(InvalidArgumentError, match=r"must be an array of integers of int64\. Received"):
        erasing.read_keys(tmp_path / "a.npy")
    for content in (b"no array", b""):
        (tmp_path / "b.npy").write_bytes(content)
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            erasing.read_keys(tmp_path / "b.npy")
    np.savez(tmp_path / "c.npz", np.array([1]))
    (tmp_path / "c.npz").rename(tmp_path / "c.npy")
    with pytest.raises(InvalidArgumentError, match="is no array, but an archive"):
        erasing.read_keys(tmp_path / "c.npy")
    (tmp_path / "d.txt").write_text("rome", "utf-16")
    with pytest.raises(InvalidArgumentError, match="is no text in UTF-8"):
        erasing.read_keys(tmp_path / "d.txt", strings=True)
