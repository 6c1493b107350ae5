"""Tables that evict: their configuration, and `tsps.Table`. cc/tests/eviction_test.cc has the rows of every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_sparse_ps as tsps
from tf_sparse_ps import _table
from tf_sparse_ps.config.metadata import USE
from tf_sparse_ps.errors import InvalidArgumentError, NoSpaceError, StateError, UnsupportedError
from tf_sparse_ps.table import evicting

DIM = 4


def config(eviction: tsps.Eviction | None, **options: Any) -> tsps.TableConfig:
    return tsps.TableConfig("t", DIM, optimizer=tsps.optimizers.SGD(learning_rate=0.5), eviction=eviction, **options)


def make(group: Path, eviction: tsps.Eviction | None, **options: Any) -> tsps.Table:
    return tsps.Table.create(group / "t", config(eviction, **options))


def train(table: tsps.Table, keys: Any) -> None:
    table.apply_gradients(np.asarray(keys), np.ones((len(keys), DIM), np.float32))


# --- configuration ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs `unused_steps`, `max_rows`"),
        ({"unused_steps": 0}, "unused_steps=0"),
        ({"unused_steps": True}, "unused_steps=True"),
        ({"unused_steps": 2**32}, "unused_steps=4294967296"),
        ({"max_rows": -1}, "max_rows=-1"),
        ({"max_rows": 1.5}, "max_rows=1.5"),
        ({"max_rows": 5, "policy": "fifo"}, "policy='fifo'"),
        ({"max_rows": 5, "half_life": 0}, "half_life=0"),
        ({"max_rows": 3, "keep": [1, 2, 3]}, "`keep` has 3 keys and `max_rows` is 3"),
        ({"max_rows": 5, "keep": "ab"}, "keep='ab'"),
        ({"max_rows": 5, "keep": 7}, "keep=7"),
        ({"max_rows": 5, "keep": [1, "a"]}, "integers and strings"),
        ({"max_rows": 5, "keep": [2**63]}, "9223372036854775808"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        tsps.Eviction(**options)


def test_kept_keys_are_sorted_and_may_be_strings() -> None:
    assert tsps.Eviction(5, keep=[np.int64(3), 1, 3]).keep == (1, 3)
    (key,) = tsps.Eviction(5, keep=["rome"]).keep
    assert key == tsps.keys.fingerprint(["rome"])[0]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"cache": tsps.DeviceCache(rows=10)}, UnsupportedError, "device cache"),
        ({"max_rows": 9}, ValueError, "max_rows=10 exceeds the table's max_rows=9"),
        ({"key_limit": 5}, ValueError, "keeps key 7"),
        ({"initializer": lambda shape, dtype: np.ones(shape, dtype), "key_limit": 5}, ValueError, "return as zeros"),
        ({"metadata": (tsps.MetadataPlane("use"),)}, ValueError, "or use"),
    ],
)
def test_tables_that_cannot_evict(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        config(tsps.Eviction(max_rows=10, keep=[7] if "keeps" in words else []), **options)


def test_an_initializer_of_a_whole_matrix_is_allowed_if_asked_for() -> None:
    eviction = tsps.Eviction(5, custom_initializer=True)
    config(eviction, initializer=lambda shape, dtype: np.ones(shape, dtype), key_limit=5)


def test_a_configuration_survives_its_dict() -> None:
    first = config(
        tsps.Eviction(7, max_rows=20, policy="lfu", half_life=3, keep=[5]), metadata=(tsps.MetadataPlane("c"),)
    )
    second = tsps.TableConfig.from_config(first.get_config())
    assert second == first
    assert second.eviction == first.eviction
    assert first.facts() != config(tsps.Eviction(8, max_rows=20), metadata=first.metadata).facts()


# --- tables ---


def test_a_table_evicts_and_counts_it(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(max_rows=100, keep=[0])) as table:
        assert table.stats()["oldest_use_age"] is None
        for step in range(10):
            train(table, np.arange(30) + 30 * step)
        stats = table.stats()
        assert (len(table), stats["evicted_excess"], stats["evicted_unused"]) == (100, 200, 0)
        keys = set(table.keys().tolist())
        assert 0 in keys
        assert set(range(210, 300)) <= keys, "of 300 keys, the 90 latest stay"
        assert stats["oldest_use_age"] == 9  # that of key 0
        use = table.metadata([0, 299, 1])["use"]
        assert use[:, 0].tolist() == [1, 10, 0]
        assert use[:, 1].tolist() == [256, 256, 0]
        np.testing.assert_array_equal(
            table.lookup([1]), _table.initial_rows(table.core_initializer(), np.array([1]), DIM)
        )


def test_lookups_do_not_use_a_row(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(3)) as table:
        train(table, [1, 2])
        for _ in range(5):
            train(table, [2])
            table.lookup([1])
        assert table.keys().tolist() == [2]
        assert table.stats()["evicted_unused"] == 1


def test_a_step_with_too_many_keys_names_the_numbers(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(max_rows=10)) as table:
        train(table, range(10))
        with pytest.raises(NoSpaceError, match="has 11 keys, and eviction keeps 0 keys and at most 10 rows"):
            train(table, range(11))
        assert len(table) == 10
        train(table, range(5, 15))
        assert sorted(table.keys().tolist()) == list(range(5, 15))


def test_without_eviction_max_rows_ends_the_step(tmp_path: Path) -> None:
    with make(tmp_path / "g", None, max_rows=10) as table:
        train(table, range(10))
        with pytest.raises(NoSpaceError, match="max_rows is 10"):
            train(table, [10])


def test_the_tables_own_max_rows_evicts_too(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(1000), max_rows=10) as table:
        for step in range(5):
            train(table, np.arange(10) + 7 * step)
        assert len(table) == 10
        assert table.stats()["evicted_excess"] == 28


def test_the_policy_belongs_to_the_writer_and_the_use_to_the_table(tmp_path: Path) -> None:
    make(tmp_path / "g", tsps.Eviction(max_rows=50)).close()
    with tsps.Table.open(
        tmp_path / "g" / "t", "r+", config(None)
    ) as table:  # no policy: no row leaves, uses are recorded
        for step in range(10):
            train(table, np.arange(30) + 30 * step)
        assert len(table) == 300
        assert table.metadata([299])["use"].tolist() == [[10, 256]]
    with tsps.Table.open(tmp_path / "g" / "t", "r+", config(tsps.Eviction(max_rows=60))) as table:
        train(table, [299])
        assert len(table) == 60
    with tsps.Table.open(tmp_path / "g" / "t") as table:
        assert table.config.metadata == (USE,)


def test_a_table_without_uses_cannot_evict(tmp_path: Path) -> None:
    make(tmp_path / "g", None).close()
    with pytest.raises(StateError, match="does not record the use of its rows"):
        tsps.Table.open(tmp_path / "g" / "t", "r+", config(tsps.Eviction(5)))


def test_files_carry_uses(tmp_path: Path) -> None:
    other = tsps.MetadataPlane("clicks", initial=3)
    with make(tmp_path / "g", tsps.Eviction(max_rows=50), metadata=(other,)) as table:
        for step in range(4):
            train(table, np.arange(20) + 10 * step)
        file = table.save(tmp_path)
        keys = np.sort(table.keys())
        expected = table.metadata(keys)
        assert list(expected) == ["use", "clicks"]
    with make(tmp_path / "second", tsps.Eviction(max_rows=90), metadata=(other,)) as table:
        for _ in range(7):
            train(table, [1000])
        table.load_parameter_file(file)  # rows keep their ages, although the step is another one
        loaded = table.metadata(keys)
        np.testing.assert_array_equal(loaded["clicks"], expected["clicks"])
        np.testing.assert_array_equal(loaded["use"], expected["use"] + np.array([3, 0], np.uint32))
    with make(tmp_path / "third", None, metadata=(other,)) as table:  # has no uses
        assert table.load_parameter_file(file) == 50
        assert list(table.metadata(keys)) == ["clicks"]
        plain = table.save(tmp_path)
    with make(tmp_path / "fourth", tsps.Eviction(max_rows=50), metadata=(other,)) as table:
        train(table, [1])
        train(table, [2])
        table.load_parameter_file(plain)  # rows of a file without uses count as used now
        assert table.metadata([1, 5, 45])["use"].tolist() == [[2, 0]] * 3


def test_rows_of_a_later_step_do_not_outlive_trained_ones(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(max_rows=50)) as table:
        for _ in range(300):
            train(table, range(50))
        file = table.save(tmp_path)
    with make(tmp_path / "second", tsps.Eviction(max_rows=100)) as table:
        table.load_parameter_file(file)
        for step in range(10):
            train(table, [*range(10), *range(1000 + 20 * step, 1020 + 20 * step)])
        assert set(range(10)) < set(table.keys().tolist())
        assert len(set(range(10, 50)) & set(table.keys().tolist())) == 0


def test_a_rounded_initial_value_is_no_difference(tmp_path: Path) -> None:
    planes = (tsps.MetadataPlane("x", "float32", initial=0.1), tsps.MetadataPlane("y", "float16", initial=0.1))
    make(tmp_path / "g", None, metadata=planes).close()
    tsps.Table.open(tmp_path / "g" / "t", config=config(None, metadata=planes)).close()


# --- eviction at once ---


def test_all_that_is_due_at_once(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(1000)) as table:
        for step in range(10):
            train(table, np.arange(30) + 20 * step)
        assert evicting.due(table, tsps.Eviction(5), None).tolist() == list(range(100))
        kept = tsps.Eviction(5, keep=[0, 1])
        assert evicting.due(table, kept, None).tolist() == list(range(2, 100))
        lru = evicting.due(table, tsps.Eviction(max_rows=1), 30)
        assert lru.tolist() == list(range(180))
        lfu = tsps.Eviction(max_rows=1, policy="lfu")
        trained_once = {key for key in range(210) if key < 20 or key % 20 >= 10 or key >= 200}
        assert set(evicting.due(table, lfu, 210 - len(trained_once) + 1).tolist()) < trained_once
        decayed = tsps.Eviction(max_rows=1, policy="lfu", half_life=1)
        assert evicting.due(table, decayed, 30).tolist() == list(range(180))


def test_marks_know_evicted_keys(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(max_rows=40)) as table:
        train(table, range(40))
        mark = table.mark_changes()
        train(table, range(100, 130))
        changes = table.changes_since(mark)
        assert not changes.everything
        assert sorted(changes.written.tolist()) == list(range(100, 130))
        assert len(changes.erased) == 30
        assert set(changes.erased.tolist()) <= set(range(40))


def test_assigned_uses_need_the_right_form(tmp_path: Path) -> None:
    with make(tmp_path / "g", tsps.Eviction(5)) as table:
        with pytest.raises(InvalidArgumentError, match="use"):
            table.assign([1], np.zeros((1, DIM)), metadata={"use": np.zeros((1, 1), np.uint32)})
        table.assign([1], np.zeros((1, DIM)), metadata={"use": np.array([[7, 9]], np.uint32)})
        assert table.metadata([1])["use"].tolist() == [[7, 9]]


@pytest.mark.parametrize("bound", [{"max_rows": 100}, {}])
def test_a_full_table_is_restored_to_other_rows(tmp_path: Path, bound: dict[str, int]) -> None:
    """It has room for the saved rows or for those that it has now, but not for both."""
    with make(tmp_path / "g", tsps.Eviction(1000, max_rows=100), **bound) as table:
        for step in range(5):
            train(table, np.arange(20) + 20 * step)
        saved = table.lookup(np.arange(100))
        table.save(tmp_path / "saved")
        for step in range(5, 10):
            train(table, np.arange(20) + 20 * step)
        assert table.restore(tmp_path / "saved") == 100
        assert sorted(table.keys().tolist()) == list(range(100))
        np.testing.assert_array_equal(table.lookup(np.arange(100)), saved)


def test_a_full_table_on_disk_is_restored_to_other_rows(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    storage = tsps.Tiered(str(tmp_path / "disk"), memory=4 << 20)
    n = 2000
    with make(tmp_path / "g", tsps.Eviction(max_rows=14 * n), storage=storage) as table:
        for step in range(14):
            train(table, np.arange(n) + n * step)
        table.save(tmp_path / "saved")
        for step in range(14, 28):
            train(table, np.arange(n) + n * step)
        assert table.restore(tmp_path / "saved") == 14 * n
        assert sorted(table.keys().tolist()) == list(range(14 * n))


def test_a_configuration_without_a_policy_ends_that_of_another_table_object(tmp_path: Path) -> None:
    path = tmp_path / "g" / "t"
    with tsps.Table.create(tmp_path / "g" / "other", tsps.TableConfig("other", DIM)):  # keeps the group's writer open
        make(tmp_path / "g", tsps.Eviction(max_rows=10), admission=tsps.Admission(2, 100)).close()
        with tsps.Table.open(path, "r+", config(None)) as table:
            for step in range(4):
                train(table, np.arange(5) + 5 * step)
            assert len(table) == 20
        with tsps.Table.open(path, "r+", config(tsps.Eviction(max_rows=10))) as table:
            train(table, [0])
            assert len(table) == 10
            with tsps.Table.open(path, "r+"):  # it says nothing of policies
                train(table, range(100, 105))
                assert len(table) == 10
