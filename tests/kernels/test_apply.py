"""TspsMerge and TspsApply give the results of NumPy."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf
from kernel_support import apply_step, run_child

from tf_sparse_ps import _ops, _table

pytestmark = [pytest.mark.keras2_smoke, pytest.mark.quick]

i64 = tf.int64


@pytest.mark.parametrize("reduction", ["frequency", "average", "sum", "local"])
def test_merge_reduces_in_rank_order(mode, reduction):
    rng = np.random.default_rng(4)
    keys = [rng.integers(0, 40, 200), rng.integers(-5, 5, 9)]
    grads = [rng.normal(size=(200, 3)).astype(np.float32), rng.normal(size=(9, 2)).astype(np.float32)]
    counts = [rng.integers(1, 4, 200).astype(np.int32), np.ones(9, np.int32)]
    body = mode(lambda k, g, c, world: _ops.merge(k, g, c, world, reduction))
    arguments = [[tf.constant(x) for x in xs] for xs in (keys, grads, counts)]
    merged = body(*arguments, tf.constant(8))
    for t in range(2):
        expected = {}
        for key, grad, count in zip(keys[t], grads[t], counts[t], strict=True):
            total, ranks = expected.get(key, (np.zeros_like(grad), 0))
            expected[key] = total + grad, ranks + count
        keys_merged = merged.keys[t].numpy()
        assert sorted(keys_merged) == sorted(expected)
        divisor = [{"frequency": expected[key][1], "average": 8}.get(reduction, 1) for key in keys_merged]
        totals = np.array([expected[key][0] for key in keys_merged])
        np.testing.assert_allclose(merged.grads[t], totals / np.array(divisor, np.float32)[:, None], rtol=1e-6)
        ranks = [1 if reduction == "local" else expected[key][1] for key in keys_merged]
        np.testing.assert_array_equal(merged.counts[t], ranks)


def test_merge_of_nothing():
    merged = _ops.merge([tf.zeros([0], i64)], [tf.zeros([0, 5])], [tf.zeros([0], tf.int32)], 2, "frequency")
    assert [x[0].shape.as_list() for x in merged] == [[0], [0, 5], [0]]


def test_merge_refuses_what_does_not_fit():
    keys, grads, counts = tf.constant([1, 2], i64), tf.ones([2, 3]), tf.ones([2], tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 0 has 2 keys"):
        _ops.merge([keys], [grads[:1]], [counts], 1, "sum")
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 0 has 2 keys"):
        _ops.merge([keys], [grads], [counts[:1]], 1, "sum")
    with pytest.raises(tf.errors.InvalidArgumentError, match="world_size must be >= 1"):
        _ops.merge([keys], [grads], [counts], 0, "sum")


def test_a_step_over_two_tables_is_one_step(group, mode):
    sgd_table, adagrad_table = group.table(3, rows=4, optimizer="sgd"), group.table(2, optimizer="adagrad")
    rows_before = sgd_table.rows([1, 2, 3]), adagrad_table.rows([-9, 7])
    body = mode(lambda step, *x: apply_step(step, group.paths, group.uuids, x[:2], x[2:4], x[4:]))
    keys = tf.constant([3, 1], i64), tf.constant([-9], i64)
    grads = tf.constant([[1.0, 2, 3], [4, 5, 6]]), tf.constant([[3.0, -4]])
    assert body(tf.constant(1, i64), *keys, *grads, tf.constant([0.5]), tf.constant([0.5, 0.0])) == 1
    np.testing.assert_allclose(
        sgd_table.rows([1, 2, 3]), rows_before[0] - [[2, 2.5, 3], [0, 0, 0], [0.5, 1, 1.5]], rtol=1e-6
    )
    accumulated = np.array([[9, 16]]) + 0.1
    np.testing.assert_allclose(
        adagrad_table.rows([-9]), rows_before[1][:1] - 0.5 * grads[1] / np.sqrt(accumulated), rtol=1e-6
    )
    np.testing.assert_array_equal(adagrad_table.rows([7]), rows_before[1][1:])
    info = _ops.group_info(group.path)
    assert info.step == 1
    assert dict(zip(_ops.COUNTERS, info.counters.numpy(), strict=True))["rows_written"] == 3


def test_steps_come_in_order(group):
    group.table(2, optimizer="sgd")
    for step in (1, 2, 3):
        assert group.apply(step, [step]) == step
    for step in (3, 5):
        with pytest.raises(tf.errors.FailedPreconditionError, match=rf"step {step} .*: step 3 is the last"):
            group.apply(step, [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="step must be >= 1"):
        group.apply(0, [1])


def test_a_step_without_keys_is_a_step(group):
    group.table(2, optimizer="sgd")
    assert group.apply(1, []) == 1
    assert _ops.group_info(group.path).step == 1


def test_refused_steps_change_nothing(group):
    table = group.table(2, rows=3, optimizer="sgd", key_limit=3)
    before = table.rows([0, 1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient of key 2 is not finite"):
        apply_step(1, [table.path], [table.uuid], [[0, 2]], [[[1.0, 1], [1, np.nan]]], [[1.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"key 3 .*not in \[0, 3\)"):
        group.apply(1, [3])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"/t0 must have shape \[1,2\]. Received: \[1,3\]"):
        apply_step(1, [table.path], [table.uuid], [[0]], [[[1.0, 1, 1]]], [[1.0]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        apply_step(1, [table.path], [table.uuid], [[0]], [[[1.0, 1]]], [[1.0, 2.0]])
    np.testing.assert_array_equal(table.rows([0, 1, 2]), before)
    assert _ops.group_info(group.path).step == 0


def test_a_table_without_an_optimizer_is_not_trained(group):
    group.table(2)
    with pytest.raises(tf.errors.FailedPreconditionError, match="t0 has no optimizer bound"):
        group.apply(1, [1])


def test_only_the_writer_applies(group):
    table = group.table(2, rows=3, optimizer="sgd")
    code = f"""
