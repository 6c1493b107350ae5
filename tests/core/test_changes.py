"""`Table.changes_since` never omits a change: compared with a model, for several consumers, and after kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from store_support import ones

from tf_sparse_ps import errors, optimizers
from tf_sparse_ps.config import TableConfig, Tiered
from tf_sparse_ps.table import Changes, Table
from tf_sparse_ps.table.several_tables import scan as scan_tables
from tf_sparse_ps.table.shards import Shard

DIM = 4
HERE = Path(__file__).resolve().parent


class Model:
    """The keys of a table, and the keys that changed since each consumer's mark."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.since: dict[str, tuple[set[int], set[int]]] = {}  # for each mark: keys written, keys erased

    def write(self, keys: list[int]) -> None:
        self.there |= set(keys)
        for written, _ in self.since.values():
            written |= set(keys)

    def erase(self, keys: list[int]) -> None:
        removed = self.there & set(keys)
        self.there -= removed
        for _, erased in self.since.values():
            erased |= removed

    def check(self, mark: str, changes: Changes, *, exact: bool) -> None:
        """Asserts that the changes bring a copy as of the mark up to date.

        A consumer first deletes the erased keys from its copy, and then copies the written ones.
        """
        written, erased = self.since[mark]
        written_keys, erased_keys = set(changes.written.tolist()), set(changes.erased.tolist())
        assert len(written_keys) == len(changes.written)
        assert len(erased_keys) == len(changes.erased)
        assert written_keys <= self.there, "the table does not contain some written keys"
        assert (written & self.there) <= written_keys, "a written key is missing"
        if not changes.everything:
            assert erased <= erased_keys | written_keys, "an erased key is missing"
        if exact:
            assert (written_keys, erased_keys) == (written & self.there, erased)


def draw(dice: random.Random) -> tuple[str, list[int]]:
    """Draws an operation. Its keys often equal those of other operations."""
    kind = dice.choices(("train", "assign", "erase", "grow"), (6, 3, 3, 0.3))[0]
    if kind == "grow":
        first_key = dice.randrange(10**6)
        return "train", list(range(first_key, first_key + 3000))
    return kind, dice.sample(range(200), dice.randint(1, 40))


def carry_out(table: Table, kind: str, keys: list[int]) -> None:
    if kind == "train":
        table.apply_gradients(keys, ones(len(keys)))
    elif kind == "assign":
        table.assign(keys, ones(len(keys)))
    else:
        table.erase(keys)


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_and_consumers(create, seed):
    dice = random.Random(seed)
    table, model = create(), Model()
    for number in range(400):
        if number % 50 == 0:
            model.since[table.mark_changes()] = (set(), set())
        if number % 120 == 119:
            path, config = table.path, table.config
            table.close()
            table = Table.open(path, "r+", config)
        kind, keys = draw(dice)
        carry_out(table, kind, keys)
        (model.erase if kind == "erase" else model.write)(keys)
        if number % 20 == 0:
            for mark in model.since:
                model.check(mark, table.changes_since(mark), exact=True)
    assert len(model.since) == 8
    assert table.verify().ok


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_a_scan_since_a_mark_has_the_rows_that_changed(create, tmp_path, storage):
    dice = random.Random(9)
    options = {} if storage == "memory" else {"storage": Tiered(str(tmp_path / "disk"), memory=7 << 19)}
    table, dim = create(dim=64, optimizer=optimizers.Adagrad(learning_rate=0.1), **options), 64
    mark = first_mark = table.mark_changes()
    for number in range(60):
        keys = dice.sample(range(8000), 400)
        table.apply_gradients(keys, np.full((len(keys), dim), 1.0 + number, np.float32))
        table.erase(keys[:7])
        if number % 10 == 9:
            expected = table.changes_since(mark)
            with table.scan(since=mark) as scan:
                assert scan.step == table.step
                assert scan.erased.tolist() == expected.erased.tolist()
                block = scan.read()
            assert sorted(block.keys.tolist()) == sorted(expected.written.tolist())
            is_present, rows, slots = table.entries(block.keys)
            assert is_present.all()
            np.testing.assert_array_equal(block.rows, rows)
            np.testing.assert_array_equal(block.slots[0], slots[0])
            mark = table.mark_changes()
    if storage == "disk":
        assert table.stats()["rows_on_disk"] > 1000
    with table.scan(since=mark) as scan:
        assert len(scan.read().keys) == 0
    everything = table.changes_since(first_mark)
    for scan_of in ({"since": first_mark}, {}):
        keys, erased = [], []
        for node in range(3):
            shard = Shard(node, 3)
            with table.scan(**scan_of) as scan:
                scan.take_shard(shard)
                block_of_shard = scan.read()
                assert shard.has(block_of_shard.keys).all()
                np.testing.assert_array_equal(block_of_shard.rows, table.entries(block_of_shard.keys)[1])
                keys += block_of_shard.keys.tolist()
                if scan.erased is not None:
                    assert shard.has(scan.erased).all()
                    erased += scan.erased.tolist()
        assert sorted(keys) == sorted(everything.written.tolist() if scan_of else table.keys().tolist())
        assert sorted(erased) == (sorted(everything.erased.tolist()) if scan_of else [])
    with table.scan() as scan, pytest.raises(errors.InvalidArgumentError, match="no node 3 of 3"):
        scan.take_shard(Shard(3, 3))
    with table.scan(since=f"{table.uuid}:{10**9}") as scan:
        assert scan.erased is None
        assert len(scan.read().keys) == len(table)


