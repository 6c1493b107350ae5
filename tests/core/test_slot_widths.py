"""Row-wise Adagrad has one slot float per row. The core finds the rule by its name."""

from __future__ import annotations

import numpy as np
import pytest

from tf_sparse_ps import _table, errors, optimizers
from tf_sparse_ps.table import Table

RATE, EPSILON, START = 0.5, 1e-3, 0.1


RULE = optimizers.RowwiseAdagrad(learning_rate=RATE, epsilon=EPSILON, initial_accumulator_value=START)


def numpy_step(rows, accumulator, gradients):
    accumulator += np.mean(gradients**2, axis=1, keepdims=True)
    rows -= RATE * gradients / (np.sqrt(accumulator) + EPSILON)


@pytest.mark.parametrize("dim", [1, 3, 16, 37])
def test_row_wise_adagrad_does_what_numpy_does(create, dim):
    user = create(dim=dim, optimizer=RULE)
    rng = np.random.default_rng(dim)
    keys = np.arange(50) * 7919
    rows, accumulator = user.lookup(keys).astype(np.float64), np.full((50, 1), START)
    for _ in range(20):
        chosen = rng.permutation(50)[:30]
        gradients = rng.normal(size=(30, dim)).astype(np.float32)
        user.apply_gradients(keys[chosen], gradients)
        part, slot = rows[chosen], accumulator[chosen]
        numpy_step(part, slot, gradients.astype(np.float64))
        rows[chosen], accumulator[chosen] = part, slot
    is_present, stored, (slots,) = user.entries(np.append(keys, -1))
    assert is_present.tolist() == [True] * 50 + [False]
    assert (stored.shape, slots.shape) == ((51, dim), (51, 1))
    np.testing.assert_allclose(stored[:50], rows, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(slots[:50], accumulator, rtol=1e-5)
    assert not stored[50].any()
    assert not slots[50].any()
    assert user.verify().ok


def test_slots_are_assigned_with_the_width_that_they_have(create):
    user = create(optimizer=None)
    user.bind_slots("rowwise_adagrad", [START], "never said")
    rows, slots = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([[3], [4]], np.float32)
    user.assign([1, 2], rows, [slots])
    user.assign([2, 3], rows)
    _, stored, (stored_slots,) = user.entries([1, 2, 3])
    np.testing.assert_array_equal(stored, [rows[0], rows[0], rows[1]])
    np.testing.assert_array_equal(stored_slots, np.array([[3], [4], [START]], np.float32))
    for wrong in (rows, slots[:1], slots[:, 0]):
        with pytest.raises(errors.InvalidArgumentError, match=r"accumulator must have the shape \[2, 1\]"):
            user.assign([1, 2], rows, [wrong])
    with pytest.raises(errors.InvalidArgumentError, match=r"has 1 slots \(optimizer rowwise_adagrad\). Received: 2"):
        user.assign([1, 2], rows, [slots, slots])
    with pytest.raises(errors.StateError, match="said now"):
        user.bind_slots("adagrad", [START], "said now")


def test_the_rule_is_kept_and_compared(create):
    user = create(optimizer=RULE)
    user.apply_gradients([1], np.ones((1, 4), np.float32))
    before = user.entries([1])
    user.close()
    with Table.open(user.path, "r+") as again:
        assert again.stats()["optimizer"] == {"kind": "rowwise_adagrad", "slot_init": (np.float32(START),)}
        for x, y in zip(before, again.entries([1]), strict=True):
            np.testing.assert_array_equal(x, y)
        with pytest.raises(errors.StateError, match="rowwise_adagrad"):
            again.bind_optimizer(optimizers.Adagrad(learning_rate=1.0))
        again.bind_optimizer(optimizers.Adagrad(learning_rate=1.0), replace=True)
        assert again.entries([1])[2][0].shape == (1, 4)


def test_widths_come_from_the_core():
    assert _table.slot_widths("adam", 5) == [5, 5]
    assert _table.slot_widths("rowwise_adagrad", 5) == [1]
    assert _table.slot_widths("none", 5) == []
    with pytest.raises(errors.InvalidArgumentError, match=r"ftrl\. Received: 'lamb'"):
        _table.slot_widths("lamb", 5)
