"""New bases of tables, which are written while versions appear."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from serving_support import files_of
from table_versions import make_table, must_equal, write

from tf_sparse_ps.serving import fault_points, layer_plan
from tf_sparse_ps.serving.base_writer import BaseWriter
from tf_sparse_ps.serving.version import Version
from tf_sparse_ps.table import Table

WAIT = 60.0  # seconds, at most
KEYS = 20_000


HELD: list[threading.Event] = []


@pytest.fixture
def table() -> Iterator[Table]:
    """A table of `KEYS` rows."""
    folder = tempfile.mkdtemp(prefix="tsps-test-", dir="/dev/shm")
    table = make_table(Path(folder) / "group", 16)
    change(table, KEYS)
    yield table
    table.close()
    shutil.rmtree(folder)


@pytest.fixture
def base_writer(tmp_path: Path) -> Iterator[BaseWriter]:
    with contextlib.closing(BaseWriter(tmp_path)) as writer:
        yield writer
        for event in HELD:
            event.set()
        HELD.clear()
    fault_points.set_action(None)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def change(table: Table, n: int, seed: int = 0) -> None:
    """Writes n rows."""
    generator = np.random.default_rng(seed)
    table.assign(generator.choice(KEYS, n, replace=False), generator.normal(size=(n, 16)).astype(np.float32))


def hold_bases() -> threading.Event:
    """Lets a base become ready only after the event is set."""
    released = threading.Event()
    HELD.append(released)

    def act(point: str) -> None:
        if point == "base_ready":
            assert released.wait(WAIT)

    fault_points.set_action(act)
    return released


def test_versions_appear_while_a_base_is_written(tmp_path: Path, table: Table, base_writer: BaseWriter) -> None:
    released = hold_bases()
    write(tmp_path / "0", table, base_writer=base_writer)
    assert not base_writer.is_writing
    shapes = []
    for number in range(1, 8):
        change(table, 5500 if number == 1 else 20, number)
        write(tmp_path / str(number), table, tmp_path / str(number - 1), base_writer=base_writer)
        must_equal(tmp_path / str(number), table)
        shapes.append(len(files_of(tmp_path / str(number))))
        assert base_writer.is_writing, "the first layer has more than a quarter of the base"
    assert shapes == [2, 3, 4, 5, 6, 7, 8]
    shutil.rmtree(tmp_path / "0")  # the base has links to its files
    released.set()
    base_writer.wait()
    change(table, 20, 8)
    write(tmp_path / "8", table, tmp_path / "7", base_writer=base_writer)
    must_equal(tmp_path / "8", table)
    assert files_of(tmp_path / "8") == ["layer"] * 7 + ["base"]
    bases = [Version(tmp_path / number).tables[0].files[-1].identity for number in ("7", "8")]
    assert bases[0] != bases[1]
    # A version that builds on an earlier one than the base does keeps its own files.
    must_equal(tmp_path / "8", table)
    write(tmp_path / "9", table, tmp_path / "7", base_writer=base_writer)
    must_equal(tmp_path / "9", table)


def test_layers_that_wait_for_a_base_are_not_merged(tmp_path: Path, table: Table, base_writer: BaseWriter) -> None:
    released = hold_bases()
    write(tmp_path / "0", table)
    for number in range(1, 14):
        change(table, 3000 if number == 6 else 500, number)
        write(tmp_path / str(number), table, tmp_path / str(number - 1), base_writer=base_writer)
        must_equal(tmp_path / str(number), table)
        assert len(files_of(tmp_path / str(number))) <= layer_plan.MOST_LAYERS + 1
        if base_writer.is_writing and len(files_of(tmp_path / str(number))) == layer_plan.MOST_LAYERS + 1:
            released.set()
    assert released.is_set()


def test_a_table_that_can_have_no_layer_waits_for_its_base(
    tmp_path: Path, table: Table, base_writer: BaseWriter
) -> None:
    write(tmp_path / "0", table)
    change(table, 12_000, 1)  # more than half of the base
    write(tmp_path / "1", table, tmp_path / "0", base_writer=base_writer)
    assert files_of(tmp_path / "1") == ["base"], "it was due with the version"
    change(table, 6000, 2)
    write(tmp_path / "2", table, tmp_path / "1", base_writer=base_writer)
    assert files_of(tmp_path / "2") == ["layer", "base"]
    reached = threading.Event()
    released = hold_bases()
    old_allows = layer_plan.allows_layer

    def allows(*arguments: object) -> bool:
        reached.set()
        threading.Thread(target=released.set).start()
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_plan, "allows_layer", allows)
        change(table, 6000, 3)
        write(tmp_path / "3", table, tmp_path / "2", base_writer=base_writer)
    assert old_allows([1, 100], 2)
    assert reached.is_set()
    assert files_of(tmp_path / "3") == ["layer", "base"]
    assert Version(tmp_path / "3").tables[0].files[-1] != Version(tmp_path / "2").tables[0].files[-1]
    must_equal(tmp_path / "3", table)


def test_a_base_that_fails_is_tried_again(tmp_path: Path, table: Table, base_writer: BaseWriter) -> None:
    def fail(point: str) -> None:
        if point == "base_ready":
            raise OSError("the disk is full")

    fault_points.set_action(fail)
    write(tmp_path / "0", table)
    change(table, 6000, 1)
    write(tmp_path / "1", table, tmp_path / "0", base_writer=base_writer)
    base_writer.wait()
    fault_points.set_action(None)
    change(table, 20, 2)
    with pytest.warns(UserWarning, match="new bases of the tables in .* were not written: OSError: the disk is full"):
        write(tmp_path / "2", table, tmp_path / "1", base_writer=base_writer)
    assert files_of(tmp_path / "2") == ["layer", "layer", "base"]
    base_writer.wait()
    write(tmp_path / "3", table, tmp_path / "2", base_writer=base_writer)
    assert files_of(tmp_path / "3") == ["base"]
    must_equal(tmp_path / "3", table)


def test_an_unfinished_base_is_given_up(tmp_path: Path, table: Table) -> None:
    released = hold_bases()
    writer = BaseWriter(tmp_path)
    write(tmp_path / "0", table)
    change(table, 6000, 1)
    write(tmp_path / "1", table, tmp_path / "0", base_writer=writer)
    assert writer.is_writing
    assert len([name for name in os.listdir(tmp_path) if name.startswith(".bases-")]) == 1
    threading.Thread(target=released.set).start()
    writer.close()
    fault_points.set_action(None)
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path, table: Table, base_writer: BaseWriter) -> None:
    (tmp_path / ".bases-dead" / "words").mkdir(parents=True)
    (tmp_path / ".bases-dead" / "words" / "base-1.serving").write_bytes(b"x")
    write(tmp_path / "0", table)
    change(table, 6000, 1)
    write(tmp_path / "1", table, tmp_path / "0", base_writer=base_writer)
    assert ".bases-dead" not in os.listdir(tmp_path)


def test_the_plan_while_a_base_is_written() -> None:
    assert layer_plan.to_merge([1] * 9 + [100], unchanged=8) == (0, 2)
    assert layer_plan.to_merge([1] * 9 + [100], unchanged=9) is None
    assert layer_plan.to_merge([2, 1, 1, 1, 1, 1, 4, 4, 4, 100], unchanged=5) == (1, 5)
    assert layer_plan.allows_layer([1] * 8 + [100], unchanged=8)
    assert not layer_plan.allows_layer([1] * 8 + [100], unchanged=9)
    assert layer_plan.allows_layer([1] * 7 + [100], unchanged=8)
    assert not layer_plan.allows_layer([26, 26, 100], unchanged=2)
