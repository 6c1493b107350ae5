"""`Table`: the public interface of the store, without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import time

import numpy as np
import pytest
from store_support import ones, run_child, start_child

from tf_sparse_ps import errors, optimizers, table
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table
from tf_sparse_ps.table.groups import plain_name

pytestmark = pytest.mark.quick


def test_the_store_needs_no_tensorflow():
    code = "import sys, tf_sparse_ps, tf_sparse_ps.table; tf_sparse_ps.Table; tf_sparse_ps.optimizers.Adam(); "
    run_child(code + "assert not [m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'keras')], sys.modules")


def test_create_open_and_close(create, folder):
    config = TableConfig("user", 4, optimizer=optimizers.SGD(learning_rate=1.0))
    with create() as user:
        assert (len(user), user.step, user.mode) == (0, 0, "r+")
        assert user.apply_gradients([5], ones(1)) == 1
        row = user.lookup([5])
    with pytest.raises(errors.StateError, match="closed"):
        user.lookup([5])
    with Table.open(user.path) as again:
        np.testing.assert_array_equal(again.lookup([5]), row)
        assert (len(again), again.step) == (1, 1)
        assert again.config.dim == 4
        for write in (
            lambda: again.apply_gradients([5], ones(1)),
            lambda: again.assign([5], ones(1)),
            lambda: again.erase([5]),
        ):
            with pytest.raises(errors.StateError, match='mode "r\\+"'):
                write()
    with Table.open(user.path, "r+", config) as again:
        assert again.apply_gradients([5], ones(1)) == 2
        np.testing.assert_allclose(again.lookup([5]), row - 1, rtol=1e-6)
    with pytest.raises(errors.TableExistsError):
        create()
    with pytest.raises(errors.NotFoundError):
        Table.open(f"{folder}/group/nobody")
    with pytest.raises(errors.NotFoundError):
        Table.open(f"{folder}/nowhere/user")
    with pytest.raises(ValueError, match="mode"):
        Table.open(user.path, "w")
    with pytest.raises(ValueError, match="end with the table's name"):
        Table.create(f"{folder}/group/a", TableConfig("b", 4))


def test_tables_of_a_group_share_the_writer_and_another_process_is_locked_out(create):
    user, item = create("user"), create("item", 3)
    assert user._group is item._group
    code = f"from tf_sparse_ps import table\ntable.Table.open({user.path!r}, 'r+')"
    assert "WriterLockedError" in run_child(code, check=False).stderr
    reader = f"from tf_sparse_ps import table\nprint(len(table.Table.open({user.path!r})))"
    assert run_child(reader).stdout == "0\n"
    user.close()
    assert item.apply_gradients([1], ones(1, 3)) == 1
    item.close()
    run_child(code)


def test_absent_keys_read_their_initial_row_and_nothing_is_written(create):
    user = create(seed=7)
    keys = np.array([[1, -1], [2**63 - 1, -(2**63)]])
    rows = user.lookup(keys)
    assert rows.shape == (2, 2, 4)
    assert np.abs(rows).max() <= 0.05
    assert len(np.unique(rows)) == 16
    assert len(user) == 0
    other_table = create(seed=7, group="other")
    np.testing.assert_array_equal(other_table.lookup(keys), rows)
    assert np.abs(create(seed=8, group="third").lookup(keys) - rows).min() > 0
    assert np.abs(create("item", seed=7).lookup(keys) - rows).min() > 0


def test_gradients_of_equal_keys_are_added_and_counts_divide(create):
    user = create(initializer="zeros")
    user.apply_gradients([1, 2, 1], np.array([[1] * 4, [2] * 4, [3] * 4], np.float32))
    np.testing.assert_array_equal(user.lookup([1, 2])[:, 0], [-4, -2])
    user.apply_gradients([1, 1, 2], np.array([[1] * 4, [4] * 4, [3] * 4], np.float32), counts=[1, 2, 1])
    np.testing.assert_allclose(user.lookup([1, 2])[:, 0], [-4 - 5 / 3, -2 - 3], rtol=1e-6)
    for bad in (0, -1, 2**31, 2**32 + 1):
        with pytest.raises(errors.InvalidArgumentError, match=rf"counts must be .* Received: {bad}"):
            user.apply_gradients([1, 2], ones(2), counts=[1, bad])
    assert user.step == 2


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (optimizers.SGD(learning_rate=0.5), lambda t: -0.5 * t),
        (
            optimizers.SGD(learning_rate=lambda step: 0.5 / (1 + step)),
            lambda t: -0.5 * sum(1 / k for k in range(1, t + 1)),
        ),
        (
            optimizers.Adagrad(learning_rate=0.5, initial_accumulator_value=1.0, epsilon=0.0),
            lambda t: -0.5 * sum(1 / np.sqrt(1 + k) for k in range(1, t + 1)),
        ),
        (optimizers.Adam(learning_rate=0.5), lambda t: -0.5 * t),
    ],
    ids=["sgd", "schedule", "adagrad", "adam"],
)
def test_row_optimizers(create, rule, steps):
    user = create(initializer="zeros", optimizer=rule)
    for t in range(1, 4):
        user.apply_gradients([3], ones(1))
        np.testing.assert_allclose(user.lookup([3]), np.full((1, 4), steps(t)), rtol=1e-4)
    is_present, _, slots = user.entries([3, 4])
    assert is_present.tolist() == [True, False]
    assert len(slots) == len(rule.slots)


def test_a_step_spans_tables_or_does_not_happen(create):
    user, item, tag = create("user", initializer="zeros"), create("item", 3, initializer="zeros"), create("tag", 2)
    assert table.step({user: ([1], ones(1)), item: ([2], ones(1, 3))}) == 1
    assert (user.step, item.step, tag.step, len(tag)) == (1, 1, 1, 0)
    with pytest.raises(errors.InvalidArgumentError, match="not finite"):
        table.step({user: ([1], ones(1)), item: ([2], np.full((1, 3), np.inf, np.float32))})
    np.testing.assert_array_equal(user.lookup([1]), -ones(1))
    assert user.step == 1
    with pytest.raises(errors.InvalidArgumentError, match="one group"):
        table.step({user: ([1], ones(1)), create("user", group="other"): ([1], ones(1))})
    with pytest.raises(errors.InvalidArgumentError, match="at least one"):
        table.step({})


@pytest.mark.parametrize(
    ("keys", "grads", "words"),
    [
        ([1.0], ones(1), "keys must be integers.*float64"),
        (["a"], ones(1), "keys must be integers"),
        ([[1]], ones(1), "one dimension"),
        ([1], ones(1, 3), r"\[1, 4\].*Received: \[1, 3\]"),
        ([1, 2], ones(1), r"\[2, 4\].*Received: \[1, 4\]"),
        ([1], ones(1)[0], r"Received: \[4\]"),
        ([1], np.ones((1, 4), int), "gradients must be floats"),
        ([1, 2], np.array([[1] * 4, [np.nan] * 4]), "row 1, of key 2, is not finite"),
        (np.array([2**63], np.uint64), ones(1), r"2\*\*63 - 1"),
    ],
    ids=["float", "string", "2d", "width", "rows", "1d", "int", "nan", "uint64"],
)
def test_bad_keys_and_gradients_change_nothing(create, keys, grads, words):
    user = create()
    with pytest.raises(errors.InvalidArgumentError, match=words):
        user.apply_gradients(keys, grads)
    assert (len(user), user.step) == (0, 0)


def test_a_bounded_table_refuses_other_keys(create):
    user = create(key_limit=10)
    for key in (10, -1):
        for use in (
            lambda key=key: user.lookup([0, key]),
            lambda key=key: user.apply_gradients([0, key], ones(2)),
            lambda key=key: user.assign([0, key], ones(2)),
        ):
            with pytest.raises(errors.KeyRangeError, match=rf"key {key} at position 1.*10"):
                use()
    assert len(user) == 0
    with pytest.raises(IndexError):
        user.lookup([10])


def test_max_rows(create):
    user = create(max_rows=3)
    user.assign([1, 2, 3], ones(3))
    with pytest.raises(errors.NoSpaceError, match="3"):
        user.apply_gradients([4], ones(1))
    assert (len(user), user.step) == (3, 0)
    user.apply_gradients([1, 2, 3], ones(3))


def murmur_inverse(hashes: np.ndarray) -> np.ndarray:
    """Returns the keys for which MurmurHash3's finalizer, without a seed, gives these hashes."""
    keys = hashes.astype(np.uint64)
    for factor in (0x9CB4B2F8129337DB, 0x4F74430C22A54005):
        keys ^= keys >> np.uint64(33)
        keys *= np.uint64(factor)
    return (keys ^ (keys >> np.uint64(33))).view(np.int64)


