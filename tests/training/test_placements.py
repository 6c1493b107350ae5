"""Tables of one model with different placements: each placement has its own ring, and all share a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from models import DIM, IDS, ROWS, TARGETS, keras, optimizer

import tf_sparse_ps as tsps
from tf_sparse_ps.job.table_binding import TableBinding


def two_tables() -> tuple[Any, list[tsps.Embedding]]:
    """Returns a model with two tables, and the layers. The tables have values of their own."""
    ids = keras.layers.Input((3,), dtype="int64")
    values = np.random.default_rng(3).normal(size=(2, ROWS, DIM)).astype(np.float32)
    tables = [tsps.Embedding(ROWS, DIM) for _ in values]
    flat = [keras.layers.Flatten()(table(ids)) for table in tables]
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Add()(flat)))
    for table, rows in zip(tables, values, strict=True):
        table.set_weights([rows])
    return model, tables


def trained(placements: list[str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, list[np.ndarray]]:
    """Trains a model for a few steps, and returns the optimizer and the weights."""
    model, tables = two_tables()
    named = {table.bindings[0].ordinal: name for table, name in zip(tables, placements, strict=True)}
    monkeypatch.setattr(TableBinding, "placement", property(lambda binding: named[binding.ordinal]))
    model.compile(tsps.DistributedOptimizer(optimizer("Adagrad", 0.1, **options)), "mse")
    model.fit(IDS, TARGETS, 4, epochs=2, verbose=0, shuffle=False)
    return model.optimizer, model.get_weights()


@pytest.mark.parametrize("options", [{}, {"clipvalue": 0.01}, {"global_clipnorm": 0.1}], ids=str)
@pytest.mark.daily_cases(1)
def test_a_step_of_two_placements_is_the_step_of_one(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        optimizer_one, expected = trained(["replicated", "replicated"], patch, **options)
    with monkeypatch.context() as patch:
        optimizer_two, actual = trained(["replicated", "elsewhere"], patch, **options)
    assert set(optimizer_one._step_builder.binding.reducers) == {"replicated"}
    assert set(optimizer_two._step_builder.binding.reducers) == {"replicated", "elsewhere"}
    for weight, expected_weight in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(weight, expected_weight)