def test_changes_beside_a_writer_are_those_of_the_state_in_which_the_scan_began(create):
    table, other_table = create("user"), create("item")
    for written_table in (table, other_table):
        written_table.assign(np.arange(5000), np.zeros((5000, DIM), np.float32))
    mark, other_mark = table.mark_changes(), other_table.mark_changes()
    table.assign(np.arange(100), ones(100))
    scans = scan_tables({table: mark, other_table: other_mark})
    table.assign(np.arange(50, 3000), np.full((2950, DIM), 2.0, np.float32))
    table.erase(np.arange(60))
    other_table.erase(np.arange(5000))
    block = scans[table].read()
    assert sorted(block.keys.tolist()) == list(range(100))
    np.testing.assert_array_equal(block.rows, ones(100))
    assert (len(scans[table].erased), len(scans[other_table].erased), len(scans[other_table].read().keys)) == (0, 0, 0)
    for scan in scans.values():
        scan.close()
    with table.scan(since=mark) as scan:
        assert sorted(scan.read().keys.tolist()) == list(range(60, 3000))
        assert scan.erased.tolist() == list(range(60))


def test_the_check_fails_for_less_than_what_changed(create):
    table, model = create(), Model()
    mark = table.mark_changes()
    model.since[mark] = (set(), set())
    for kind, keys in (("train", [1, 2, 3]), ("erase", [3])):
        carry_out(table, kind, keys)
        (model.erase if kind == "erase" else model.write)(keys)
    changes = table.changes_since(mark)
    model.check(mark, changes, exact=True)
    for less in (
        Changes(False, changes.written[1:], changes.erased),
        Changes(False, changes.written, changes.erased[1:]),
    ):
        with pytest.raises(AssertionError, match="is missing"):
            model.check(mark, less, exact=False)


def test_a_reader_is_told_what_another_process_changed(create):
    table = create()
    table.apply_gradients([1, 2], ones(2))
    with Table.open(table.path) as reader:
        mark = table.mark_changes()
        assert reader.changes_since(mark).written.tolist() == []
        table.apply_gradients([2, 3], ones(2))
        assert sorted(reader.changes_since(mark).written.tolist()) == [2, 3]
        with pytest.raises(errors.StateError, match='mode "r\\+"'):
            reader.mark_changes()


def test_marks_of_others_are_answered_with_everything(create):
    table, other_table = create("user"), create("item")
    table.apply_gradients([1, 2], ones(2))
    mark = table.mark_changes()
    assert not table.changes_since(mark).everything
    for unknown in (other_table.mark_changes(), f"{table.uuid}:77", f"{table.uuid}:{10**30}"):
        changes = table.changes_since(unknown)
        assert changes.everything
        assert sorted(changes.written.tolist()) == [1, 2]
        assert changes.erased.tolist() == []
    for wrong in ("", "7", f"{table.uuid}:", f"{table.uuid}:-1", f"{table.uuid}:x"):
        with pytest.raises(errors.InvalidArgumentError, match="mark_changes"):
            table.changes_since(wrong)


