"""Shape inference, graph optimizers and saved models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from kernel_support import apply_step, run_child

from tf_sparse_ps import _ops

i64 = tf.int64


def spec(*shape, dtype=i64):
    return tf.TensorSpec(shape, dtype)


def shapes(tensors):
    return [None if x.shape.rank is None else x.shape.as_list() for x in tensors]


def test_lookup_shapes_are_inferred(group):
    group.table(4), group.table(4), group.table(3)

    @tf.function(input_signature=[spec(None, 5), spec(None), spec(2, None, 3), tf.TensorSpec(None, i64)])
    def look(a, b, c, d):
        result = group.lookup([a, b, c, d], [0, 2, 1, 2])
        assert shapes(result.rows) == [[None, 5, 4], [None, 3], [2, None, 3, 4], None]
        assert shapes(result.keys) == [[None]] * 3
        assert shapes(result.inverses) == [[None, 5], [None], [2, None, 3], None]
        return result.rows[0]

    assert look(tf.ones([2, 5], i64), tf.ones([2], i64), tf.ones([2, 2, 3], i64), tf.constant(1, i64)).shape == [
        2,
        5,
        4,
    ]


def test_the_shape_function_itself_knows_the_width_of_equal_tables(group):
    """Calls the op without the wrapper, like a graph that is loaded in another process."""
    group.table(4), group.table(4), group.table(3)

    @tf.function
    def look(ids):
        raw = _ops.lib.tsps_lookup([ids], group.paths[:2], group.uuids[:2], [tf.zeros([0, 4])] * 2, table_of=[1])
        mixed = _ops.lib.tsps_lookup(
            [ids], group.paths, group.uuids, [tf.zeros([0, d]) for d in (4, 4, 3)], table_of=[1]
        )
        assert shapes(raw[0] + mixed[0]) == [[None, 5, 4], [None, 5, None]]

    look.get_concrete_function(spec(None, 5))
    flat = tf.function(lambda: _ops.lookup([], group.paths, group.uuids, [tf.zeros([4])] * 3, []).keys)
    with pytest.raises(ValueError, match="rank 2"):
        flat.get_concrete_function()


def test_pooled_and_gradient_shapes_are_inferred(group):
    group.table(4), group.table(3)

    @tf.function(input_signature=[spec(None), spec(None), spec(6), spec(None, dtype=tf.float32)])
    def look(ids, splits, fixed, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            result = group.pooled([ids, ids], [splits, fixed], [weights, weights], [0, 1], ["sum", "mean"])
            loss = tf.add_n([tf.reduce_sum(x) for x in result.pooled])
        assert shapes(result.pooled) == [[None, 4], [5, 3]]
        assert shapes(result.keys) == [[None], [None]]
        assert shapes(result.inverses) == [[None], [None]]
        slices, weight_grad = tape.gradient(loss, [group.anchors[0], weights])
        assert shapes([slices.indices, weight_grad]) == [[None], [None]]
        return loss

    look(tf.ones([3], i64), tf.constant([0, 3], i64), tf.constant([0, 1, 1, 2, 2, 3], i64), tf.ones([3]))


def test_shapes_of_the_other_ops(group):
    group.table(4, optimizer="sgd")

    @tf.function(input_signature=[spec(None), spec(None, 4, dtype=tf.float32), spec(None, dtype=tf.int32)])
    def body(keys, grads, counts):
        merged = _ops.merge([keys], [grads], [counts], 2, "sum")
        assert shapes(merged.keys + merged.grads + merged.counts) == [[None], [None, 4], [None]]
        applied = apply_step(1, group.paths, group.uuids, merged.keys, merged.grads, [[1.0]])
        info = _ops.group_info(group.path)
        assert shapes([applied, _ops.wait_step(group.path, 1, 1.0), *info]) == [[], [], [], [], [8]]
        assert shapes([_ops.erase(*group.paths, *group.uuids, keys), _ops.open_writer(group.path)]) == [[], []]
        return applied

    assert body(tf.constant([1, 1], i64), tf.ones([2, 4]), tf.ones([2], tf.int32)) == 1


def test_graph_optimizers_leave_reads_and_writes_alone(group):
    """Constant inputs, equal calls, unused results: nothing is folded, merged, pruned or moved."""
    table = group.table(2, rows=3, optimizer="sgd")
    ids = [1]

    @tf.function
    def body():
        def row():
            return _ops.lookup([tf.constant(ids, i64)], [table.path], [table.uuid], [tf.zeros([0, 2])], [0]).rows[0]

        first_rows = row()
        for step in (1, 2, 3):  # the results are unused
            apply_step(step, [table.path], [table.uuid], [tf.constant(ids, i64)], [tf.ones([1, 2])], [[1.0]])
        last_rows = row()
        _ops.set_step(group.path, 10)
        return first_rows, last_rows

    rows_before = table.rows(ids)
    for _ in range(2):  # optimizers run again when the function is traced for a second call
        first_rows, last_rows = body()
        np.testing.assert_array_equal(first_rows, rows_before)
        np.testing.assert_allclose(last_rows, rows_before - 3, rtol=1e-6)
        rows_before = last_rows.numpy()
        assert _ops.group_info(group.path).step == 10
        _ops.set_step(group.path, 0)


def test_a_saved_model_runs_in_a_fresh_process(group, folder):
    """The process uses one load_op_library and nothing else of this package."""
    wide, narrow = group.table(4, rows=10), group.table(3, rows=10)

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.anchors = group.anchors

        @tf.function(input_signature=[spec(None, 2), spec(None)])
        def __call__(self, a, b):
            carriers = [tf.convert_to_tensor(anchor) for anchor in self.anchors]
            looked_up = _ops.lookup([a, b], group.paths, group.uuids, carriers, [0, 1])
            splits = tf.constant([0, 1], i64)
            pooled = _ops.pooled_lookup(
                [b[:1]], [splits], [tf.zeros([0])], group.paths, group.uuids, carriers, [1], ["mean"]
            )
            return looked_up.rows[0], looked_up.rows[1], pooled.pooled[0]

    model = Model()
    tf.saved_model.save(model, f"{folder}/saved")
    library = Path(_ops.__file__).parent.with_name("_ops_lib.so")
    code = f"""
import sys
import tensorflow as tf
tf.load_op_library({str(library)!r})
model = tf.saved_model.load({folder + "/saved"!r})
rows = model(tf.constant([[1, 2]], tf.int64), tf.constant([3], tf.int64))
assert "tf_sparse_ps" not in sys.modules
print([row.numpy().tolist() for row in rows])
"""
    expected = [[wide.rows([1, 2]).tolist()], narrow.rows([3]).tolist(), narrow.rows([3]).tolist()]
    assert run_child(code) == f"{expected}\n"


def test_a_dataset_may_look_up(group):
    """Functions of tf.data run on their own threads and function libraries."""
    table = group.table(3, rows=10)
    data = tf.data.Dataset.range(8).batch(2).map(lambda x: group.lookup([x], [0]).rows[0], num_parallel_calls=2)
    np.testing.assert_array_equal(np.concatenate([x.numpy() for x in data]), table.rows(range(8)))