import os
import tensorflow as tf
from tf_sparse_ps import _ops, _table
path, uuid = {table.path.numpy().decode()!r}, {table.uuid.numpy().decode()!r}
print(_ops.lookup([tf.constant([1], tf.int64)], [path], [uuid], [tf.zeros([0, 2])], [0]).rows[0].numpy().tolist())
for attempt in (
    lambda: _ops.lib.tsps_apply(1, [path], [uuid], [[1]], [[[1.0, 1]]], [[1.0]], _ops.NOBODY),
    lambda: _ops.assign(path, uuid, [1], [[1.0, 1]]),
    lambda: _ops.erase(path, uuid, [1]),
    lambda: _ops.set_step({group.path!r}, 4),
    lambda: _ops.bind_optimizer(path, uuid, "adam", [0.0, 0.0], replace=True),
    lambda: _ops.create_table({group.path!r} + "/u", uuid, dim=3),
):
    try:
        attempt()
    except tf.errors.FailedPreconditionError as error:
        assert "this process is not the writer of group {group.path}; process " in str(error), error
        assert " is. Nothing was written. Run the op in the process that ran TspsCreateGroup or" in str(error), error
        print("refused")
try:
    _ops.open_writer({group.path!r})
except tf.errors.AbortedError as error:
    print("aborted")
"""
    output = run_child(code).splitlines()
    assert output == [str(table.rows([1]).tolist()), *["refused"] * 6, "aborted"]


def test_a_repeated_key_is_refused_by_table_and_key(group, mode):
    sgd_table = group.table(2, rows=3, optimizer="sgd")
    group.table(2, optimizer="adagrad")
    rows_before = sgd_table.rows([0, 1, 2, 7])
    body = mode(lambda *x: apply_step(1, group.paths, group.uuids, x[:2], x[2:4], x[4:]))

    def apply(*keys):
        grads = [tf.ones([len(table_keys), 2]) for table_keys in keys]
        return body(
            *[tf.constant(table_keys, i64) for table_keys in keys], *grads, tf.constant([1.0]), tf.constant([1.0, 0.0])
        )

    for keys, name, key in (
        (([1, 2, 1], [5]), "t0", 1),  # the table has key 1
        (([7, 1, 7], [5]), "t0", 7),  # the table does not have key 7
        (([1], [9, 5, 9, 5]), "t1", 9),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"/{name}: key {key} is there twice"):
            apply(*keys)
    np.testing.assert_array_equal(sgd_table.rows([0, 1, 2, 7]), rows_before)
    assert _ops.group_info(group.path).step == 0
    assert apply([1, 7], [9, 5]) == 1
    np.testing.assert_allclose(sgd_table.rows([0, 1, 2, 7]), rows_before - [[0], [1], [0], [1]])


def test_a_step_is_prepared_and_then_decided(group, mode):
    table = group.table(2, rows=4, optimizer="sgd")
    before = table.rows(range(6))
    keys, grads, hyper = [tf.constant([1, 5], i64)], [tf.ones([2, 2])], [tf.constant([0.5])]
    prepare = mode(
        lambda step, grad: _ops.prepare_step(group.path, step, group.paths, group.uuids, keys, [grad], hyper)
    )
    decide = mode(lambda step, verdicts: _ops.check_step(step, _ops.decide_step(group.path, verdicts)))
    step_1 = tf.constant(1, i64)

    verdict = prepare(step_1, grads[0])
    assert bytes(verdict.numpy()) == _ops.NO_OBJECTIONS
    np.testing.assert_array_equal(table.rows(range(6)), before)
    refused = prepare(tf.constant(2, i64), grads[0])  # a verdict of another node; this node's step is dropped with it
    with pytest.raises(tf.errors.FailedPreconditionError, match="step 2 cannot be applied"):
        decide(step_1, tf.concat([verdict, refused, verdict], 0))
    assert _ops.group_info(group.path).step == 0
    np.testing.assert_array_equal(table.rows(range(6)), before)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"no step of group .* is prepared"):
        decide(step_1, verdict)

    not_finite = prepare(step_1, tf.fill([2, 2], np.inf))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the gradient of key 1 is not finite"):
        decide(step_1, not_finite)
    prepare(step_1, grads[0])
    verdict = prepare(step_1, 2.0 * grads[0])  # the previous step was never decided
    assert decide(step_1, tf.concat([verdict, verdict], 0)) == 1
    assert _ops.wait_step(group.path, 1, 5.0) == 1
    before[[1, 5]] -= 1.0
    np.testing.assert_array_equal(table.rows(range(6)), before)


def test_a_step_of_several_voters_is_sealed_until_all_have_decided(group):
    table = group.table(2, rows=4, optimizer="sgd")
    before = table.rows(range(6))
    keys, hyper = [tf.constant([1, 5], i64)], [tf.constant([0.5])]

    def prepare(step: int) -> tf.Tensor:
        return _ops.prepare_step(group.path, step, group.paths, group.uuids, keys, [tf.ones([2, 2])], hyper, voters=2)

    _ops.set_run(group.path, 77)
    refusal = _ops.prepare_step(group.path, 3, group.paths, group.uuids, keys, [tf.ones([2, 2])], hyper, voters=2)
    group_file = _table.Group.open(group.path)
    assert group_file.info()["sealed"] is None  # a step that cannot be prepared is not sealed
    verdict = prepare(1)
    assert group_file.info()["sealed"] == {"step": 1, "run_id": 77, "peers": 2}
    undecided = prepare(1)  # the vote failed, and the program continued
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"step 1 of group .* the vote on it failed"):
        _ops.check_step(1, undecided)
    _ops.decide_step(group.path, tf.concat([verdict, refusal], 0))
    assert group_file.info()["sealed"] is None
    np.testing.assert_array_equal(table.rows(range(6)), before)
    verdict = prepare(1)
    _ops.decide_step(group.path, tf.concat([verdict, verdict], 0))
    assert _ops.wait_step(group.path, 1, 5.0) == 1
    assert group_file.info()["sealed"] is None
    before[[1, 5]] -= 0.5
    np.testing.assert_array_equal(table.rows(range(6)), before)

    prepare(2)
    _ops.close_group(group.path)  # the process ends before the step is decided
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"2 groups of run 77 decide it together"):
        _ops.open_writer(group.path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="outcome must be"):
        _ops.open_writer(group.path, "perhaps")
    assert _ops.open_writer(group.path, "publish") == 2


@pytest.mark.parametrize("decision", ["publish", "undo"])
def test_readers_beside_a_step_that_is_not_decided_see_the_step_before(group, tmp_path, decision):
    table = group.table(2, rows=4, optimizer="sgd")
    path = table.path.numpy().decode()
    before = table.rows(range(6))
    keys, grads, hyper = [tf.constant([1, 5], i64)], [tf.ones([2, 2])], [tf.constant([0.5])]
    verdict = _ops.prepare_step(group.path, 1, group.paths, group.uuids, keys, grads, hyper, voters=2)
    refusal = _ops.prepare_step(group.path, 1, group.paths, group.uuids, keys, grads, hyper, voters=2)
    code = f"""
