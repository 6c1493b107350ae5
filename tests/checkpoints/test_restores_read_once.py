"""A restore reads the rows of tables once. If it finds damage, it restores the checkpoint before."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_sparse_ps as tsps
from tf_sparse_ps import cli
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import directory, fault_points, manifest, stored_checkpoint, stored_rows, tables
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.table import scan

keras = _keras.keras
DIM, BLOCKS = 4, 3
ROWS = BLOCKS * 4096
pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")


def make_model() -> Any:
    inputs = keras.Input((2,), dtype="int64")
    parts = [
        keras.layers.Flatten()(tsps.Embedding(None, DIM, table=tsps.TableConfig(name, DIM))(inputs))
        for name in ("first", "second")
    ]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def content(model: Any) -> list[Any]:
    arrays: list[Any] = [variable.numpy() for layer in model.layers[-1:] for variable in layer.weights]
    for binding in tables.of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        order = np.argsort(keys)
        arrays += [keys[order], rows[order], *(slot[order] for slot in slots)]
    return arrays


def must_equal(a: list[Any], b: list[Any]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, list[list[Any]]]:
    """A directory of two checkpoints with all rows, and their contents, the older one first."""
    model = make_model()
    checkpointer = tsps.Checkpointer(tmp_path / "a", model, model.optimizer, incremental=False, background=False)
    contents = []
    for step in (1, 2):
        for number, binding in enumerate(tables.of(model)):
            values = np.random.default_rng([step, number]).normal(size=(ROWS, DIM)).astype(np.float32)
            binding.assign(np.arange(step, ROWS + step), values)
        model.layers[-1].set_weights([np.full((4 * DIM, 1), step, np.float32), np.float32([step])])
        checkpointer.save(step)
        contents.append(content(model))
    return tmp_path / "a", contents


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fault points that a restore reaches. Each block of a file is one mutation of its table."""
    monkeypatch.setattr(scan, "JOINED_BYTES", 4096 * DIM * 4)
    points: list[str] = []
    fault_points.set_action(points.append)
    return points


def newest(path: Path) -> Path:
    return directory.CheckpointDirectory(path).find()[0].path


def file_of(path: Path, number: int = 0) -> Path:
    return path / stored_checkpoint.look(path).manifest.parts(number)[0].file


def damage(file: Path, at: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(at * len(data))] ^= 4
    file.write_bytes(data)


def restore(path: Path) -> tuple[str | None, Any]:
    model = make_model()
    return tsps.Checkpointer(path, model, model.optimizer).restore(), model


