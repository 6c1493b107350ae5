"""Increments: a base and its increments restore what a checkpoint of all rows would, and never mix with other runs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables_support import (
    dense,
    dense_of_checkpoint,
    erase,
    keras,
    kinds,
    make_model,
    of_checkpoint,
    of_tables,
    train,
)

import tf_sparse_ps as tsps
from tf_sparse_ps import checked_json
from tf_sparse_ps.checkpoints import fault_points, increments, stored_checkpoint, tables
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.errors import DamagedFileError, NotSavedError

pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")


def checkpointer(path: Path, model: Any, **options: Any) -> Any:
    return tsps.Checkpointer(path, model, model.optimizer, **{"keep": 100, "background": False, **options})


def saved_in_turn(path: Path, model: Any, times: int, seed: int, **options: Any) -> dict[str, list[Any]]:
    """Trains, erases and saves. Returns the content of the tables and the dense variables at each save."""
    random = np.random.default_rng(seed)
    saver = checkpointer(path, model, **options)
    train(model, random, 300)
    expected = {}
    for number in range(times):
        for _ in range(int(random.integers(0, 3))):
            train(model, random, int(random.integers(1, 15)))
            if random.random() < 0.4:
                erase(model, random.integers(0, 400, 12))
        expected[saver.save(number)] = [of_tables(model), dense(model)]
    saver.wait()
    return expected


def must_hold(expected: dict[str, list[Any]]) -> None:
    for path, (rows, values) in expected.items():
        assert of_checkpoint(path) == rows, path
        for value, expected_value in zip(dense_of_checkpoint(path), values, strict=True):
            np.testing.assert_array_equal(value, expected_value)


@pytest.mark.parametrize("background", [False, True])
def test_an_increment_has_what_a_checkpoint_of_all_rows_has(tmp_path: Path, background: bool) -> None:
    expected = saved_in_turn(tmp_path, make_model(2), 30, seed=int(background), background=background)
    must_hold(expected)
    contents = [stored_checkpoint.look(Path(path)).manifest for path in expected]
    of_kinds = [kinds(path) for path in expected]
    assert of_kinds.count(["all", "all"]) >= 2
    assert of_kinds.count(["changes", "changes"]) >= 20
    assert max(len(content.chain) for content in contents) >= 5
    assert any(part.erased for content in contents for part in content.all_parts)
    full = min(content.table_bytes for content in contents if not content.chain)
    assert min(content.table_bytes for content in contents if content.chain) < full / 4


def test_the_test_fails_if_changes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tables.mark_changes
    marks_made: list[dict[str, str]] = []

    def late(bindings: Any) -> dict[str, str]:
        marks = mark(bindings)
        mark(bindings)  # changes between the two calls get the generation of the first
        marks_made.append(marks)
        parts = {uuid: mark_of_table.rpartition(":") for uuid, mark_of_table in marks.items()}
        return {uuid: f"{life}:{int(generation) + 2}" for uuid, (life, _, generation) in parts.items()}

    monkeypatch.setattr(tables, "mark_changes", late)
    with pytest.raises(AssertionError, match="step-"):
        must_hold(saved_in_turn(tmp_path, make_model(), 10, seed=2))
    assert len(marks_made) == 10


def test_rows_on_disk_are_in_increments(tmp_path: Path) -> None:
    storage = tsps.Tiered(str(tmp_path / "disk"), memory=7 << 19)
    model = make_model(width=64, storage=storage)
    random = np.random.default_rng(3)
    saver = checkpointer(tmp_path / "checkpoints", model)
    for _ in range(24):
        train(model, random, 600, keys=20_000)
    expected = {}
    for number in range(6):
        train(model, random, 40, keys=20_000)
        expected[saver.save(number)] = [of_tables(model), dense(model)]
    assert tables.of(model)[0].reader().stats()["rows_on_disk"] > 1000
    assert [kinds(path) for path in expected] == [["all"]] + [["changes"]] * 5
    must_hold(expected)
    # The restored table keeps all rows in memory.
    restored_model = make_model(width=64)
    assert checkpointer(tmp_path / "checkpoints", restored_model).restore() == list(expected)[-1]
    assert of_tables(restored_model) == of_tables(model)


@pytest.mark.nightly
def test_a_chain_is_restored_and_the_next_checkpoint_has_all_rows(tmp_path: Path) -> None:
    saved_model = make_model()
    expected = saved_in_turn(tmp_path, saved_model, 6, seed=4)
    last = list(expected)[-1]
    assert kinds(last) == ["changes"]
    other_model = make_model()
    erase(other_model, np.arange(10))
    train(other_model, np.random.default_rng(0), 100)
    restored_model = make_model()
    saver = checkpointer(tmp_path, restored_model)
    assert saver.restore() == last
    assert of_tables(restored_model) == expected[last][0]
    train(restored_model, np.random.default_rng(1))
    assert kinds(saver.save(100)) == ["all"]
    train(restored_model, np.random.default_rng(2))
    path = saver.save(101)
    assert kinds(path) == ["changes"]
    assert of_checkpoint(path) == of_tables(restored_model)


def test_the_chain_is_bounded_by_number_and_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "MOST_INCREMENTS", 3)
    model, random = make_model(), np.random.default_rng(5)
    saver = checkpointer(tmp_path / "a", model)
    train(model, random, 1000)

    def one_more(n: int = 1) -> str:
        train(model, random, n)
        return kinds(saver.save())[0]

    assert [one_more() for _ in range(9)] == (["all"] + ["changes"] * 3) * 2 + ["all"]
    # An increment that has more than half of the base's rows is written, and ends the chain.
    assert [one_more(n) for n in (400, 1, 1)] == ["changes", "all", "changes"]
    monkeypatch.setattr(increments, "MOST_BYTES", 1e9)
    saver = checkpointer(tmp_path / "b", model)
    assert [one_more(n) for n in (400, 400, 400)] == ["all", "changes", "changes"]
    saver = checkpointer(tmp_path / "c", model, incremental=False)
    assert [one_more() for _ in range(3)] == ["all"] * 3


def test_what_is_not_known_to_have_changed_is_saved_whole(tmp_path: Path) -> None:
    model, random = make_model(), np.random.default_rng(6)
    saver = checkpointer(tmp_path, model)
    train(model, random, 1000)
    saver.save()
    train(model, random)
    assert kinds(saver.save()) == ["changes"]
    (binding,) = tables.of(model)
    binding.bind_optimizer(tsps.optimizers.Adam(learning_rate=0.1), replace=True)  # replaces all slots
    path = saver.save(50)
    assert kinds(path) == ["all"]
    assert of_checkpoint(path) == of_tables(model)


def test_changes_of_a_save_that_failed_are_in_the_next_one(tmp_path: Path) -> None:
    def full(point: str) -> None:
        if point == "manifest_written":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model, random = make_model(), np.random.default_rng(7)
    saver = checkpointer(tmp_path, model, background=True)
    train(model, random, 1000)
    saver.save()
    train(model, random)
    saver.wait()
    fault_points.set_action(full)
    saver.save()
    train(model, random)
    with pytest.raises(NotSavedError, match=r"of step 2 was not saved to .* No space"):
        saver.save()
    fault_points.set_action(None)
    saver.wait()  # the failure was reported already
    path = saver.save()
    saver.wait()
    assert kinds(path) == ["changes"]
    assert of_checkpoint(path) == of_tables(model)
    assert saver.unsaved is False


def test_what_an_increment_builds_on_stays(tmp_path: Path) -> None:
    model, random = make_model(), np.random.default_rng(8)
    saver = checkpointer(tmp_path, model, keep=1)
    train(model, random, 1000)
    paths = []
    for _ in range(4):
        train(model, random)
        paths.append(saver.save())
    assert sorted(map(str, tmp_path.glob("step-*"))) == paths
    assert of_checkpoint(paths[-1]) == of_tables(model)
    saver._saver.forget()
    paths = [saver.save(100)]
    assert sorted(map(str, tmp_path.glob("step-*"))) == paths


def test_one_that_does_not_build_on_the_same_base_stays_too(tmp_path: Path) -> None:
    model, random = make_model(), np.random.default_rng(9)
    saver = checkpointer(tmp_path, model, keep=2)
    train(model, random, 1000)
    steps = []
    for number in range(8):
        if number in (2, 5):
            saver._saver.forget()
        train(model, random)
        steps.append(saver.save(number))
    # 7 builds on 5 and 6, which count as kept, and 4 builds on 2 and 3.
    assert sorted(map(str, tmp_path.glob("step-*"))) == steps[2:]


# --- damage, and checkpoints of other runs ---


def _newest(path: Path) -> tuple[str | None, list[str]]:
    newest, skipped = CheckpointDirectory(path).newest()
    return (None if newest is None else newest.path.name), [path_skipped.name for path_skipped in skipped]


@pytest.mark.parametrize("part", ["base", "increment"])
def test_a_checkpoint_whose_base_or_increment_is_damaged_is_passed_over(tmp_path: Path, part: str) -> None:
    model, random = make_model(), np.random.default_rng(10)
    saver = checkpointer(tmp_path, model)
    train(model, random, 1000)
    paths = []
    for number in range(7):
        if number == 3:
            saver._saver.forget()
        train(model, random)
        paths.append(Path(saver.save(number)))
    damaged = paths[3] if part == "base" else paths[4]
    file = damaged / "t0000-table0.tfsps"
    data = bytearray(file.read_bytes())
    data[-20] ^= 4
    file.write_bytes(data)
    with pytest.warns(UserWarning, match=f"is passed over: it builds on {damaged.name}, and .* is damaged"):
        name, skipped = _newest(tmp_path)
    assert name == paths[2 if part == "base" else 3].name
    assert skipped == [path.name for path in reversed(paths[3 if part == "base" else 4 :])]
    shutil.rmtree(damaged)
    with pytest.warns(UserWarning, match=f"it builds on {damaged.name}, and .* is missing"):
        assert _newest(tmp_path)[0] == name


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two directories with checkpoints of the same names and tables: full, two increments, full, two increments."""
    paths = []
    model = make_model()
    for number in range(2):
        path = tmp_path_factory.mktemp(f"run{number}")
        random = np.random.default_rng(11 + number)
        saver = checkpointer(path, model)
        train(model, random, 1000)
        for step in range(6):
            if step == 3:
                saver._saver.forget()
            train(model, random)
            saver.save(step)
        paths.append(path)
    return paths[0], paths[1]


