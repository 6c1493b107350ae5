"""Tables that admit keys: their configuration, and `tsps.Table`. cc/tests/admission_test.cc has every step's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_sparse_ps as tsps
from tf_sparse_ps import _table
from tf_sparse_ps.errors import StateError, TableExistsError

DIM = 4


def config(admission: tsps.Admission | None, **options: Any) -> tsps.TableConfig:
    return tsps.TableConfig("t", DIM, optimizer=tsps.optimizers.SGD(learning_rate=0.5), admission=admission, **options)


def train(table: tsps.Table, keys: Any) -> None:
    table.apply_gradients(np.asarray(keys), np.ones((len(keys), DIM), np.float32))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 0}, "count=0"),
        ({"count": 1}, "count=1"),
        ({"count": 256}, "count=256"),
        ({"count": 2.0}, "count=2.0"),
        ({"expected_keys": 0}, "expected_keys=0"),
        ({"half_life": 0}, "half_life=0"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tsps.Admission(**{"count": 3, "expected_keys": 100, **options})


def test_a_configuration_survives_its_dict() -> None:
    first = config(tsps.Admission(3, 100, half_life=7))
    assert tsps.TableConfig.from_config(first.get_config()) == first
    assert first.facts() != config(tsps.Admission(4, 100, half_life=7)).facts()
    with pytest.raises(ValueError, match="admission=5"):
        config(5)  # type: ignore[arg-type]


def test_a_key_gets_its_row_when_it_has_occurred_often_enough(tmp_path: Path) -> None:
    with tsps.Table.create(tmp_path / "g" / "t", config(tsps.Admission(3, 1000))) as table:
        initial = _table.initial_rows(table.core_initializer(), np.array([7]), DIM)
        for _ in range(2):
            train(table, [7])
            np.testing.assert_array_equal(table.lookup([7]), initial)
            assert len(table) == 0
        train(table, [7])
        np.testing.assert_array_equal(table.lookup([7]), initial - np.float32(0.5))
        train(table, [8, 9, 8, 8])  # three times at once
        assert sorted(table.keys().tolist()) == [7, 8]
        stats = table.stats()
        assert (stats["admitted"], stats["gradients_dropped"]) == (2, 3)
        assert 0 < stats["sketch_fill"] < 0.01
        assert stats["sketch_error"] < 0.01


def test_a_writer_continues_the_counts_of_the_one_before(tmp_path: Path) -> None:
    admission = tsps.Admission(3, 1000)
    with tsps.Table.create(tmp_path / "g" / "t", config(admission)) as table:
        train(table, [7])
    with tsps.Table.open(tmp_path / "g" / "t", "r+", config(admission)) as table:
        train(table, [7])
        assert len(table) == 0
    with tsps.Table.open(tmp_path / "g" / "t", "r+", config(None)) as table:  # admits every key
        train(table, [8])
        assert table.keys().tolist() == [8]
    with tsps.Table.open(tmp_path / "g" / "t", "r+", config(admission)) as table:
        train(table, [7])
        assert sorted(table.keys().tolist()) == [7, 8]


def test_a_table_gets_an_admission_later(tmp_path: Path) -> None:
    with tsps.Table.create(tmp_path / "g" / "t", config(None)) as table:
        train(table, [1])
    with tsps.Table.open(tmp_path / "g" / "t", "r+", config(tsps.Admission(2, 100))) as table:
        train(table, [1, 2])
        train(table, [1, 3])
        train(table, [3])
        assert sorted(table.keys().tolist()) == [1, 3]


def test_rows_on_disk_need_no_admission(tmp_path: Path) -> None:
    storage = tsps.Tiered(tmp_path / "disk", memory=2_000_000)
    with tsps.Table.create(tmp_path / "g" / "t", config(tsps.Admission(2, 100_000), storage=storage)) as table:
        keys = np.arange(6400)
        for start in range(0, 6400, 400):
            train(table, keys[start : start + 400])
            assert len(table) <= start + 400
            train(table, keys[start : start + 400])
        assert table.stats()["rows_on_disk"] > 1000
        rows = table.lookup(keys)
        dropped = table.stats()["gradients_dropped"]
        train(table, keys[:300])
        np.testing.assert_array_equal(table.lookup(keys[:300]), rows[:300] - np.float32(0.5))
        assert table.stats()["gradients_dropped"] == dropped


def test_the_sketch_is_small_and_seldom_wrong(tmp_path: Path) -> None:
    expected = 1_000_000
    random = np.random.default_rng(1)
    with tsps.Table.create(tmp_path / "g" / "t", config(tsps.Admission(3, expected))) as table:
        keys = random.integers(0, 2**62, expected)
        for part in np.array_split(keys, 20):
            train(table, part)
        stats = table.stats()
        with tsps.Table.open(tmp_path / "g" / "t.sketch") as sketch:
            assert sketch.stats()["bytes"] <= 2 * expected
        assert len(table) < 0.01 * expected
        wrong = random.integers(0, 2**62, 20_000)
        before = len(table)
        train(table, wrong)
        assert (len(table) - before) / len(wrong) == pytest.approx(stats["sketch_error"], abs=0.02)


def test_admission_and_eviction_together(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eviction": tsps.Eviction(max_rows=100)}
    with tsps.Table.create(tmp_path / "g" / "t", config(tsps.Admission(2, 1000), **options)) as table:
        for step in range(20):
            train(table, np.arange(30) + 20 * step)
        stats = table.stats()
        assert len(table) == 100
        assert stats["admitted"] == len(table) + stats["evicted_excess"]
        assert stats["gradients_dropped"] > 200


def test_another_sketch_counts_from_0(tmp_path: Path) -> None:
    path = tmp_path / "g" / "t"
    with tsps.Table.create(path, config(tsps.Admission(3, 1000))) as table:
        train(table, [7])
        train(table, [7])
    for admission in (tsps.Admission(3, 5000), tsps.Admission(20, 5000)):
        with pytest.warns(UserWarning, match="counted from 0 again"):
            table = tsps.Table.open(path, "r+", config(admission))
        train(table, [7])
        assert len(table) == 0
        table.close()
    with tsps.Table.open(path, "r+", config(tsps.Admission(16, 5000, half_life=1))) as table:  # the same sketch
        train(table, [7])
        assert table.stats()["sketch_fill"] > 0


def test_the_name_of_the_sketch_is_taken(tmp_path: Path) -> None:
    tsps.Table.create(tmp_path / "g" / "t.sketch", tsps.TableConfig("t.sketch", 2)).close()
    with pytest.raises(TableExistsError, match=r"t\.sketch already exists"):
        tsps.Table.create(tmp_path / "g" / "t", config(tsps.Admission(3, 1000)))
    with tsps.Table.create(tmp_path / "g" / "t", config(None)):
        pass
    with pytest.raises(StateError, match=r"needs the name 't\.sketch'"):
        tsps.Table.open(tmp_path / "g" / "t", "r+", config(tsps.Admission(3, 1000)))
    with pytest.raises(ValueError, match="leave space"):
        tsps.TableConfig("n" * 125, 2, admission=tsps.Admission(3, 1000))


def test_a_reader_finds_no_sketch(tmp_path: Path) -> None:
    tsps.Table.create(tmp_path / "g" / "t", config(None)).close()
    with tsps.Table.open(tmp_path / "g" / "t", config=config(tsps.Admission(3, 1000))) as table:
        assert table.stats()["sketch_fill"] is None
