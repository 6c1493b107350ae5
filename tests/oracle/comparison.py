"""Compares snapshots of ranks with a state of the model, and with each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.oracle import data
from tests.oracle.model import Model
from tests.oracle.options import Options
from tests.oracle.state import State

Arrays = dict[str, np.ndarray]
DENSE = 2e-4  # relative to the largest weight, about 1: TensorFlow adds up dense gradients in its own order


def tolerance(options: Options, t: int) -> float:
    """Returns how far rows and slots of a table may be from the model's; 0: they have the same bits."""
    # A device computes by TensorFlow's operations (docs/device-cache.md). Only SGD has the same bits there.
    return 5e-4 if options.tables[t].cache and options.rule != "sgd" else 0.0


def difference(expected: np.ndarray, actual: np.ndarray, within: float = 0.0) -> str | None:
    """Describes how two arrays differ; None: they do not."""
    if expected.shape != actual.shape:
        return f"has shape {actual.shape}, not {expected.shape}"
    if within:
        wrong = ~(np.abs(expected.astype(np.float64) - actual) <= within * (1 + np.abs(expected)))
    else:
        wrong = expected != actual
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"differs in {int(wrong.sum())} of {wrong.size} places; at {at} it is {actual[at]!r}, not {expected[at]!r}"


class Comparison:
    """Compares snapshots of all ranks.

    Attributes:
      made: The number of compared arrays.
    """

    def __init__(self, model: Model) -> None:
        """`model` has the job's options."""
        self._model, self._options = model, model.options
        self._pools = [data.pool(self._options, t) for t in range(len(self._options.tables))]
        self.made = 0
        self._counted_before: dict[tuple[int, int], np.ndarray] = {}

    def count_from(self, state: State, ranks: dict[int, Arrays]) -> None:
        """Learns what the counters of tables had counted before a run began in a state. A restore does not reset them.

        Args:
          state: The state in which the run began.
          ranks: The snapshots of its beginning, by rank.
        """
        self._counted_before = {
            (rank, t): arrays[f"table{t}.counters"] - self._counters(state, t, rank)
            for rank, arrays in ranks.items()
            for t, table in enumerate(state.tables)
            if table.policies
        }

    def count_from_zero(self, state: State) -> None:
        """Learns that the counters of tables have counted only what a job without restores has done.

        Args:
          state: The state of a new job.
        """
        counters = {f"table{t}.counters": np.zeros(4, np.int64) for t in range(len(state.tables))}
        self.count_from(state, dict.fromkeys(range(self._options.ranks), counters))

    def _counters(self, state: State, t: int, rank: int) -> np.ndarray:
        policies = state.tables[t].policies
        return np.array(policies[self._options.node_of(rank) if len(policies) > 1 else 0].counters)

    def _of_policies(self, state: State, t: int, rank: int, arrays: Arrays, keys: np.ndarray) -> list[str]:
        """Describes how the uses of rows differ, and what eviction and admission have done."""
        policies = state.tables[t].policies
        if not policies:
            return []
        name, differences = f"rank {rank}: table {t}", []
        part = policies[self._options.node_of(rank) if len(policies) > 1 else 0]
        if part.evictions is not None and f"table{t}.use" in arrays:
            differences += self._compare(f"{name}: uses", part.uses_of(keys), arrays[f"table{t}.use"])
        if (before := self._counted_before.get((rank, t))) is not None and f"table{t}.counters" in arrays:
            expected = before + self._counters(state, t, rank)
            differences += self._compare(f"{name}: counters of policies", expected, arrays[f"table{t}.counters"])
        return differences

    def problems(self, state: State, ranks: dict[int, Arrays], *, tables_only: bool = False) -> list[str]:
        """Describes all differences.

        Args:
          state: The state that all ranks should have.
          ranks: The snapshots, by rank.
          tables_only: Whether to ignore dense weights and the optimizer, which belong to another run.
        """
        differences: list[str] = []
        for rank, arrays in ranks.items():
            for t in range(len(self._options.tables)):
                differences += self.of_table(state, t, rank, arrays)
            differences += self._compare(f"rank {rank}: the tables' step", np.asarray(state.step), arrays["step"])
            if tables_only:
                continue
            differences += self._compare(f"rank {rank}: iterations", np.asarray(state.iterations), arrays["iterations"])
            differences += self._compare(f"rank {rank}: learning rate", np.float32(state.rate), arrays["rate"])
            differences += self._compare(f"rank {rank}: dense weights", state.dense, arrays["dense"], DENSE)
        return differences + self._between(ranks)

    def _compare(self, label: str, expected: np.ndarray, actual: np.ndarray, within: float = 0.0) -> list[str]:
        self.made += 1
        text = difference(np.asarray(expected), np.asarray(actual), within)
        return [] if text is None else [f"{label} {text}"]

    def of_table(self, state: State, t: int, rank: int, arrays: Arrays) -> list[str]:
        """Describes how one table of a rank's snapshot differs."""
        table, within = state.tables[t], tolerance(self._options, t)
        present = table.present & self.owned(t, rank)
        keys, differences = self._pools[t][present], []
        name = f"rank {rank}: table {t}"
        if text := self.keys_differ(keys, arrays[f"table{t}.keys"]):
            self.made += 1
            return [f"{name} {text}"]
        differences += self._compare(f"{name}: rows", table.rows[present], arrays[f"table{t}.rows"], within)
        slots = [name_in_snapshot for name_in_snapshot in arrays if name_in_snapshot.startswith(f"table{t}.slot")]
        bound = state.step > 0 or bool(slots)
        if bound and len(slots) != len(table.slots):
            differences.append(f"{name} has {len(slots)} slots, not {len(table.slots)}")
        for i, slot in enumerate(table.slots[: len(slots)]):
            differences += self._compare(f"{name}: slot {i}", slot[present], arrays[f"table{t}.slot{i}"], within)
        differences += self._of_policies(state, t, rank, arrays, keys)
        if f"table{t}.looked_up" in arrays:
            everything = self._model.seen(state, t, np.arange(len(self._pools[t])))
            differences += self._compare(f"{name}: looked-up rows", everything, arrays[f"table{t}.looked_up"], within)
        return differences

    @staticmethod
    def keys_differ(expected: np.ndarray, actual: np.ndarray) -> str | None:
        """Describes missing and additional keys; None: there are none."""
        missing, extra = np.setdiff1d(expected, actual), np.setdiff1d(actual, expected)
        if not len(missing) and not len(extra) and len(expected) == len(actual):
            return None
        return f"lacks {len(missing)} keys {missing[:4]}, and has {len(extra)} that it should not have {extra[:4]}"

    def owned(self, t: int, rank: int) -> np.ndarray:
        """Returns which keys of a pool the node of a rank has, bool[keys]."""
        if not self._options.sharded(t):
            return np.ones(len(self._pools[t]), bool)
        from tf_sparse_ps import _table  # training does not decide which node owns a key

        owners = _table.owners(self._pools[t], len(self._options.nodes))
        owned: np.ndarray = owners == self._options.node_of(rank)
        return owned

    def _between(self, ranks: dict[int, Arrays]) -> list[str]:
        """Describes differences between ranks. Ranks of a node have the same bits, and nodes do except for shards."""
        differences: list[str] = []
        numbers = sorted(ranks)
        for rank_a, rank_b in itertools.pairwise(numbers):
            for name in sorted(ranks[rank_a].keys() & ranks[rank_b].keys()):
                if self._may_differ(name, rank_a, rank_b):
                    continue
                label = f"ranks {rank_a} and {rank_b}: {name}"
                differences += self._compare(label, ranks[rank_a][name], ranks[rank_b][name])
        return differences

    def _may_differ(self, name: str, rank_a: int, rank_b: int) -> bool:
        options = self._options
        if name in ("predictions", "loss", "node"):
            return True  # each rank evaluates its own batch
        if name == "variables":
            return options.schedule == "server"  # only the owner's optimizer slots are current
        if (
            name.startswith("table")
            and not name.endswith("looked_up")
            and options.node_of(rank_a) != options.node_of(rank_b)
        ):
            return options.sharded(int(name[5 : name.index(".")])) or name.endswith("on_disk")
        return False

    def of_predictions(self, state: State, rank: int, arrays: Arrays, batch: Any) -> list[str]:
        """Describes how the results of `predict` and `evaluate` differ."""
        expected = self._model.predictions(state, batch)
        scale = float(np.abs(expected).max()) or 1.0
        differences = self._compare(f"rank {rank}: predictions", expected / scale, arrays["predictions"] / scale, 1e-4)
        loss = np.asarray(expected.mean(dtype=np.float64) / scale)
        return differences + self._compare(f"rank {rank}: loss", loss, arrays["loss"] / scale, 1e-4)