def test_keys_that_were_chosen_to_collide_train_as_others_do(create):
    # Without a seed, all keys would have the same segment of the index, which cannot be split so often, and the same
    # first entry in it. Dedupe would also put them at one place.
    keys = murmur_inverse(np.arange(10_000, dtype=np.uint64) << np.uint64(12))
    assert len(np.unique(keys)) == 10_000
    user = create(optimizer=optimizers.SGD(learning_rate=1.0))
    rows = user.lookup(keys)
    began = time.process_time()
    for step in (1, 2):
        assert user.apply_gradients(keys, ones(10_000)) == step
    assert time.process_time() - began < 2, "the steps must take milliseconds, not seconds"
    np.testing.assert_allclose(user.lookup(keys), rows - 2, rtol=1e-6)
    assert len(user) == 10_000
    assert user.verify().ok


def test_assign_and_erase(create):
    user = create(optimizer=optimizers.Adagrad(learning_rate=1.0, initial_accumulator_value=0.5))
    initial = user.lookup([1])
    user.assign([1, 2, 1], np.array([[1] * 4, [2] * 4, [3] * 4], np.float32))
    np.testing.assert_array_equal(user.lookup([1, 2])[:, 0], [3, 2])
    _, _, (accumulator,) = user.entries([1, 2])
    np.testing.assert_array_equal(accumulator, np.full((2, 4), 0.5))
    user.assign([2], ones(1), [ones(1) * 9])
    _, rows, (accumulator,) = user.entries([2, 1])
    np.testing.assert_array_equal(rows[:, 0], [1, 3])
    np.testing.assert_array_equal(accumulator[:, 0], [9, 0.5])
    assert user.step == 0
    assert user.erase([1, 5]) == 1
    assert user.keys().tolist() == [2]
    np.testing.assert_array_equal(user.lookup([1]), initial)
    with pytest.raises(ValueError, match="1 slots"):
        user.assign([2], ones(1), [ones(1), ones(1)])


