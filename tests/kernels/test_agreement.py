"""Facts that ranks must agree on: their digest, the votes that carry it, and the text that names a difference."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.reduction import agreement

pytestmark = [pytest.mark.keras2_smoke, pytest.mark.quick]

i64 = tf.int64


THREE = np.ones(3, np.float32)


@tf.autograph.experimental.do_not_convert
def facts(seed=1, numbers=(1, 2), reals=(0.5,), values=(THREE,)):
    return _ops.facts(
        tf.constant(seed, i64),
        tf.constant(numbers, i64),
        [tf.constant(reals)],
        [tf.constant(value) for value in values],
    )


def test_facts_are_the_numbers_the_bits_of_reals_and_a_digest_of_values(mode):
    eager_or_traced = mode(lambda: facts())()
    assert eager_or_traced.facts[:3].numpy().tolist() == [1, 2, int(np.float32(0.5).view(np.uint32))]
    assert eager_or_traced.facts.shape == [4]
    repeated = facts()
    assert eager_or_traced.digest == repeated.digest
    np.testing.assert_array_equal(eager_or_traced.facts, repeated.facts)


@pytest.mark.parametrize(
    "other",
    [
        {"numbers": (2, 1)},
        {"numbers": (1, 3)},
        {"reals": (np.nextafter(np.float32(0.5), np.float32(1)),)},
        {"values": (np.array([1, 1, 2], np.float32),)},
        {"values": (np.ones(3, np.int32),)},
        {"values": (np.ones(4, np.float32),)},
        {"values": (np.ones(3, np.float32), np.zeros(0, np.float32))},
    ],
)
def test_any_other_fact_has_another_digest(other):
    assert facts(**other).digest != facts().digest


@pytest.mark.parametrize("n", [256, 257, 10_000, 300_001])
def test_of_large_values_every_part_is_looked_at_sooner_or_later(n):
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    assert facts(values=(values,)).digest == facts(values=(values.copy(),)).digest
    assert facts(values=(values + 1.0,)).digest != facts(values=(values,)).digest
    part = values.copy()
    part[n // 3] += 1.0
    steps = range(8 * max(1, n // 256))
    assert any(facts(seed=step, values=(part,)).digest != facts(seed=step, values=(values,)).digest for step in steps)


def test_statements_among_the_verdicts_refuse_a_step_when_digests_differ(group):
    group.table(2, rows=4, optimizer="sgd")
    nothing = tf.constant(list(_ops.NO_OBJECTIONS), tf.uint8)

    def decide(*digests):
        votes = [vote for digest in digests for vote in (nothing, _ops.statement(group.path, tf.constant(digest, i64)))]
        verdict = _ops.prepare_step(
            group.path,
            1,
            group.paths,
            group.uuids,
            [tf.constant([1], i64)],
            [tf.ones([1, 2])],
            [tf.constant([0.5])],
        )
        return _ops.decide_step(group.path, tf.concat([verdict, *votes], 0))

    for digests in [(-7, 5), (5, 5, 6), (0, 1 << 56)]:
        refused = decide(*digests)
        assert bytes(refused.numpy()) == _ops.RANKS_DIFFER
        with pytest.raises(tf.errors.FailedPreconditionError, match="the ranks of this job differ"):
            _ops.check_step(1, refused)
    assert _ops.group_info(group.path).step == 0
    assert bytes(decide(-7, -7, -7).numpy()) == _ops.NO_OBJECTIONS
    assert _ops.wait_step(group.path, 1, 5.0) == 1


def test_a_look_up_of_a_step_leaves_its_error_to_the_step_where_that_is_allowed(group, mode):
    table = group.table(2, rows=4, key_limit=10, optimizer="sgd")
    carriers = [tf.zeros([0, 2])]
    ids = [tf.constant([[1, 11]], i64)]
    look = mode(lambda ids: _ops.lookup([ids], group.paths, group.uuids, carriers, [0], in_step=True).rows)
    plain = mode(lambda ids: _ops.lookup([ids], group.paths, group.uuids, carriers, [0]).rows)
    pool = mode(
        lambda ids: _ops.pooled_lookup(
            [ids[0]], [[0, 2]], [tf.zeros([0])], group.paths, group.uuids, carriers, [0], ["sum"], in_step=True
        ).pooled
    )
    text = r"ids\[0,1\] = 11 is not in \[0, 10\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        look(ids[0])
    _ops.allow_objections(group.path, allowed=True)
    assert not np.any(look(ids[0])[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="an earlier lookup of a training step.*" + text):
        plain(tf.constant([1], i64))
    np.testing.assert_array_equal(plain(tf.constant([1], i64))[0], table.rows([1]))  # read once
    assert not np.any(pool(ids[0])[0])
    refused = _ops.decide_step(group.path, _ops.statement(group.path, tf.constant(0, i64)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1\] = 11 is not in \[0, 10\)"):
        _ops.check_step(1, refused)
    look(ids[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        _ops.raise_objection(group.path)
    _ops.raise_objection(group.path)  # no objection is left
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        plain(ids[0])


def test_a_difference_is_named_with_the_rank_the_values_and_the_remedy(mode):
    def explained(verdict, gathered):
        names = ["count", "rate", "rows"]
        return _ops.explain_difference(verdict, gathered, names, "ifh", ["do this", "do that"], [0, 1, 1])

    differ, nothing = (
        tf.constant(list(verdict_bytes), tf.uint8) for verdict_bytes in (_ops.RANKS_DIFFER, _ops.NO_OBJECTIONS)
    )
    bits = [int(np.float32(rate).view(np.uint32)) for rate in (0.5, 0.25)]
    explain = mode(explained)
    alike = tf.constant([1, bits[0], 9] * 3, i64)
    assert bytes(explain(nothing, alike).numpy()) == _ops.NO_OBJECTIONS
    assert bytes(explain(differ, alike).numpy()) == _ops.RANKS_DIFFER
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        _ops.check_step(1, explain(differ, tf.constant([1, bits[0], 9, 1, bits[0], 9, 1, bits[1], 8], i64)))
    assert (
        "no rank has made this step: rate: rank 0 has 0.5, rank 2 has 0.25; rows on rank 2 is not that of rank 0. "
        "do that"
    ) in error.value.message
    with pytest.raises(tf.errors.FailedPreconditionError, match="must run the same program"):
        _ops.check_step(1, explain(differ, alike[:-1]))


@pytest.mark.parametrize(
    "digests", [[3, 3], [3, 4], [-1, -1, -1], [1, 3, 2], [0, 1 << 60], [-1] * 300, [-1] * 299 + [-2]]
)
def test_a_sum_over_the_ranks_shows_whether_digests_are_equal(digests, monkeypatch):
    class Ranks:
        size = len(digests)

        def allgather(self, tensors, name):
            return [tf.concat([tensors[0]] * self.size, 0)]

    tails = []
    for digest in digests:
        fact_agreement = agreement.Agreement(Ranks(), "test", 1)
        fact_agreement._digested = _ops.Facts(tf.constant([digest], i64), tf.constant(digest, i64))
        fact_agreement.numbers(["a number"], [digest], agreement.SAME_PROGRAM)
        tails.append(fact_agreement.tail)
    fact_agreement.take(tf.add_n(tails))
    if len(set(digests)) == 1:
        fact_agreement.check([])
        return
    with pytest.raises(tf.errors.FailedPreconditionError):
        fact_agreement.check([])
