"""A table that is partly on disk is trained like one in memory, bit for bit, for all combinations of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import functional, keras
from pairwise import covers, pairwise

import tf_sparse_ps as tsps
from tf_sparse_ps import optimizers

ROWS, DIM, BATCH, BATCHES = 1200, 64, 12, 40
KEYS = np.random.default_rng(0).integers(-(2**63), 2**63, ROWS)  # for a table without limits
INITIAL = keras.initializers.Constant(0.02)  # equal in both tables, whose seeds differ
BATCH_ROWS = 4 * BATCH  # at most
RULES = {
    rule.kind: rule
    for rule in (
        optimizers.SGD(),
        optimizers.Adagrad(),
        optimizers.Adam(),
        optimizers.Ftrl(),
        optimizers.RowwiseAdagrad(),
        optimizers.AdamW(),
        optimizers.RMSprop(),
        optimizers.SGD(momentum=0.9),
        optimizers.Adam(amsgrad=True),
        optimizers.RMSprop(momentum=0.9),
        optimizers.RMSprop(centered=True),
        optimizers.RMSprop(momentum=0.9, centered=True),
    )
}
SETTINGS: dict[str, list[Any]] = {
    "rule": list(RULES),
    "dtype": ["float32", "bfloat16", "float16"],
    "batches": [None, 4, "auto", 32, 1],  # None: without lookahead
    "memory": ["quarter", "two batches", "everything"],
    "bounded": [True, False],
}
CASES = pairwise(SETTINGS)
DAILY = 8


def memory_of(case: dict[str, Any]) -> int:
    """Returns the bytes for a number of rows, by the formula of docs/tiers.md."""
    rows = {"two batches": 2 * BATCH_ROWS, "quarter": ROWS // 4, "everything": ROWS}[case["memory"]]
    width = 4 if case["dtype"] == "float32" else 2
    slots = sum(4 if "rowwise" in case["rule"] else 4 * DIM for _ in RULES[case["rule"]].slots)
    taken = rows * (DIM * width + slots + 12 + 58)
    if case["bounded"]:
        taken += ROWS * 12
    else:
        # Space for rows that are evicted ahead of coming ones. A bounded table that holds all rows does not need it.
        spare = 200 * (taken // rows) if rows == ROWS else 0
        taken = max((taken + spare) * 4 // 3, ROWS * 12 * 4)
    return 3 * 2**19 + taken * 6 // 5 * 32 // 31 + 64


def data(bounded: bool) -> tf.data.Dataset:
    random = np.random.default_rng(1)
    again = random.integers(0, ROWS, 4 * BATCHES * BATCH - ROWS)
    ids = random.permutation(np.concatenate([np.arange(ROWS), again])).reshape(-1, 4)
    labels = random.normal(size=(len(ids), 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids if bounded else KEYS[ids], labels)).batch(BATCH)


def trained(case: dict[str, Any], storage: Any) -> Any:
    keras.utils.set_random_seed(1)
    limit = ROWS if case["bounded"] else None
    # Stochastic rounding depends on the ordinal of the table, in which the two differ.
    table = tsps.TableConfig(
        "t", DIM, key_limit=limit, dtype=case["dtype"], rounding="nearest", initializer=INITIAL, storage=storage
    )
    model = functional(tsps.Embedding(limit, DIM, table=table, name="words"), n=4)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.005), sparse_optimizer=RULES[case["rule"]]), "mse")
    batches = data(case["bounded"])
    if storage != "memory" and case["batches"] is not None:
        batches = tsps.lookahead(batches, model, batches=case["batches"])
    model.fit(batches, epochs=2, verbose=0)
    return model


def content(model: Any) -> list[np.ndarray]:
    """Returns keys, rows and slots in the order of the keys."""
    table = model.get_layer("words").bindings[0].reader()
    keys = np.sort(table.keys())
    _, rows, slots = table.entries(keys)
    return [keys, rows, *slots]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id="-".join(str(value) for value in case.values()),
            marks=[] if number < DAILY else pytest.mark.nightly,
        )
        for number, case in enumerate(CASES)
    ],
)
@pytest.mark.daily_cases(3)
def test_rows_and_slots_are_those_in_memory(tmp_path: Path, case: dict[str, Any]) -> None:
    memory, tiered = (trained(case, storage) for storage in ("memory", tsps.Tiered(tmp_path / "disk", memory_of(case))))
    stats = tiered.get_layer("words").bindings[0].reader().stats()
    assert stats["rows"] == ROWS
    if case["memory"] == "everything":
        assert stats["row_capacity"] >= ROWS
        assert stats["rows_on_disk"] == 0
    else:
        assert stats["row_capacity"] < ROWS / 2
        assert stats["rows_on_disk"] > ROWS / 2
    if case["memory"] == "two batches" and case["bounded"]:
        assert stats["row_capacity"] < 3 * BATCH_ROWS
    tiered_planes, memory_planes = content(tiered), content(memory)
    assert len(tiered_planes) == len(memory_planes) == 2 + len(RULES[case["rule"]].slots)
    assert np.isfinite(tiered_planes[1]).all()
    assert np.mean(tiered_planes[1] != tiered_planes[1][0, 0]) > 0.2  # training must change the rows
    for a, b in zip(tiered_planes, memory_planes, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_two_values_meet() -> None:
    assert covers(SETTINGS, CASES)
    assert len(CASES) == 60  # as many as pairs of a rule and a pass length: each case is needed
    assert not any(covers(SETTINGS, CASES[:removed] + CASES[removed + 1 :]) for removed in range(60))
    assert pairwise(SETTINGS) == CASES


def test_what_runs_every_day_has_every_value_but_some_rules() -> None:
    for name, values in SETTINGS.items():
        assert len({case[name] for case in CASES[:DAILY]}) == min(len(values), DAILY), name


def test_every_rule_is_among_them() -> None:
    with pytest.raises(ValueError, match="no row optimizer is of kind 'none'") as error:
        optimizers.of_kind("none", [])
    assert f"only {sorted(RULES)}" in str(error.value)
