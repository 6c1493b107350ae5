"""The parts of a lookup as ops: shapes and errors. layers/test_row_sources.py tests their values."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_ps import _ops

pytestmark = pytest.mark.quick

i64 = tf.int64
ERROR = tf.errors.InvalidArgumentError


def test_parts_of_a_lookup_in_any_mode_and_rank(group, mode):
    group.table(4, rows=20), group.table(3, rows=20)
    ids = [tf.constant([[1, 2], [2, 9]], i64), tf.constant(5, i64), tf.constant([9, 11], i64), tf.zeros([0, 2], i64)]
    table_of = [0, 1, 0, 1]

    def parts(*ids):
        unique = _ops.unique(ids, table_of, 2)
        carriers = [tf.convert_to_tensor(anchor) for anchor in group.anchors]
        rows = _ops.read_rows(unique.keys, group.paths, group.uuids, carriers, [0, 1])
        return unique, rows, _ops.gather_rows(unique, rows, carriers, table_of)

    unique, rows, gathered = mode(parts)(*ids)
    expected = group.lookup(ids, table_of)
    for actual, reference in zip(
        [*unique.keys, *unique.inverses, *gathered], [*expected.keys, *expected.inverses, *expected.rows], strict=True
    ):
        np.testing.assert_array_equal(actual, reference)
    assert [matrix.shape.as_list() for matrix in rows] == [[4, 4], [1, 3]]


def test_shapes_are_inferred(group):
    group.table(4), group.table(3)

    @tf.function(input_signature=[tf.TensorSpec([None, 5], i64), tf.TensorSpec([7], i64)])
    def look(a, b):
        unique = _ops.unique([a, b], [0, 1], 2)
        assert [tensor.shape.as_list() for tensor in (*unique.inverses, *unique.keys)] == [
            [None, 5],
            [7],
            [None],
            [None],
        ]
        carriers = [tf.convert_to_tensor(anchor) for anchor in group.anchors]
        rows = _ops.read_rows(unique.keys, group.paths, group.uuids, carriers, [0, 1])
        assert [tensor.shape.as_list() for tensor in rows] == [[None, 4], [None, 3]]
        gathered = _ops.gather_rows(unique, rows, carriers, [0, 1])
        assert [tensor.shape.as_list() for tensor in gathered] == [[None, 5, 4], [7, 3]]
        bags = _ops.Unique([unique.inverses[1]], unique.keys[1:])
        splits = tf.constant([0, 3, 7], i64)
        (pooled,) = _ops.pool_rows(bags, [splits], [tf.zeros([0])], rows[1:], carriers[1:], [0], ["sum"])
        assert pooled.shape.as_list() == [2, 3]
        return pooled

    look.get_concrete_function()


@pytest.mark.parametrize(
    ("inverse", "shape", "width", "message"),
    [
        ([0, 2], (2, 3), 3, r"inverses of feature 0 must be in \[0, 2\)\. Received: 2 at 1"),
        ([0, -1], (2, 3), 3, r"Received: -1 at 1"),
        ([0, 1], (3, 3), 3, r"has 2 keys; expected a row for each, not empty\. Received: rows of shape \[3,3\]"),
        ([0, 1], (2, 0), 0, r"not empty\. Received: rows of shape \[2,0\]"),
        ([0, 1], (2,), 3, r"rank|rows"),
        ([0, 1], (2, 3), 4, r"carrier of table 0 of the call must have shape \[0,3\]\. Received: \[0,4\]"),
    ],
)
def test_rows_that_do_not_fit_are_refused(inverse, shape, width, message):
    unique = _ops.Unique([tf.constant(inverse)], [tf.constant([7, 8], i64)])
    rows, carriers = [tf.zeros(shape)], [tf.zeros([0, width])]
    with pytest.raises(ERROR, match=message):
        _ops.gather_rows(unique, rows, carriers, [0])
    with pytest.raises(ERROR, match=message):
        _ops.pool_rows(unique, [tf.constant([0, 2], i64)], [tf.zeros([0])], rows, carriers, [0], ["mean"])
