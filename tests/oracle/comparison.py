"""Compares what ranks have with a state of the model, and ranks with each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.oracle import data
from tests.oracle.model import Model
from tests.oracle.options import Options
from tests.oracle.state import State

Arrays = dict[str, np.ndarray]
DENSE = 2e-4  # dense gradients are added up in an order of TensorFlow's; of the largest weight, which is about 1


def tolerance(options: Options, t: int) -> float:
    """How far rows and slots of a table may be from the model's; 0: the same bits."""
    # A device computes by TensorFlow's operations (docs/device-cache.md). SGD has the same bits there, too.
    return 5e-4 if options.tables[t].cache and options.rule != "sgd" else 0.0


def difference(expected: np.ndarray, found: np.ndarray, within: float = 0.0) -> str | None:
    """How two arrays differ, in words; None: they do not."""
    if expected.shape != found.shape:
        return f"has shape {found.shape}, not {expected.shape}"
    if within:
        wrong = ~(np.abs(expected.astype(np.float64) - found) <= within * (1 + np.abs(expected)))
    else:
        wrong = expected != found
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"differs in {int(wrong.sum())} of {wrong.size} places; at {at} it is {found[at]!r}, not {expected[at]!r}"


class Comparison:
    """Compares snapshots of all ranks.

    Attributes:
      made: How many arrays were compared.
    """

    def __init__(self, model: Model) -> None:
        """`model` knows the job's options."""
        self._model, self._options = model, model.options
        self._pools = [data.pool(self._options, t) for t in range(len(self._options.tables))]
        self.made = 0

    def problems(self, state: State, ranks: dict[int, Arrays], *, tables_only: bool = False) -> list[str]:
        """What is wrong, in words.

        Args:
          state: That all should have.
          ranks: Snapshots, of ranks that have written one.
          tables_only: Dense weights and the optimizer are another run's.
        """
        found: list[str] = []
        for rank, arrays in ranks.items():
            for t in range(len(self._options.tables)):
                found += self.of_table(state, t, rank, arrays)
            found += self._compare(f"rank {rank}: the tables' step", np.asarray(state.step), arrays["step"])
            if tables_only:
                continue
            found += self._compare(f"rank {rank}: iterations", np.asarray(state.iterations), arrays["iterations"])
            found += self._compare(f"rank {rank}: learning rate", np.float32(state.rate), arrays["rate"])
            found += self._compare(f"rank {rank}: dense weights", state.dense, arrays["dense"], DENSE)
        return found + self._between(ranks)

    def _compare(self, what: str, expected: np.ndarray, found: np.ndarray, within: float = 0.0) -> list[str]:
        self.made += 1
        text = difference(np.asarray(expected), np.asarray(found), within)
        return [] if text is None else [f"{what} {text}"]

    def of_table(self, state: State, t: int, rank: int, arrays: Arrays) -> list[str]:
        """What is wrong with one table of a rank's snapshot, in words."""
        table, within = state.tables[t], tolerance(self._options, t)
        present = table.present & self.owned(t, rank)
        keys, found = self._pools[t][present], []
        name = f"rank {rank}: table {t}"
        if text := self.keys_differ(keys, arrays[f"table{t}.keys"]):
            self.made += 1
            return [f"{name} {text}"]
        found += self._compare(f"{name}: rows", table.rows[present], arrays[f"table{t}.rows"], within)
        slots = [one for one in arrays if one.startswith(f"table{t}.slot")]
        bound = state.step > 0 or bool(slots)
        if bound and len(slots) != len(table.slots):
            found.append(f"{name} has {len(slots)} slots, not {len(table.slots)}")
        for i, slot in enumerate(table.slots[: len(slots)]):
            found += self._compare(f"{name}: slot {i}", slot[present], arrays[f"table{t}.slot{i}"], within)
        if f"table{t}.looked_up" in arrays:
            everything = self._model.seen(state, t, np.arange(len(self._pools[t])))
            found += self._compare(f"{name}: look-ups", everything, arrays[f"table{t}.looked_up"], within)
        return found

    @staticmethod
    def keys_differ(expected: np.ndarray, found: np.ndarray) -> str | None:
        """Which keys are missing, or too many."""
        missing, more = np.setdiff1d(expected, found), np.setdiff1d(found, expected)
        if not len(missing) and not len(more) and len(expected) == len(found):
            return None
        return f"lacks {len(missing)} keys {missing[:4]}, and has {len(more)} that it should not have {more[:4]}"

    def owned(self, t: int, rank: int) -> np.ndarray:
        """Which keys of a pool the node of a rank has, bool[keys]."""
        if not self._options.sharded(t):
            return np.ones(len(self._pools[t]), bool)
        from tf_sparse_ps import _table  # which node owns a key is no number that training makes

        owners = _table.owners(self._pools[t], len(self._options.nodes))
        owned: np.ndarray = owners == self._options.node_of(rank)
        return owned

    def _between(self, ranks: dict[int, Arrays]) -> list[str]:
        """Ranks have the same bits, whatever the model says: of a node all, of several all but shards."""
        found: list[str] = []
        numbers = sorted(ranks)
        for one, other in itertools.pairwise(numbers):
            for name in sorted(ranks[one].keys() & ranks[other].keys()):
                if self._may_differ(name, one, other):
                    continue
                what = f"ranks {one} and {other}: {name}"
                found += self._compare(what, ranks[one][name], ranks[other][name])
        return found

    def _may_differ(self, name: str, one: int, other: int) -> bool:
        options = self._options
        if name in ("predictions", "loss", "node"):
            return True  # each rank evaluates its own batch
        if name == "variables":
            return options.schedule == "server"  # the optimizer's slots are current on the owner alone
        if (
            name.startswith("table")
            and not name.endswith("looked_up")
            and options.node_of(one) != options.node_of(other)
        ):
            return options.sharded(int(name[5 : name.index(".")])) or name.endswith("on_disk")
        return False

    def of_predictions(self, state: State, rank: int, arrays: Arrays, batch: Any) -> list[str]:
        """What `predict` and `evaluate` gave."""
        expected = self._model.predictions(state, batch)
        scale = float(np.abs(expected).max()) or 1.0
        found = self._compare(f"rank {rank}: predictions", expected / scale, arrays["predictions"] / scale, 1e-4)
        loss = np.asarray(expected.mean(dtype=np.float64) / scale)
        return found + self._compare(f"rank {rank}: loss", loss, arrays["loss"] / scale, 1e-4)
