"""Rows of 16 bits: every rule with every type of rows equals NumPy bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from row_rules import nearest, row_draws, stochastic, update, widen

from tf_sparse_ps import errors, optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table

pytestmark = pytest.mark.quick

RULES = {
    "sgd": optimizers.SGD(learning_rate=0.1),
    "momentum": optimizers.SGD(learning_rate=0.1, momentum=0.9),
    "nesterov": optimizers.SGD(learning_rate=0.1, momentum=0.9, nesterov=True),
    "adagrad": optimizers.Adagrad(learning_rate=0.1),
    "rowwise_adagrad": optimizers.RowwiseAdagrad(learning_rate=0.1),
    "adam": optimizers.Adam(learning_rate=0.01),
    "amsgrad": optimizers.Adam(learning_rate=0.01, amsgrad=True),
    "adamw": optimizers.AdamW(learning_rate=0.01, weight_decay=0.1),
    "rmsprop": optimizers.RMSprop(learning_rate=0.01),
    "rmsprop_momentum": optimizers.RMSprop(learning_rate=0.01, momentum=0.5),
    "rmsprop_centered": optimizers.RMSprop(learning_rate=0.01, centered=True, epsilon=1e-3),
    "rmsprop_centered_momentum": optimizers.RMSprop(learning_rate=0.01, centered=True, momentum=0.5, epsilon=1e-3),
    "ftrl": optimizers.Ftrl(
        learning_rate=0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.1,
        l2_shrinkage_regularization_strength=0.1,
        beta=0.5,
    ),
}
TYPES = [("float32", "stochastic"), ("bfloat16", "stochastic"), ("float16", "stochastic"), ("bfloat16", "nearest")]


@pytest.mark.parametrize(("dtype", "rounding"), TYPES)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_with_every_type_does_what_numpy_does(create, rule, dtype, rounding):
    optimizer, dim = RULES[rule], 19
    user = create(dim=dim, optimizer=optimizer, dtype=dtype, rounding=rounding, seed=5)
    salt = user.core_initializer()["salt"]
    rng = np.random.default_rng(7)
    keys = np.arange(40) * 7919 - 3
    rows = user.lookup(keys)
    slots = [np.full((40, 1 if rule == "rowwise_adagrad" else dim), x, np.float32) for x in optimizer.slot_init]
    for step in range(1, 21):
        chosen = np.sort(rng.permutation(40)[:25])
        gradients = rng.normal(size=(25, dim)).astype(np.float32)
        assert user.apply_gradients(keys[chosen], gradients) == step
        part, new_slots = update(
            optimizer.kind, optimizer.hyper_values(step), rows[chosen], [slot[chosen] for slot in slots], gradients
        )
        if dtype != "float32" and rounding == "nearest":
            part = widen(nearest(part, dtype))
        elif dtype != "float32":
            part = widen(stochastic(part, dtype, row_draws(5, salt, keys[chosen], step)))
        rows[chosen] = part
        for slot, values in zip(slots, new_slots, strict=True):
            slot[chosen] = values
        np.testing.assert_array_equal(user.lookup(keys), rows)
    _, stored, stored_slots = user.entries(keys)
    np.testing.assert_array_equal(stored, rows)
    for actual, expected in zip(stored_slots, slots, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert user.verify().ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_initial_rows_are_rounded_to_the_nearest_and_written_as_they_were_read(create, dtype):
    user = create(dim=16, dtype=dtype, seed=3, initializer="normal")
    wide = create("wide", dim=16, seed=3, initializer="normal")
    keys = np.arange(100)
    user.assign([1000], np.ones((1, 16)))
    before = user.lookup(keys)
    # The two tables differ in their salts, and therefore in their initial values.
    assert not np.array_equal(before, widen(nearest(wide.lookup(keys), dtype)))
    np.testing.assert_array_equal(before, widen(nearest(before, dtype)))
    user.apply_gradients(keys, np.zeros((100, 16), np.float32))
    np.testing.assert_array_equal(user.lookup(keys), before)


def test_half_the_memory(create):
    keys, rows = np.arange(200_000), np.ones((200_000, 64), np.float32)
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        user = create(dtype, dim=64, dtype=dtype, optimizer=None)
        user.assign(keys, rows)
        sizes[dtype] = sum(file.stat().st_blocks * 512 for file in Path(user.path).glob("plane.embedding.*"))
    assert 0.5 <= sizes["bfloat16"] / sizes["float32"] < 0.55


def test_what_is_beyond_the_range_is_refused_or_limited(create):
    user = create(dtype="float16", optimizer=optimizers.SGD(learning_rate=1.0), rounding="nearest")
    user.assign([1, 2], np.full((2, 4), 7.0))
    with pytest.raises(
        errors.InvalidArgumentError, match=r"70000, in the row of key 2, is beyond the range of float16"
    ):
        user.assign([1, 2], np.array([[1, 2, 3, 4], [1, 2, 3, 70000.0]]))
    np.testing.assert_array_equal(user.lookup([1, 2]), np.full((2, 4), 7.0))
    user.apply_gradients([1], [[-1e6, 1e6, -65510.0, 0.0]])
    np.testing.assert_array_equal(user.lookup([1]), [[65504, -65504, 65504, 7]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_files_have_the_type_of_the_table_and_go_into_tables_of_any(create, folder, dtype):
    user = create(dim=8, dtype=dtype, optimizer=RULES["adam"], seed=1)
    keys = np.arange(5000)
    user.apply_gradients(keys, np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32))
    path = os.path.join(folder, "rows.tfsps")
    assert user.export_parameter_file(path, progress=False) == 5000
    wide = create("wide", dim=8, optimizer=None)
    same = create("same", dim=8, dtype=dtype, optimizer=None)
    for table in (wide, same):
        assert table.load_parameter_file(path, progress=False) == 5000
        for actual, expected in zip(table.entries(keys), user.entries(keys), strict=True):
            np.testing.assert_equal(actual, expected)
    large, narrow = create("large", dim=8, optimizer=None), create("narrow", dim=8, dtype=dtype, optimizer=None)
    large.assign(keys, np.random.default_rng(1).normal(size=(5000, 8)))
    large.export_parameter_file(path, progress=False)
    narrow.load_parameter_file(path, progress=False)
    np.testing.assert_array_equal(narrow.lookup(keys), widen(nearest(large.lookup(keys), dtype)))
    size = os.stat(path).st_size
    narrow.export_parameter_file(path, progress=False)
    assert os.stat(path).st_size / size == pytest.approx((8 + 16) / (8 + 32), rel=0.01)


def test_a_table_is_opened_with_the_type_that_it_has(create):
    user = create(dtype="bfloat16", rounding="nearest")
    user.apply_gradients([1], np.ones((1, 4), np.float32))
    user.close()
    with Table.open(user.path) as again:
        assert (again.config.dtype, again.config.rounding) == ("bfloat16", "nearest")
    for dtype, rounding, word in (("float32", "nearest", "dtype"), ("bfloat16", "stochastic", "rounding")):
        with pytest.raises(errors.StateError, match=f"has {word}="):
            Table.open(user.path, config=TableConfig("user", 4, dtype=dtype, rounding=rounding))


def test_types_that_rows_cannot_have(create):
    for wrong in ({"dtype": "float64"}, {"dtype": "int8"}, {"rounding": "up"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            create(**wrong)


def test_a_scan_gives_floats(create):
    user = create(dim=5, dtype="float16", optimizer=RULES["adagrad"])
    keys = np.arange(3000)
    user.apply_gradients(keys, np.random.default_rng(0).normal(size=(3000, 5)).astype(np.float32))
    with user.scan() as scan:
        scanned_keys, rows, (accumulators,), _ = scan.read()
    order = np.argsort(scanned_keys)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[order], user.lookup(keys))
    np.testing.assert_array_equal(accumulators[order], user.entries(keys)[2][0])
