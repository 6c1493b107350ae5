"""Gradients between nodes, and the merge by the ranks of a node. One process here; tests/multirank runs several."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import spans
from tf_sparse_ps import _ops

i64 = tf.int64
DIMS = (3, 2)


def sets(senders):
    """Returns keys, gradients and counts of each sender, for two tables."""
    rng = np.random.default_rng(4)
    sender_sets = []
    for _ in range(senders):
        keys = [rng.permutation(60)[:40] - 20, rng.permutation(9)[:5] + 2**60]
        grads = [
            rng.normal(size=(len(table_keys), dim)).astype(np.float32)
            for table_keys, dim in zip(keys, DIMS, strict=True)
        ]
        sender_sets.append((keys, grads, [rng.integers(1, 4, len(table_keys)).astype(np.int32) for table_keys in keys]))
    return sender_sets


def sent(sender_sets, wire):
    return tf.concat([_ops.pack(*map(list, sender_set), wire) for sender_set in sender_sets], 0)


@pytest.mark.parametrize("reduction", ["frequency", "average", "sum"])
def test_what_was_packed_merges_as_it_would_have_unpacked(mode, reduction):
    sender_sets = sets(3)
    body = mode(lambda buffers: _ops.unpack_merge(buffers, 7, reduction, DIMS))
    merged = body(sent(sender_sets, "float32"))
    joined = [
        [np.concatenate([sender_set[part][t] for sender_set in sender_sets]) for t in range(2)] for part in range(3)
    ]
    expected = _ops.merge(*joined, 7, reduction)
    for t in range(2):
        order, expected_order = np.argsort(merged.keys[t]), np.argsort(expected.keys[t])
        for actual, reference in zip(merged, expected, strict=True):
            np.testing.assert_array_equal(actual[t].numpy()[order], reference[t].numpy()[expected_order])


@pytest.mark.parametrize(("wire", "dtype"), [("bfloat16", tf.bfloat16), ("float16", tf.float16)])
def test_a_narrow_wire_rounds_to_nearest_even(wire, dtype):
    sender_sets = sets(1)
    merged = _ops.unpack_merge(sent(sender_sets, wire), 1, "sum", DIMS)
    for t in range(2):
        order = np.argsort(sender_sets[0][0][t])
        rounded = tf.cast(tf.cast(sender_sets[0][1][t][order], dtype), tf.float32)
        np.testing.assert_array_equal(merged.grads[t], rounded)
    assert sent(sender_sets, wire).shape[0] < sent(sender_sets, "float32").shape[0]


def test_nothing_packs_and_merges():
    nothing = (
        [np.zeros(0, np.int64)] * 2,
        [np.zeros((0, dim), np.float32) for dim in DIMS],
        [np.zeros(0, np.int32)] * 2,
    )
    merged = _ops.unpack_merge(sent([nothing, nothing], "float32"), 2, "frequency", DIMS)
    assert [tensor.shape.as_list() for tensor in merged.grads] == [[0, 3], [0, 2]]


def test_buffers_that_cannot_be_right_are_refused():
    good = sent(sets(2), "float32").numpy()
    damaged = good.copy()
    damaged[44] ^= 1
    with pytest.raises(tf.errors.DataLossError, match="damaged gradient buffer"):
        _ops.unpack_merge(damaged, 2, "sum", DIMS)
    with pytest.raises(tf.errors.DataLossError, match="truncated"):
        _ops.unpack_merge(good[: len(good) // 2 - 300], 2, "sum", DIMS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="sender 0 sent gradients of 2 tables"):
        _ops.unpack_merge(good, 2, "sum", (3, 2, 2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="keys of table 0 must be unique"):
        _ops.pack([np.array([5, 5])], [np.zeros((2, 3), np.float32)], [np.ones(2, np.int32)], "float32")


def test_a_merge_before_joining_is_refused(group):
    group.table(3)
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not joined the exchange"):
        _ops.node_merge(
            [tf.constant([1], i64)], [tf.ones([1, 3])], 1, group.path, tf.constant(1, i64), 1.0,
            reduction="sum", operation="test",
        )  # fmt: skip


@pytest.mark.parametrize("window", [1 << 20, 16])
def test_a_node_of_one_rank_merges_with_itself_and_applies(group, tmp_path, window, mode):
    table = group.table(3, rows=4, optimizer="sgd")
    _ops.join_exchange(group.path, str(tmp_path), 0, 1, 0, 0, window)
    keys = tf.constant([2, 0, 9], i64)
    grads = tf.constant([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    merge = mode(
        lambda k, g, step: _ops.node_merge([k], [g], 1, group.path, step, 5.0, reduction="frequency", operation="merge")
    )
    merged = merge(keys, grads, tf.constant(1, i64))
    order = np.argsort(merged.keys[0])
    np.testing.assert_array_equal(merged.keys[0].numpy()[order], [0, 2, 9])
    np.testing.assert_array_equal(merged.grads[0].numpy()[order], grads.numpy()[[1, 0, 2]])
    np.testing.assert_array_equal(merged.counts[0], [1, 1, 1])

    before = table.rows([0, 1, 2, 9])
    apply = mode(
        lambda k, g, h, step: _ops.node_apply(
            [k], [g], 1, group.path, step, 5.0, group.paths, group.uuids, [h], reduction="sum", operation="apply"
        )
    )
    assert bytes(apply(keys, grads, tf.constant([0.5]), tf.constant(1, i64)).numpy()) == _ops.NO_OBJECTIONS
    assert _ops.wait_step(group.path, 1, 5.0) == 1
    np.testing.assert_allclose(
        table.rows([0, 1, 2, 9]), before - [[2, 2.5, 3], [0, 0, 0], [0.5, 1, 1.5], [3.5, 4, 4.5]], rtol=1e-6
    )
    counters = dict(zip(_ops.RING_COUNTERS, _ops.ring_info(group.path).numpy().tolist(), strict=True))
    assert counters["rows_shared"] == counters["rows_merged"] == 6
    assert counters["rounds"] == 2 if window > 16 else counters["rounds"] > 2


def test_a_refused_gradient_leaves_the_exchange_as_it_was(group, tmp_path):
    group.table(2, rows=4, optimizer="sgd")
    _ops.join_exchange(group.path, str(tmp_path), 0, 1, 0, 0, 1 << 20)

    def apply(value, step):
        verdict = _ops.node_apply(
            [tf.constant([1], i64)], [tf.constant([[1.0, value]])], 1, group.path, tf.constant(step, i64), 5.0,
            group.paths, group.uuids, [tf.constant([0.5])], reduction="sum", operation="apply",
        )  # fmt: skip
        return _ops.check_step(step, verdict)

    with pytest.raises(tf.errors.InvalidArgumentError, match="the gradient of key 1 is not finite"):
        apply(float("nan"), 1)
    with pytest.raises(tf.errors.FailedPreconditionError, match="step 3 cannot be applied"):
        apply(1.0, 3)
    assert _ops.group_info(group.path).step == 0
    assert apply(1.0, 1) == 1
    assert _ops.wait_step(group.path, 1, 5.0) == 1


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_node_of_one_rank_sends_in_rounds_and_applies_what_comes_back(group, tmp_path, rounds):
    table = group.table(3, rows=4, optimizer="sgd")
    _ops.join_exchange(group.path, str(tmp_path), 0, 1, 0, 0, 1 << 20)
    keys, grads = tf.constant([2, 0, 9, 1], i64), tf.reshape(tf.range(12.0), [4, 3])
    before = table.rows([0, 1, 2, 9])

    def run(step):
        for round_ in range(rounds):
            sent, splits = _ops.ring_take(
                [keys], [grads], 2, group.path, step, 5.0, round_, rounds,
                reduction="frequency", operation="ring", wire="float32",
            )  # fmt: skip
            assert splits.numpy().tolist() == [len(sent)]
            # simulates another node that has sent the same
            _ops.ring_put(group.path, tf.concat([sent, sent], 0), round_, 1)

    run(tf.constant(1, i64))
    collected = _ops.ring_collect(group.path, [3])
    order = np.argsort(collected.keys[0])
    np.testing.assert_array_equal(collected.keys[0].numpy()[order], [0, 1, 2, 9])
    np.testing.assert_array_equal(collected.grads[0].numpy()[order], grads.numpy()[[1, 3, 0, 2]])
    np.testing.assert_array_equal(collected.counts[0], [2, 2, 2, 2])
    run(tf.constant(1, i64))
    prepared = _ops.ring_prepare(group.path, tf.constant(1, i64), group.paths, group.uuids, [tf.constant([0.5])])
    np.testing.assert_array_equal(table.rows([0, 1, 2, 9]), before)
    _ops.check_step(1, _ops.decide_step(group.path, prepared))
    assert _ops.wait_step(group.path, 1, 5.0) == 1
    np.testing.assert_allclose(table.rows([0, 1, 2, 9]), before - 0.5 * grads.numpy()[[1, 3, 0, 2]], rtol=1e-6)
    counters = dict(zip(_ops.RING_COUNTERS, _ops.ring_info(group.path).numpy().tolist(), strict=True))
    assert counters["rounds"] == 2 * rounds


def test_rounds_follow_from_bytes():
    keys = [tf.range(100, dtype=i64), tf.range(10, dtype=i64)]
    bytes_ = 100 * (8 + 12) + 10 * (8 + 8)
    for window, local_size in ((1 << 20, 1), (bytes_, 1), (bytes_ // 2, 1), (bytes_, 4), (1 << 31, 1), (1 << 32, 2)):
        rounds = _ops.ring_rounds(keys, DIMS, window, local_size).numpy().tolist()
        assert rounds == [bytes_ // (window // local_size) + 1]
    for window, local_size, received in ((0, 1, "0, 1"), (1 << 20, 1 << 32, "4294967296")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"Received: {received}"):
            _ops.ring_rounds(keys, DIMS, window, local_size)


def test_gradients_of_weight_0_are_dropped(mode):
    keys, grads = [tf.constant([3, 4], i64), tf.constant([], i64)], [tf.ones([2, 3]), tf.zeros([0, 2])]
    keep = mode(lambda weight: tf.nest.flatten(_ops.keep_if(weight, keys, grads)))
    for weight in (0.5, float("inf")):
        for kept_tensor, given_tensor in zip(keep(tf.constant(weight)), keys + grads, strict=True):
            np.testing.assert_array_equal(kept_tensor, given_tensor)
    for weight in (0.0, float("nan")):
        assert [kept_tensor.shape.as_list() for kept_tensor in keep(tf.constant(weight))] == [[0], [0], [0, 3], [0, 2]]


def test_the_timeline_has_collectives_and_work_while_it_is_recorded(group):
    group.table(3, rows=4)

    count = tf.Variable(0, dtype=i64)

    @tf.function
    def step(value):
        sent = _ops.mark(value, "tsps.0.nodes", "begin", count)
        return _ops.mark(sent * 2.0, "tsps.0.nodes", "end", count)

    before = _ops.ring_info(group.path).numpy()[-2]
    step(tf.ones([2]))
    spans.start()
    np.testing.assert_array_equal(step(tf.constant([1.0, 3.0])), [2.0, 6.0])
    group.lookup([tf.constant([1], i64)], [0])
    recorded = spans.stop()
    assert [name for name, _, _ in recorded] == ["tsps.0.nodes", "lookup"]
    assert all(begin <= end for _, begin, end in recorded)
    assert recorded[0][2] <= recorded[1][1]
    assert _ops.ring_info(group.path).numpy()[-2] >= before + recorded[0][2] - recorded[0][1]
    step(tf.ones([2]))
    assert spans.stop() == []


def test_a_mark_of_a_constant_is_made_at_every_run(group):
    count = tf.Variable(0, dtype=i64)

    @tf.function
    def step():
        begun = _ops.mark(tf.zeros([1]), "of a constant", "begin", count)
        return _ops.mark(begun, "of a constant", "end", count)

    step()
    spans.start()
    for _ in range(3):
        step()
    assert len(spans.stop()) == 3


def test_a_mark_passes_gradients_on():
    count = tf.Variable(0, dtype=i64)

    @tf.function
    def gradient(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            total = tf.reduce_sum(_ops.mark(value, "other", "begin", count) ** 2)
        return tape.gradient(total, value)

    np.testing.assert_array_equal(gradient(tf.constant([1.0, 3.0])), [2.0, 6.0])


def test_refused_collectives_and_merges_do_not_begin(group, tmp_path):
    table = group.table(2, rows=4, optimizer="sgd")
    _ops.join_exchange(group.path, str(tmp_path), 0, 1, 0, 0, 1 << 20)
    count = tf.Variable(0, dtype=i64)

    @tf.function
    def gather(value):
        return _ops.mark(_ops.mark(value, "tsps.0.dense", "begin", count), "tsps.0.dense", "end", count)

    @tf.function
    def step(number):
        verdict = _ops.node_apply(
            [tf.constant([1], i64)], [tf.ones([1, 2])], 1, group.path, number, 5.0, group.paths, group.uuids,
            [tf.constant([0.5])], reduction="sum", operation="tsps.0.sparse",
        )  # fmt: skip
        return _ops.check_step(number, verdict)

    assert step(tf.constant(1, i64)) == 1
    before = table.rows([1])
    _ops.refuse_collectives("rank 0: rank 1 is late")
    try:  # TensorFlow replaces UnavailableError by InternalError
        with pytest.raises(tf.errors.InternalError, match=r"'tsps\.0\.dense' did not begin: rank 0: rank 1 is late"):
            gather(tf.ones([1]))
        with pytest.raises(tf.errors.InternalError, match=r"'tsps\.0\.sparse' did not begin: rank 0: rank 1 is late"):
            step(tf.constant(2, i64))
        assert "tsps.0.dense" not in [name for name, _, _ in _ops.in_flight()]
        assert _ops.group_info(group.path).step == 1
        np.testing.assert_array_equal(table.rows([1]), before)
    finally:
        _ops.refuse_collectives("")
    assert gather(tf.ones([1])) == 1
    assert step(tf.constant(2, i64)) == 2


def test_what_cannot_be_read_ends_the_exchange(group, tmp_path):
    group.table(3, rows=4, optimizer="sgd")
    _ops.join_exchange(group.path, str(tmp_path), 0, 1, 0, 0, 1 << 20)

    def take():
        return _ops.ring_take(
            [tf.constant([1], i64)], [tf.ones([1, 3])], 2, group.path, tf.constant(1, i64), 5.0, 0, 1,
            reduction="sum", operation="ring", wire="float32",
        )[0]  # fmt: skip

    damaged = take().numpy()
    damaged[44] ^= 1
    with pytest.raises(tf.errors.DataLossError, match="damaged gradient buffer"):
        _ops.ring_put(group.path, damaged, 0, 1)
    with pytest.raises(tf.errors.DataLossError, match="damaged gradient buffer"):
        take()
