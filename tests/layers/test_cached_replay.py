"""Records the decisions of a cache, and replays them: on the device's side by its rules, otherwise by the host's.

For every rule, "admission" gives the same bits as such a replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras
from test_device_cache import RULES

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops
from tf_sparse_ps.cache import row_rounding, row_rules
from tf_sparse_ps.cache.device_store import DeviceStore

ROWS, DIM, STEPS = 300, 4, 30
VALUES = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype(np.float32)


class Decided(NamedTuple):
    """A step, and which of its keys the device keeps after it."""

    keys: np.ndarray[Any, Any]
    gradients: np.ndarray[Any, Any]
    hyper: np.ndarray[Any, Any]
    held: np.ndarray[Any, Any]
    left: np.ndarray[Any, Any]
    entering: np.ndarray[Any, Any]
    victims: np.ndarray[Any, Any]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Decided]]:
    """The decisions of each step of a table with a cache, appended when the step is made."""
    log: list[Decided] = []
    move = DeviceStore.move

    def recorded(self: DeviceStore, part: Any, hyper: tf.Tensor, step: tf.Tensor) -> Any:
        plan = part.plan
        tensors = part.keys, part.gradients, hyper, plan.held, plan.left, plan.entering, plan.victim_keys
        tf.numpy_function(lambda *arrays: log.append(Decided(*map(np.copy, arrays))), tensors, [])
        return move(self, part, hyper, step)

    monkeypatch.setattr(DeviceStore, "move", recorded)
    return log


def made(rule: tsps.optimizers.RowOptimizer, dtype: str, cache: tsps.DeviceCache | None) -> tsps.Embedding:
    config = tsps.TableConfig("t", DIM, key_limit=ROWS, dtype=dtype, rounding="nearest", optimizer=rule)
    layer = tsps.Embedding(ROWS, DIM, table=config, cache=cache)
    layer.build(None)
    layer.set_weights([VALUES])
    return layer


def train(layer: tsps.Embedding, rule: tsps.optimizers.RowOptimizer) -> None:
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.05), sparse_optimizer=rule)
    (weight,) = layer.trainable_variables

    @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.int64), tf.TensorSpec([], tf.float32)])
    def step(ids: tf.Tensor, target: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids) - target))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    random = np.random.default_rng(2)
    for _ in range(STEPS):
        step(tf.constant(np.minimum(random.zipf(1.3, (8, 6)), ROWS) - 1), tf.constant(random.normal(), tf.float32))


def replay(
    layer: tsps.Embedding, rule: tsps.optimizers.RowOptimizer, log: list[Decided], *, all_by_host: bool = False
) -> None:
    """Applies the recorded decisions to a table without a cache.

    Args:
      layer: The layer without a cache.
      rule: The row optimizer.
      log: The recorded decisions.
      all_by_host: The control: lets the host update all rows.
    """
    (binding,) = layer.bindings
    device_rule = tf.function(row_rules.RULES[rule.kind], autograph=False)
    group = binding.group.path
    for decision in log:
        left_keys = np.arange(len(decision.keys)) if all_by_host else decision.left
        held = np.zeros(0, np.int64) if all_by_host else decision.held
        _, rows, slots = binding.reader().entries(decision.keys[held])
        new = device_rule(
            tf.constant(decision.hyper), tf.constant(decision.gradients[held]), [rows, *map(tf.constant, slots)]
        )
        new[0] = tf.cast(row_rounding.to(binding.config.dtype, new[0], None), tf.float32)
        _ops.lib.tsps_apply(
            tf.constant(int(_ops.group_info(group).step) + 1, tf.int64),
            [binding.path_tensor],
            [binding.uuid],
            [tf.constant(decision.keys[left_keys])],
            [tf.constant(decision.gradients[left_keys])],
            [tf.constant(decision.hyper)],
            _ops.NOBODY,
        )
        if len(held):
            binding.assign(decision.keys[held], new[0].numpy(), tuple(slot.numpy() for slot in new[1:]))


def content(layer: tsps.Embedding) -> list[np.ndarray[Any, Any]]:
    _, rows, slots = layer.bindings[0].reader().entries(np.arange(ROWS))
    return [rows, *slots]


def mark_updates_of_the_device(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Makes each update by the device visible in a row. Otherwise the host's bits may be the same."""
    rule = row_rules.RULES[kind]

    def marked(hyper: tf.Tensor, gradients: tf.Tensor, rows: Any) -> list[tf.Tensor]:
        new = rule(hyper, gradients, rows)
        # Uses no operation that TensorFlow could fuse with the previous ones, because it would round otherwise.
        return [tf.bitcast(tf.bitwise.bitwise_xor(tf.bitcast(new[0], tf.int32), 1 << 12), tf.float32), *new[1:]]

    monkeypatch.setitem(row_rules.RULES, kind, marked)


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("bfloat16", "float32, marked"))]
)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.daily_cases(4)
def test_a_replay_of_what_admission_decides_gives_the_same_bits(
    decided: list[Decided], rule: tsps.optimizers.RowOptimizer, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, _, marked = dtype.partition(", ")
    if marked:
        mark_updates_of_the_device(monkeypatch, rule.kind)
    layer = made(rule, dtype, tsps.DeviceCache(rows=25))
    train(layer, rule)
    log = list(decided)
    assert len(log) == STEPS
    for name in ("left", "held", "entering", "victims"):
        assert sum(len(getattr(decision, name)) for decision in log) > 20, name
    reference = made(rule, dtype, None)
    replay(reference, rule, log)
    for plane, expected in zip(content(layer), content(reference), strict=True):
        np.testing.assert_array_equal(plane, expected)


def test_a_replay_that_does_not_look_at_who_updates_a_row_gives_others(
    decided: list[Decided], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = tsps.optimizers.Adam()
    mark_updates_of_the_device(monkeypatch, rule.kind)
    layer = made(rule, "float32", tsps.DeviceCache(rows=25))
    train(layer, rule)
    reference = made(rule, "float32", None)
    replay(reference, rule, list(decided), all_by_host=True)
    assert np.mean(content(layer)[0] != content(reference)[0]) > 0.02
