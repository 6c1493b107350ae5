"""Random operations on tables, each checked against a Python dict."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tf_sparse_ps import _table, optimizers, table
from tf_sparse_ps.config import TableConfig, Tiered
from tf_sparse_ps.table import Table

DIM = 3
RATE = np.float32(0.5)
START, EPSILON = np.float32(0.1), np.float32(1e-7)
KEYS = st.one_of(
    st.integers(-3, 12), st.sampled_from([2**63 - 1, -(2**63), 2**32, 2**32 + 1, 2**53 + 1]), st.integers(0, 3000)
)
KEY_LISTS = st.lists(KEYS, min_size=0, max_size=20)


class Tables(RuleBasedStateMachine):
    """Two Adagrad tables of one group. One has 64 rows in memory and the rest on disk.

    The model has a row and an accumulator for each key.
    """

    @initialize()
    def create(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="tf_sparse_ps-model-", dir="/dev/shm")
        adagrad = optimizers.Adagrad(learning_rate=float(RATE))
        tiered = {"storage": Tiered(f"{self.folder}/disk", memory=3_530_000), "max_rows": 2**17}
        self.tables = [
            Table.create(
                f"{self.folder}/g/{name}", TableConfig(name, DIM, initializer="normal", optimizer=adagrad, **storage)
            )
            for name, storage in (("a", {}), ("b", tiered))
        ]
        self.models: list[dict[int, tuple[np.ndarray, np.ndarray]]] = [{}, {}]
        self.steps = 0
        self.draws = np.random.default_rng(0)

    def teardown(self) -> None:
        for table_to_close in self.tables:
            table_to_close.close()
        shutil.rmtree(self.folder)

    def rows(self, n: int) -> np.ndarray:
        return self.draws.normal(size=(n, DIM)).astype(np.float32)

    def train(self, which: int, keys: list[int], grads: np.ndarray, counts: np.ndarray | None) -> None:
        model = self.models[which]
        sums: dict[int, np.ndarray] = {}
        totals: dict[int, int] = {}
        for position, key in enumerate(keys):
            sums[key] = sums.get(key, np.zeros(DIM, np.float32)) + grads[position]
            totals[key] = totals.get(key, 0) + (0 if counts is None else int(counts[position]))
        for key, total in sums.items():
            gradient = total if counts is None else total / np.float32(totals[key])
            initial = (self.initial(which, key), np.full(DIM, START))
            row, accumulator = model.get(key, initial)
            accumulator = accumulator + gradient * gradient
            model[key] = (row - RATE * gradient / np.sqrt(accumulator + EPSILON), accumulator)

    def initial(self, which: int, key: int) -> np.ndarray:
        return _table.initial_rows(self.tables[which].core_initializer(), np.array([key]), DIM)[0]

    @rule(which=st.integers(0, 1), keys=KEY_LISTS, counted=st.booleans())
    def apply_gradients(self, which: int, keys: list[int], counted: bool) -> None:
        grads = self.rows(len(keys))
        counts = self.draws.integers(1, 5, len(keys)) if counted else None
        self.tables[which].apply_gradients(keys, grads, counts)
        self.train(which, keys, grads, counts)
        self.steps += 1

    @rule(first=KEY_LISTS, second=KEY_LISTS)
    def step(self, first: list[int], second: list[int]) -> None:
        parts = [(keys, self.rows(len(keys))) for keys in (first, second)]
        assert table.step(dict(zip(self.tables, parts, strict=True))) == self.steps + 1
        for which, (keys, grads) in enumerate(parts):
            self.train(which, keys, grads, None)
        self.steps += 1

    @rule(which=st.integers(0, 1), keys=KEY_LISTS, with_slots=st.booleans())
    def assign(self, which: int, keys: list[int], with_slots: bool) -> None:
        rows, slots = self.rows(len(keys)), np.abs(self.rows(len(keys)))
        self.tables[which].assign(keys, rows, [slots] if with_slots else [])
        before = dict(self.models[which])
        for position, key in enumerate(keys):
            accumulator = before.get(key, (None, np.full(DIM, START)))[1]
            self.models[which][key] = (rows[position], slots[position] if with_slots else accumulator)

    @rule(which=st.integers(0, 1), keys=KEY_LISTS)
    def erase(self, which: int, keys: list[int]) -> None:
        there = {key for key in keys if key in self.models[which]}
        assert self.tables[which].erase(keys) == len(there)
        for key in there:
            del self.models[which][key]

    @rule(which=st.integers(0, 1), start=st.integers(-5, 5), n=st.integers(1000, 6000))
    def grow(self, which: int, start: int, n: int) -> None:
        keys = (start + 7919 * np.arange(n)).tolist()
        rows = self.rows(n)
        self.tables[which].assign(keys, rows)
        for key, row in zip(keys, rows, strict=True):
            self.models[which][key] = (row, self.models[which].get(key, (row, np.full(DIM, START)))[1])

    @rule(which=st.integers(0, 1))
    def save_and_restore(self, which: int) -> None:
        self.tables[which].save(f"{self.folder}/saved")
        self.tables[which].assign([1, 99], self.rows(2))
        self.tables[which].erase(list(self.models[which])[:3])
        self.tables[which].restore(f"{self.folder}/saved")

    @rule()
    def reopen(self) -> None:
        configs = [open_table.config for open_table in self.tables]
        paths = [open_table.path for open_table in self.tables]
        for open_table in self.tables:
            open_table.close()
        self.tables = [Table.open(path, "r+", config) for path, config in zip(paths, configs, strict=True)]

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "models"):
            return
        for which, (actual_table, model) in enumerate(zip(self.tables, self.models, strict=True)):
            assert actual_table.step == self.steps
            assert len(actual_table) == len(model)
            assert sorted(actual_table.keys().tolist()) == sorted(model)
            keys = list(model)
            is_present, rows, (slots,) = actual_table.entries(keys)
            assert is_present.all()
            if keys:
                np.testing.assert_allclose(rows, np.stack([model[key][0] for key in keys]), rtol=2e-5, atol=1e-6)
                np.testing.assert_allclose(slots, np.stack([model[key][1] for key in keys]), rtol=1e-5)
            probes = [key for key in (0, -1, 5, 2**63 - 1) if key not in model]
            for key, row in zip(probes, actual_table.lookup(probes), strict=True):
                np.testing.assert_array_equal(row, self.initial(which, key))
            assert actual_table.verify().ok


def _examples(n: int) -> settings:
    every = list(HealthCheck)
    return settings(
        max_examples=n, stateful_step_count=20, deadline=None, derandomize=True, suppress_health_check=every
    )


class TestTables(Tables.TestCase):
    """Runs every day."""

    settings = _examples(5)


@pytest.mark.nightly
class TestTablesLonger(Tables.TestCase):
    """Runs more examples."""

    settings = _examples(15)
