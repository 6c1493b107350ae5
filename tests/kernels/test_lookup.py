"""TspsLookup: values, shapes and errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from kernel_support import apply_step

from tf_sparse_ps import _ops

pytestmark = [pytest.mark.keras2_smoke, pytest.mark.quick]

i64 = tf.int64


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 2)])
def test_lookup_gives_the_rows_of_ids_of_any_rank(group, mode, shape):
    table = group.table(5, rows=50)
    ids = np.random.default_rng(1).integers(0, 50, shape)
    result = mode(lambda x: group.lookup([x], [0]))(tf.constant(ids, i64))
    np.testing.assert_array_equal(result.rows[0], table.rows(range(50))[ids])
    np.testing.assert_array_equal(result.keys[0].numpy()[result.inverses[0].numpy()], ids)
    assert len(result.keys[0]) == len(np.unique(ids))


def test_features_of_one_table_share_its_unique_keys(group, mode):
    wide, narrow = group.table(4, rows=20), group.table(3, rows=20)
    ids = [tf.constant([[1, 2], [2, 9]], i64), tf.constant([5, 5], i64), tf.constant([9, 11], i64)]
    result = mode(lambda *x: group.lookup(x, [0, 1, 0]))(*ids)
    assert sorted(result.keys[0].numpy()) == [1, 2, 9, 11]
    assert sorted(result.keys[1].numpy()) == [5]
    np.testing.assert_array_equal(result.rows[0], wide.rows([1, 2, 2, 9]).reshape(2, 2, 4))
    np.testing.assert_array_equal(result.rows[1], narrow.rows([5, 5]))
    np.testing.assert_array_equal(result.rows[2], wide.rows([9, 11]))


def test_absent_keys_read_their_initial_row_and_stay_absent(group):
    table = group.table(6)
    keys = [-(2**63), 2**63 - 1, 0, -1]
    rows = table.rows(keys)
    np.testing.assert_array_equal(table.rows(keys[::-1]), rows[::-1])
    assert len(np.unique(rows[:, 0])) == 4
    assert (np.abs(rows) <= 1).all()
    assert _ops.erase(table.path, table.uuid, tf.constant(keys, i64)) == 0


def test_large_calls_equal_small_ones(group):
    table = group.table(16, rows=30_000)
    ids = np.random.default_rng(2).zipf(1.2, 100_000) % 40_000  # a quarter of the keys is absent
    dense = np.concatenate([table.rows(range(begin, begin + 1000)) for begin in range(0, 40_000, 1000)])
    for threads in (1, 3, 0):
        _ops.set_threads(threads, 2)
        result = group.lookup([tf.constant(ids, i64)], [0])
        np.testing.assert_array_equal(result.rows[0], dense[ids])


def test_nothing_to_look_up(group, mode):
    group.table(4), group.table(3), group.table(2)
    result = mode(lambda x: group.lookup([x, x], [1, 0]))(tf.zeros([0, 7], i64))
    assert [row.shape.as_list() for row in result.rows] == [[0, 7, 3], [0, 7, 4]]
    assert [key.shape.as_list() for key in result.keys] == [[0], [0], [0]]
    none = group.lookup([], [])
    assert none.rows == []
    assert len(none.keys) == 3


def test_a_key_outside_a_bounded_table_is_named_with_its_place(group, mode):
    group.table(4, rows=1), group.table(4, key_limit=10)
    look = mode(lambda *x: group.lookup(x, [0, 1, 1]))
    ids = [tf.constant([99], i64), tf.constant([1, 2], i64), tf.constant([[0, 1, 2], [3, 4, -7]], i64)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"/t1: ids\[1,2\] = -7 is not in \[0, 10\).*[Ff]eature 2"):
        look(*ids)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[\] = 10 is not in \[0, 10\)"):
        mode(lambda x: group.lookup([x], [1]))(tf.constant(10, i64))
    # keras.layers.Embedding raises the same class, in a graph as well as eagerly, and reports "is not in [0, 10)".
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 10\)"):
        tf.gather(tf.zeros([10, 4]), ids[2])


def test_tables_of_two_groups_are_refused_by_name(group, folder):
    table = group.table(4)
    _ops.create_group(f"{folder}/h", "d" * 32)
    _ops.create_table(f"{folder}/h/x", "e" * 32, dim=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"one group.*/g/t0.*/h/x"):
        _ops.lookup([], [table.path, f"{folder}/h/x"], ["", ""], [tf.zeros([0, 4])] * 2, [])
    _ops.close_group(f"{folder}/h")


def test_another_uuid_is_refused(group):
    table = group.table(4)
    carrier = [tf.zeros([0, 4])]
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"uuid 0{32}, not f{32}"):
        _ops.lookup([], [table.path], ["f" * 32], carrier, [])
    assert len(_ops.lookup([], [table.path], [""], carrier, []).keys) == 1


def test_a_missing_table_or_group_is_named(group, folder):
    carrier = [tf.zeros([0, 4])]
    with pytest.raises(tf.errors.NotFoundError, match=r"'nothing'.*/g"):
        _ops.lookup([], [f"{folder}/g/nothing"], [""], carrier, [])
    with pytest.raises(tf.errors.NotFoundError, match=rf"{folder}/none"):
        _ops.lookup([], [f"{folder}/none/t"], [""], carrier, [])


def test_carriers_of_another_width_are_refused(group):
    table = group.table(4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"/t0 must have shape \[0,4\]. Received: \[0,5\]"):
        _ops.lookup([], [table.path], [table.uuid], [tf.zeros([0, 5])], [])


def test_table_of_is_checked(group):
    group.table(4)
    ids = tf.constant([1], i64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table_of must be in \[0, 1\). Received: 1"):
        group.lookup([ids], [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="table_of must have one table for each of 1 features"):
        group.lookup([ids], [])


def test_lookups_read_what_was_assigned_since(group):
    table = group.table(3, rows=4)
    look = tf.function(lambda x: group.lookup([x], [0]).rows[0])
    ids = tf.constant([0, 3], i64)
    before = look(ids).numpy()
    _ops.assign(table.path, table.uuid, ids, tf.constant(before + 1))
    np.testing.assert_array_equal(look(ids), before + 1)


def test_more_ids_than_an_inverse_can_count_are_refused(group):
    group.table(4, rows=1)
    ids = tf.zeros([2**20], i64)  # one buffer serves as 2048 features
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"at most 2147483647 ids .* Received: 2147483648 for .*/t0"
    ):
        group.lookup([ids] * 2048, [0] * 2048)


def test_a_lookup_sees_one_step_while_another_thread_trains(group):
    """Every step subtracts 1 from all rows. A lookup that mixes steps has two values."""
    wide, narrow = group.table(8, optimizer="sgd"), group.table(4, optimizer="sgd")
    keys = tf.range(3000, dtype=i64)
    for table in (wide, narrow):
        _ops.assign(table.path, table.uuid, keys, tf.zeros([3000, table.dim]))
    steps, stop = 0, threading.Event()

    def train():
        nonlocal steps
        grads = [tf.ones([3000, 8]), tf.ones([3000, 4])]
        while not stop.is_set():
            steps += 1
            apply_step(steps, group.paths, group.uuids, [keys] * 2, grads, [[1.0]] * 2)

    look = tf.function(lambda: group.lookup([keys, keys], [0, 1]).rows)
    thread = threading.Thread(target=train)
    thread.start()
    try:
        values_read = set()
        while len(values_read) < 20:
            wide_rows, narrow_rows = look()
            values = np.unique(np.concatenate([wide_rows.numpy().ravel(), narrow_rows.numpy().ravel()]))
            assert len(values) == 1, values
            values_read.add(values[0])
    finally:
        stop.set()
        thread.join()
