"""TspsReadRows: lookups without unique keys. They give the rows, errors and gradients of TspsLookup."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_ps import _ops

pytestmark = [pytest.mark.keras2_smoke, pytest.mark.quick]

i64 = tf.int64
ERROR = tf.errors.InvalidArgumentError


def read(group, ids, table_of, **options):
    carriers = [tf.convert_to_tensor(anchor) for anchor in group.anchors]
    return _ops.read_rows(ids, group.paths, group.uuids, carriers, table_of, **options)


def test_rows_are_those_of_a_lookup(group, mode):
    group.table(4, rows=20), group.table(3, rows=20)
    ids = [tf.constant([[1, 2], [2, 9]], i64), tf.constant(5, i64), tf.constant([9, 77, 1, 77, -3], i64)]
    ids.append(tf.zeros([0, 2], i64))  # key 77 is absent, and occurs twice
    table_of = [0, 1, 0, 1]
    rows = mode(lambda *ids: read(group, ids, table_of))(*ids)
    for actual, expected in zip(rows, group.lookup(ids, table_of).rows, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_large_calls_are_those_of_a_lookup(group):
    group.table(16, rows=30_000)
    ids = tf.constant(np.random.default_rng(2).zipf(1.2, 400_000) % 40_000, i64)  # a quarter of the keys is absent
    expected = group.lookup([ids], [0]).rows[0]
    for threads in (1, 3, 0):
        _ops.set_threads(threads, 2)
        np.testing.assert_array_equal(read(group, [ids], [0])[0], expected)


def test_shapes_are_inferred(group):
    group.table(4), group.table(3)

    @tf.function(input_signature=[tf.TensorSpec([None, 5], i64), tf.TensorSpec([7], i64)])
    def look(a, b):
        rows = read(group, [a, b, b], [0, 1, 0])
        assert [tensor.shape.as_list() for tensor in rows] == [[None, 5, 4], [7, 3], [7, 4]]
        return rows

    look.get_concrete_function()


def test_the_gradient_is_that_of_a_lookup(group, mode):
    group.table(4, rows=20), group.table(3, rows=20, key_limit=20)
    ids = [tf.constant([[1, 2], [2, 9]], i64), tf.constant([5, 5], i64), tf.constant([9, 77], i64)]
    table_of = [0, 1, 0]
    _ops.set_row_limit(group.tables[1].uuid.numpy().decode(), 20)

    def gradient(look):
        def of(*ids):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(rows * rows) for rows in look(ids)])
            return tape.gradient(loss, group.anchors)

        return mode(of)(*ids)

    actual = gradient(lambda ids: read(group, ids, table_of))
    expected = gradient(lambda ids: group.lookup(ids, table_of).rows)
    for slices, reference in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(slices.indices, reference.indices)
        np.testing.assert_array_equal(slices.values, reference.values)
    assert [slices.dense_shape is None for slices in actual] == [slices.dense_shape is None for slices in expected]
    _ops.set_row_limit(group.tables[1].uuid.numpy().decode(), None)


def test_an_id_out_of_range_is_named_with_its_place(group, mode):
    group.table(4, rows=1), group.table(4, key_limit=10)
    ids = [tf.constant([99], i64), tf.constant([1, 2], i64), tf.constant([[0, 1, 2], [3, 4, -7]], i64)]
    with pytest.raises(ERROR, match=r"/t1: ids\[1,2\] = -7 is not in \[0, 10\).*[Ff]eature 2"):
        mode(lambda *ids: read(group, ids, [0, 1, 1]))(*ids)


def test_what_does_not_fit_is_refused(group):
    table = group.table(4)
    ids = tf.constant([3], i64)
    with pytest.raises(ERROR, match=r"must have shape \[0,4\]"):
        _ops.read_rows([ids], group.paths, group.uuids, [tf.zeros([0, 5])], [0])
    with pytest.raises(ERROR, match=r"table_of must be in \[0, 1\). Received: 1"):
        read(group, [ids], [1])
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"uuid 0{32}, not f{32}"):
        _ops.read_rows([ids], [table.path], ["f" * 32], [tf.zeros([0, 4])], [0])


def test_reads_outside_of_steps_report_the_error_of_a_step_that_was_not_made(group):
    table = group.table(2, rows=5, key_limit=10)
    _ops.allow_objections(group.path, allowed=True)
    _ops.lookup([tf.constant([11], i64)], group.paths, group.uuids, [tf.zeros([0, 2])], [0], in_step=True)
    ids = [tf.constant([1], i64)]
    in_step = read(group, ids, [0], in_step=True)[0]
    with pytest.raises(ERROR, match=r"an earlier lookup of a training step.*ids\[0\] = 11 is not in \[0, 10\)"):
        read(group, ids, [0])
    np.testing.assert_array_equal(in_step, table.rows([1]))
    np.testing.assert_array_equal(read(group, ids, [0])[0], in_step)  # the error is reported once