def test_a_table_is_what_its_config_says(create):
    path = create(key_limit=10, optimizer=optimizers.Adagrad(learning_rate=1.0)).path
    Table.open(path, config=TableConfig("user", 4, key_limit=10, optimizer=optimizers.Adagrad(learning_rate=0.1)))
    for config in (
        TableConfig("user", 5, key_limit=10),
        TableConfig("user", 4),
        TableConfig("user", 4, key_limit=10, optimizer=optimizers.Adam(learning_rate=1.0)),
        TableConfig(
            "user", 4, key_limit=10, optimizer=optimizers.Adagrad(learning_rate=1.0, initial_accumulator_value=1)
        ),
    ):
        with pytest.raises(errors.StateError, match="expected"):
            Table.open(path, config=config)


def test_an_optimizer_is_bound_once_or_replaced(create):
    user = create(optimizer=None)
    with pytest.raises(errors.StateError, match="no optimizer"):
        user.apply_gradients([1], ones(1))
    user.bind_optimizer(optimizers.Adagrad(learning_rate=1.0))
    user.apply_gradients([1], ones(1))
    with pytest.raises(errors.StateError):
        user.bind_optimizer(optimizers.SGD(learning_rate=1.0))
    user.bind_optimizer(optimizers.SGD(learning_rate=1.0), replace=True)
    user.apply_gradients([1], ones(1))
    with pytest.raises(ValueError, match="learning_rate is None"):
        create("item", optimizer=optimizers.SGD()).apply_gradients([1], ones(1))