def _names(path: Path) -> list[str]:
    return sorted(path_of_checkpoint.name for path_of_checkpoint in path.glob("step-*"))


def _from(source: Path, name: str, to: Path) -> None:
    shutil.rmtree(to)
    shutil.copytree(source / name, to)


# Each case copies checkpoints from the other run, or renames some of this run, and names the newest valid one.
MIXED: dict[str, tuple[Callable[[list[Path], Path, list[str]], None], int]] = {
    "an increment of another run": (lambda this_run, other_run, names: _from(other_run, names[5], this_run[5]), 4),
    "an increment of another run in the middle": (
        lambda this_run, other_run, names: _from(other_run, names[4], this_run[4]),
        3,
    ),
    "the base of another run": (lambda this_run, other_run, names: _from(other_run, names[3], this_run[3]), 3),
    "base and first increment of another run": (
        lambda this_run, other_run, names: (
            _from(other_run, names[3], this_run[3]),
            _from(other_run, names[4], this_run[4]),
        )[0],
        4,
    ),
    "the files of an increment of another base": (
        lambda this_run, other_run, names: shutil.copy(
            this_run[1] / "t0000-table0.tfsps", this_run[4] / "t0000-table0.tfsps"
        )
        and None,
        3,
    ),
}


def _mix(tmp_path: Path, runs: tuple[Path, Path], how: str) -> tuple[Path, str]:
    """Returns a directory with mixed checkpoints, and the checkpoint that must be found in it."""
    folder = tmp_path / "mixed"
    shutil.copytree(runs[0], folder)
    names = _names(folder)
    mix, expected = MIXED[how]
    mix([folder / name for name in names], runs[1], names)
    return folder, names[expected]