def test_rows_are_read_once(
    saved: tuple[Path, list[list[Any]]], reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = saved
    read: list[str] = []
    checksum = stored_checkpoint.file_crc32

    def noting(file: Path, *more: Any) -> str:
        read.append(file.name)
        return checksum(file, *more)

    monkeypatch.setattr(stored_checkpoint, "file_crc32", noting)
    restored_path, model = restore(path)
    assert restored_path == str(newest(path))
    must_equal(content(model), contents[1])
    assert read == [manifest.VARIABLES]
    assert reached.count("rows_restored") == 2 * (BLOCKS + 1)  # the checkpoint also has a key of step 1


@pytest.mark.parametrize(("number", "at", "n_applied"), [(0, 0.9, 2), (0, 0.1, 0), (1, 0.5, BLOCKS + 2)])
def test_damage_that_is_found_on_the_way_leads_to_the_checkpoint_before(
    saved: tuple[Path, list[list[Any]]], reached: list[str], number: int, at: float, n_applied: int
) -> None:
    path, contents = saved
    damage(file_of(newest(path), number), at)
    with (
        pytest.warns(UserWarning, match="is not whole, an older one is looked for: .*damaged parameter file"),
        pytest.warns(UserWarning, match="is passed over: .*damaged: its checksum"),
    ):
        restored_path, model = restore(path)
    assert restored_path == str(path / "step-000000000001")
    must_equal(content(model), contents[0])
    reached_before = reached[: [i for i, point in enumerate(reached) if point == "compared"][1]]
    assert reached_before.count("rows_restored") == n_applied, "the damage was not found where this case needs it"
    assert "step_set" not in reached_before
    assert "variables_restored" not in reached_before


@pytest.mark.parametrize("per_node", [False, True])
def test_what_says_nothing_of_a_checkpoint_ends_the_restore(
    saved: tuple[Path, list[list[Any]]], monkeypatch: pytest.MonkeyPatch, per_node: bool
) -> None:
    path, contents = saved
    checksum, limit = stored_checkpoint.file_crc32, [OSError(errno.EMFILE, "Too many open files")]

    def refusing(file: Path, *more: Any) -> str:
        if file.parent == newest(path) and limit:
            raise limit.pop()
        return checksum(file, *more)

    monkeypatch.setattr(stored_checkpoint, "file_crc32", refusing)
    if not per_node:  # a checkpoint that is checked again is read then
        limit *= 2
    model = make_model()
    checkpointer = tsps.Checkpointer(path, model, model.optimizer, per_node=per_node)
    with pytest.raises(OSError, match="Too many open files"):
        checkpointer.restore()
    assert len(list(path.glob("step-*"))) == 2
    model = make_model()
    checkpointer = tsps.Checkpointer(path, model, model.optimizer, per_node=per_node)
    assert checkpointer.restore() == str(newest(path))
    must_equal(content(model), contents[1])


def test_a_file_with_the_rows_of_another_is_found_out(
    saved: tuple[Path, list[list[Any]]], reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = saved
    wrong = file_of(newest(path))
    shutil.copy(file_of(newest(path), 1), wrong)  # the copy is complete, and has the same step and size
    with pytest.warns(UserWarning, match="an older one is looked for: .* it has the rows of another file"):
        restored_path, model = restore(path)
    assert restored_path == str(path / "step-000000000001")
    must_equal(content(model), contents[0])
    # The control: without the comparison, the wrong file is restored.
    monkeypatch.setattr(stored_rows._File, "check", lambda *_: None)
    restored_path, model = restore(path)
    assert restored_path == str(newest(path))
    assert any((a != b).any() for a, b in zip(content(model), contents[1], strict=True))


def test_a_damaged_checkpoint_that_is_the_only_one_changes_nothing(
    saved: tuple[Path, list[list[Any]]], reached: list[str]
) -> None:
    path, _ = saved
    shutil.rmtree(path / "step-000000000001")
    damage(file_of(newest(path)), 0.9)
    model = make_model()
    with (
        pytest.warns(UserWarning, match="is passed over"),
        pytest.raises(StateError, match="has checkpoints, step-000000000002, and none of them is whole"),
    ):
        tsps.Checkpointer(path, model, model.optimizer).restore()
    assert reached == []
    assert len(tables.of(model)[0].reader()) == 0
    assert newest(path).exists()


def test_a_damaged_checkpoint_of_the_beginning_is_begun_anew(tmp_path: Path) -> None:
    model = make_model()
    tsps.Checkpointer(tmp_path, model, model.optimizer, background=False).save()
    damage(newest(tmp_path) / manifest.NAME, 0.5)
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer, background=False)
    with pytest.warns(UserWarning, match="is passed over"):
        assert checkpointer.restore() is None
    checkpointer.save()
    assert [checkpoint.name for checkpoint in tmp_path.glob("step-*")] == ["step-000000000000-2"]


def test_where_all_are_damaged_nothing_is_trained_on(saved: tuple[Path, list[list[Any]]], reached: list[str]) -> None:
    path, _ = saved
    for checkpoint in directory.CheckpointDirectory(path).find():
        damage(file_of(checkpoint.path), 0.9)
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(
            StateError,
            match=r"none of them is whole\. To start from initial values, use another directory, and another TF",
        ),
    ):
        restore(path)
    assert reached.count("compared") == 1


def test_checkpoints_without_these_checksums_are_read_first(
    saved: tuple[Path, list[list[Any]]], reached: list[str]
) -> None:
    path, contents = saved
    file = newest(path) / manifest.NAME
    content_of_manifest = manifest.Manifest.decode(file.read_bytes(), "")
    older = tuple(
        {**table, "parts": [{**part, "rows_checksum": None} for part in table["parts"]]}
        for table in content_of_manifest.tables
    )
    file.write_bytes(dataclasses.replace(content_of_manifest, tables=older).encode())
    must_equal(content(restore(path)[1]), contents[1])
    damage(file_of(newest(path)), 0.9)
    reached.clear()
    with pytest.warns(UserWarning, match="is passed over"):
        must_equal(content(restore(path)[1]), contents[0])
    assert reached.count("compared") == 1


def test_a_compacted_checkpoint_has_them(tmp_path: Path, reached: list[str]) -> None:
    model = make_model()
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer, background=False)
    for step in (1, 2):
        for binding in tables.of(model):
            binding.assign(np.arange(step * 10, dtype=np.int64), np.full((step * 10, DIM), step, np.float32))
        checkpointer.save(step)
    assert stored_checkpoint.look(newest(tmp_path)).builds_on
    must_equal(content(restore(tmp_path)[1]), content(model))
    assert cli.main(["checkpoint", "compact", str(tmp_path)]) == 0
    assert not stored_checkpoint.look(newest(tmp_path)).builds_on
    assert all(part.rows_checksum for part in stored_checkpoint.look(newest(tmp_path)).manifest.all_parts)
    must_equal(content(restore(tmp_path)[1]), content(model))