import numpy as np
from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table
before = np.array({before.tolist()!r}, np.float32)
with Table.open({path!r}) as table:
    assert table.step == 0
    np.testing.assert_array_equal(table.lookup(np.arange(6)), before)
    assert sorted(table.keys()) == [0, 1, 2, 3]
    assert table.verify().ok
    table.save({str(tmp_path / "saved")!r})
with Table.create({str(tmp_path / "own" / "t0")!r}, TableConfig("t0", 2, optimizer=optimizers.SGD())) as restored:
    restored.restore({str(tmp_path / "saved")!r})
    assert sorted(restored.keys()) == [0, 1, 2, 3]
    np.testing.assert_array_equal(restored.lookup(np.arange(4)), before[:4])
"""
    run_child(code)
    np.testing.assert_array_equal(table.rows(range(6)), before)  # in the writer's process
    if decision == "publish":
        _ops.decide_step(group.path, tf.concat([verdict, verdict], 0))
        assert _ops.wait_step(group.path, 1, 60.0) == 1
        before[[1, 5]] -= 0.5
    else:
        _ops.decide_step(group.path, tf.concat([verdict, refusal], 0))
    np.testing.assert_array_equal(table.rows(range(6)), before)


def test_other_writes_wait_until_a_step_is_decided(group):
    table = group.table(2, rows=4, optimizer="sgd")
    verdict = _ops.prepare_step(
        group.path, 1, group.paths, group.uuids, [tf.constant([1], i64)], [tf.ones([1, 2])], [tf.constant([0.5])]
    )
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        written = pool.submit(lambda: _ops.assign(table.path, table.uuid, [1], [[7.0, 7.0]], []))
        with pytest.raises(concurrent.futures.TimeoutError):
            written.result(0.2)
        _ops.decide_step(group.path, verdict)
        written.result(20)
    np.testing.assert_array_equal(table.rows([1]), [[7.0, 7.0]])


def test_what_is_no_verdict_is_refused():
    for damaged in ([99, 0], [1], [1, 65], [0, 0, 3, 65]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not verdicts on a step"):
            _ops.check_step(1, tf.constant(damaged, tf.uint8))
    for fine in ([], [0], [0, 0, 0]):
        assert _ops.check_step(7, tf.constant(fine, tf.uint8)) == 7