def test_another_optimizer_changes_every_row(create):
    table = create()
    table.apply_gradients([1, 2], ones(2))
    before = table.mark_changes()
    table.bind_optimizer(optimizers.Adam(learning_rate=1.0), replace=True)
    assert table.changes_since(before).everything
    after = table.mark_changes()
    table.apply_gradients([2], ones(1))
    changes = table.changes_since(after)
    assert (changes.everything, changes.written.tolist()) == (False, [2])


def test_a_log_of_very_many_erased_keys_begins_anew(create):
    table, model = create(), Model()
    keys = list(range(30_000))
    first_mark = table.mark_changes()
    model.since[first_mark] = (set(), set())
    for _ in range(3):
        table.assign(keys, ones(len(keys)))
        model.write(keys)
        table.erase(keys)
        model.erase(keys)
    changes = table.changes_since(first_mark)
    assert changes.everything
    second_mark = table.mark_changes()
    model.since[second_mark] = (set(), set())
    table.assign(keys[:10], ones(10))
    table.erase(keys[:5])
    model.write(keys[:10])
    model.erase(keys[:5])
    model.check(second_mark, table.changes_since(second_mark), exact=True)
    model.check(first_mark, table.changes_since(first_mark), exact=False)
    assert table.verify().ok


# Runs random operations until it is killed. It prints a line before and after each.
_CHILD = """
import json, random, sys
sys.path.insert(0, sys.argv[1])
from test_changes import CONFIG, carry_out, draw
from tf_sparse_ps.table import Table

dice = random.Random(int(sys.argv[3]))
with Table.open(sys.argv[2], "r+", CONFIG) as table:
    while True:
        kind, keys = draw(dice)
        print(json.dumps([kind, keys]), flush=True)
        carry_out(table, kind, keys)
        print("done", flush=True)
"""
CONFIG = TableConfig("user", DIM, optimizer=optimizers.SGD(learning_rate=1.0))


def run_until_killed(path: str, seed: int, seconds: float, log: Path) -> list[tuple[str, list[int], bool]]:
    """Returns the operations of a killed process, and whether each is known to have happened."""
    command = [sys.executable, "-c", _CHILD, str(HERE), path, str(seed)]
    with open(log, "w") as output, subprocess.Popen(command, stdout=output) as child:
        while not log.stat().st_size:
            assert child.poll() is None
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(child.pid, signal.SIGKILL)
    operations: list[tuple[str, list[int], bool]] = []
    for line in log.read_text().splitlines(keepends=True):
        if line == "done\n":
            operations[-1] = (*operations[-1][:2], True)
        elif line.endswith("\n"):
            operations.append((*json.loads(line), False))
    return operations


def settle(reader: Table, model: Model, kind: str, keys: list[int]) -> None:
    """Updates the model by the operation that a kill interrupted, if the table shows that it happened."""
    there = set(reader.keys().tolist())
    new = set(keys) - model.there
    if kind == "erase":
        if not there & set(keys):
            model.erase(keys)
    elif new & there:
        assert new <= there, "the table contains half of an operation"
        model.write(keys)


@pytest.mark.nightly
def test_kills_lose_no_change(create, tmp_path):
    dice = random.Random(5)
    table, model = create(), Model()
    path, cut_short = table.path, 0
    for number in range(12):
        model.since[table.mark_changes()] = (set(), set())
        table.close()
        for kind, keys, known in run_until_killed(path, number, dice.uniform(0.02, 0.3), tmp_path / "log"):
            if known:
                (model.erase if kind == "erase" else model.write)(keys)
                continue
            cut_short += 1
            with Table.open(path) as reader:
                settle(reader, model, kind, keys)
        table = Table.open(path, "r+", CONFIG)
        assert table.verify().ok
        assert set(table.keys().tolist()) == model.there
        for mark in model.since:
            model.check(mark, table.changes_since(mark), exact=False)
    assert cut_short >= 2, "too few kills interrupted an operation"
    assert any(erased for _, erased in model.since.values())