def test_stats_and_verify(create):
    user = create()
    user.apply_gradients(np.arange(1000), ones(1000))
    stats = user.stats()
    assert (stats["rows"], stats["step"], stats["dim"]) == (1000, 1, 4)
    assert stats["writer_pid"] == os.getpid()
    assert stats["counters"]["rows_written"] == 1000
    report = user.verify()
    assert report == table.Report(True, (), 1000, 1)
    with Table.open(user.path) as reader:
        assert reader.verify().ok


def test_initial_values_that_need_the_whole_matrix(create):
    user = create(key_limit=6, initializer=lambda shape, dtype=None: np.arange(24.0).reshape(shape))
    np.testing.assert_array_equal(user.lookup([5]), [[20, 21, 22, 23]])
    assert len(user) == 6
    with pytest.raises(ValueError, match=r"\(6, 4\).*Received: \(4, 6\)"):
        create("item", key_limit=6, initializer=lambda shape, dtype=None: np.zeros(shape[::-1]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": ".hidden"}, "not starting"),
        ({"name": "a/b"}, "letters"),
        ({"dim": 0}, "`dim` must be a positive integer"),
        ({"dim": 4.0}, "`dim` must be a positive integer"),
        ({"dim": 10**6}, "at most"),
        ({"key_limit": 0}, "key_limit"),
        ({"max_rows": -1}, "max_rows"),
        ({"dtype": "float64"}, "bfloat16"),
        ({"rounding": "down"}, "stochastic"),
        ({"constraint": "max_norm"}, "axis=1"),
        ({"constraint": "orthogonal"}, "NonNeg"),
        ({"constraint": {"class_name": "MaxNorm", "config": {"axis": 1, "max_value": -1.0}}}, "max_value"),
        ({"seed": -1}, "seed"),
        ({"admission": 1}, "admission"),
        ({"eviction": 1}, "eviction"),
        ({"optimizer": "adam"}, "tsps.optimizers"),
        ({"initializer": 3}, "initializer"),
        ({"initializer": "glorot_uniform"}, "unbounded"),
        ({"initializer": {"class_name": "RandomUniform", "config": {"minval": float("nan")}}}, "finite"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_configurations_that_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        TableConfig(**{"name": "user", "dim": 4, **arguments})


def test_config_round_trip():
    config = TableConfig("user", 4, max_rows=9, initializer="normal", optimizer=optimizers.Adam(), seed=3, key_limit=7)
    assert TableConfig.from_config(config.get_config()) == config
    assert config.facts() != TableConfig("user", 5).facts()


def test_lookups_beside_a_writer_and_many_scans_need_no_place_of_a_scan(create, folder):
    keys = np.arange(20_000)
    with create() as user:
        user.assign(keys, np.zeros((len(keys), 4), np.float32))
        path = user.path
    writer = f"""
import numpy as np, sys
from tf_sparse_ps.table import Table
with Table.open({path!r}, "r+") as user:
    keys, value = np.arange({len(keys)}), 0.0
    print("writing", flush=True)
    while True:
        value += 1.0
        user.assign(keys, np.full((len(keys), 4), value, np.float32))
"""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(start_child(writer))
        stack.callback(process.kill)
        assert process.stdout.readline() == "writing\n"
        reader = stack.enter_context(Table.open(path))
        for _ in range(8):
            stack.enter_context(reader.scan())
        values_read = [0.0]
        while len(values_read) < 20 or values_read[-1] == 0.0:
            rows = reader.lookup(keys)
            assert len(np.unique(rows)) == 1, "a lookup mixes several commits"
            assert rows[0, 0] >= values_read[-1]
            values_read.append(rows[0, 0])


def test_names_of_a_jobs_tables_lose_their_number() -> None:
    assert plain_name("t0007-words") == "words"
    assert plain_name("t10000-words") == "words"  # a process that makes and removes many tables
    assert [plain_name(name) for name in ("words", "two-words", "t-1", "t0007-")] == [
        "words",
        "two-words",
        "t-1",
        "t0007-",
    ]
