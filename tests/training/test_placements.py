"""Tables of one model with different placements: a ring for each, one step of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from models import DIM, IDS, ROWS, TARGETS, keras, optimizer

import tf_sparse_ps as tsps
from tf_sparse_ps.job.table_binding import TableBinding


def two_tables() -> tuple[Any, list[tsps.Embedding]]:
    """A model with two tables, with values of their own."""
    ids = keras.layers.Input((3,), dtype="int64")
    values = np.random.default_rng(3).normal(size=(2, ROWS, DIM)).astype(np.float32)
    tables = [tsps.Embedding(ROWS, DIM) for _ in values]
    flat = [keras.layers.Flatten()(table(ids)) for table in tables]
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Add()(flat)))
    for table, rows in zip(tables, values, strict=True):
        table.set_weights([rows])
    return model, tables


def trained(placements: list[str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, list[np.ndarray]]:
    """The optimizer and the weights after a few steps."""
    model, tables = two_tables()
    named = {table.bindings[0].ordinal: name for table, name in zip(tables, placements, strict=True)}
    monkeypatch.setattr(TableBinding, "placement", property(lambda one: named[one.ordinal]))
    model.compile(tsps.DistributedOptimizer(optimizer("Adagrad", 0.1, **options)), "mse")
    model.fit(IDS, TARGETS, 4, epochs=2, verbose=0, shuffle=False)
    return model.optimizer, model.get_weights()


@pytest.mark.parametrize("options", [{}, {"clipvalue": 0.01}, {"global_clipnorm": 0.1}], ids=str)
@pytest.mark.daily_cases(1)
def test_a_step_of_two_placements_is_the_step_of_one(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        one, expected = trained(["replicated", "replicated"], patch, **options)
    with monkeypatch.context() as patch:
        two, found = trained(["replicated", "elsewhere"], patch, **options)
    assert set(one._step_builder._binding.reducers) == {"replicated"}
    assert set(two._step_builder._binding.reducers) == {"replicated", "elsewhere"}
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