@pytest.mark.parametrize("how", MIXED)
def test_an_increment_is_never_added_to_another_run_or_base(
    tmp_path: Path, two_runs: tuple[Path, Path], how: str
) -> None:
    folder, expected = _mix(tmp_path, two_runs, how)
    with pytest.warns(UserWarning, match="is passed over"):
        newest, _ = _newest(folder)
    assert newest == expected
    restored = of_checkpoint(folder / expected)
    assert restored in (of_checkpoint(two_runs[0] / expected), of_checkpoint(two_runs[1] / expected))


def test_the_test_of_mixing_fails_without_the_ids(
    tmp_path: Path, two_runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(self: Any, path: Path) -> Any:
        checkpoint = self._read_alone(path)
        chain = tuple(self._read_alone(path.parent / link.name) for link in checkpoint.manifest.chain)
        return checkpoint._replace(builds_on=chain)

    monkeypatch.setattr(stored_checkpoint.CheckpointReader, "read", blind)
    folder, expected = _mix(tmp_path, two_runs, "an increment of another run in the middle")
    newest, _ = _newest(folder)
    assert newest is not None
    assert newest != expected
    assert of_checkpoint(folder / newest) != of_checkpoint(two_runs[0] / newest)


def test_a_chain_that_leads_out_of_the_directory_is_damage(two_runs: tuple[Path, Path]) -> None:
    import dataclasses

    path = two_runs[0] / _names(two_runs[0])[1]
    data = (path / "manifest.json").read_bytes()
    content = stored_checkpoint.look(path).manifest
    outside = tuple(dataclasses.replace(link, name="../" + link.name) for link in content.chain)
    try:
        (path / "manifest.json").write_bytes(dataclasses.replace(content, chain=outside).encode())
        with pytest.raises(DamagedFileError, match=r"it builds on '\.\./step-"):
            stored_checkpoint.check(path)
    finally:
        (path / "manifest.json").write_bytes(data)


def test_a_checkpoint_of_the_version_before_is_read(tmp_path: Path) -> None:
    from tf_sparse_ps.checkpoints import manifest

    model = make_model()
    train(model, np.random.default_rng(12), 100)
    path = Path(checkpointer(tmp_path, model).save())
    content = json.loads((path / manifest.NAME).read_bytes())["content"]
    content["version"] = 1
    for name in ("run", "chain"):
        del content[name]
    for table in content["tables"]:
        (part,) = table.pop("parts")
        table["file"] = part["file"]
        del table["id"]
    (path / manifest.NAME).write_bytes(checked_json.encode(content))
    restored_model = make_model()
    assert checkpointer(tmp_path, restored_model).restore() == str(path)
    assert of_tables(restored_model) == of_tables(model)


def test_the_callback_saves_increments(tmp_path: Path) -> None:
    random = np.random.default_rng(13)
    x, y = random.integers(0, 2000, (4000, 2)), random.normal(size=(4000, 1)).astype(np.float32)

    def make(epoch: int) -> Any:
        import tensorflow as tf

        large_batch = tf.data.Dataset.from_tensor_slices((x, y)).batch(4000)
        return large_batch.concatenate(tf.data.Dataset.from_tensor_slices((x[:40], y[:40])).batch(8))

    for incremental in (True, False):
        model, path = make_model(), tmp_path / str(incremental)
        checkpoint = tsps.callbacks.Checkpoint(path, every_steps=1, keep=9, incremental=incremental)
        model.fit(checkpoint.dataset(make), epochs=1, verbose=0, callbacks=[checkpoint, keras.callbacks.Callback()])
        names = _names(path)
        kinds_saved = [kinds(path / name)[0] for name in names]
        assert kinds_saved == ["all"] * 2 + ["changes" if incremental else "all"] * 5
        assert of_checkpoint(path / names[-1]) == of_tables(model)
