"""What the group of the crash tests must contain after step s: a function of s alone.

Three tables, so that a step spans several:

  hot    SGD, rate 1, gradient 1: 256 rows, all in every step, so each element is -s
  mixed  Adagrad, gradient 1: 64 rows in every step, 400 new keys per step (the index grows), and in every fifth step
         the 400 keys of the step before once more (the undo log's size varies)
  rare   SGD: 32 rows, in every third step; the table is untouched in the others
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import optimizers
from tf_sparse_ps import table as store
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table

HOT, MIXED, RARE, NEW = 256, 64, 32, 400
_ADAGRAD = optimizers.Adagrad(learning_rate=1.0, initial_accumulator_value=0.1, epsilon=1e-7)
_SGD = optimizers.SGD(learning_rate=1.0)
CONFIGS = (
    TableConfig("hot", 16, seed=1, optimizer=_SGD),
    TableConfig("mixed", 8, seed=1, optimizer=_ADAGRAD),
    TableConfig("rare", 4, seed=1, optimizer=_SGD),
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def new_keys(step: int) -> Ints:
    """The keys that enter `mixed` at `step`: spread over all of int64."""
    numbers = (np.arange(NEW, dtype=np.uint64) + np.uint64(step * NEW + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return numbers.view(np.int64)


def updates(step: int) -> dict[str, Ints]:
    """Keys of each table in `step` (1, 2, ...)."""
    mixed = [np.arange(MIXED, dtype=np.int64), new_keys(step)]
    if step % 5 == 0:
        mixed.append(new_keys(step - 1))
    parts = {"hot": np.arange(HOT, dtype=np.int64), "mixed": np.concatenate(mixed)}
    if step % 3 == 0:
        parts["rare"] = np.arange(RARE, dtype=np.int64)
    return parts


@dataclasses.dataclass
class Group:
    """The three tables, open."""

    tables: dict[str, Table]

    @classmethod
    def create(cls, path: Path) -> Group:
        group = cls({config.name: Table.create(path / config.name, config) for config in CONFIGS})
        for name, rows in (("hot", HOT), ("rare", RARE)):
            table = group.tables[name]
            table.assign(np.arange(rows), np.zeros((rows, table.config.dim), np.float32))
        return group

    @classmethod
    def open(cls, path: Path, mode: str) -> Group:
        return cls({config.name: Table.open(path / config.name, mode, config) for config in CONFIGS})  # type: ignore[arg-type]

    @property
    def step(self) -> int:
        return self.tables["hot"].step

    def advance(self) -> int:
        """Makes the next step."""
        parts = updates(self.step + 1)
        return store.step(
            {
                self.tables[name]: (keys, np.ones((len(keys), self.tables[name].config.dim), np.float32))
                for name, keys in parts.items()
            }
        )


class Expectation:
    """Expected rows. `untouched` is a group of the same configuration that nobody trains: it has the initial rows."""

    def __init__(self, untouched: Group) -> None:
        self._initial = untouched.tables["mixed"]
        # After n updates by Adagrad with gradient 1: the sum of rates, in the order of float32 operations per element.
        self._accumulators = [np.float32(0.1)]
        self._hot_cache: tuple[int, Floats] | None = None

    def _accumulator(self, n: int) -> np.float32:
        while len(self._accumulators) <= n:
            self._accumulators.append(np.float32(self._accumulators[-1] + np.float32(1)))
        return self._accumulators[n]

    def mixed(self, keys: Ints, n_updates: int) -> tuple[Floats, np.float32]:
        """Rows after `n_updates` and the accumulator, equal in every element."""
        rows = self._initial.lookup(keys)
        for n in range(1, n_updates + 1):
            rows = rows - np.float32(1) / np.sqrt(self._accumulator(n) + np.float32(1e-7))
        return rows, self._accumulator(n_updates)

    @staticmethod
    def updates_of(entered: int, step: int) -> int:
        """Updates that the keys of step `entered` have had by `step`."""
        if entered > step:
            return 0
        return 2 if (entered + 1) % 5 == 0 and entered + 1 <= step else 1

    def check_read(self, group: Group, steps_ahead: int = 2) -> tuple[int, list[str]]:
        """One consistent read of all three tables. Returns its step and what is wrong."""
        now = group.step
        entered = list(range(max(1, now - 3), now + 1 + steps_ahead))
        fresh = np.concatenate([new_keys(s)[:50] for s in entered])
        step, rows = store.read(
            {
                group.tables["hot"]: np.arange(HOT),
                group.tables["mixed"]: np.concatenate([np.arange(MIXED), fresh]),
                group.tables["rare"]: np.arange(RARE),
            }
        )
        wrong = []
        _expect(wrong, "hot", step, rows[group.tables["hot"]], np.float32(-step))
        _expect(wrong, "rare", step, rows[group.tables["rare"]], np.float32(-(step // 3)))
        mixed = rows[group.tables["mixed"]]
        _expect(wrong, "mixed", step, mixed[:MIXED], self._mixed_hot(step))
        for i, s in enumerate(entered):
            n = self.updates_of(s, step)
            what = "initial value" if n == 0 else f"row of {n} updates"
            part = mixed[MIXED + 50 * i : MIXED + 50 * (i + 1)]
            _expect(wrong, what, step, part, self.mixed(new_keys(s)[:50], n)[0])
        return step, wrong

    def check_all(self, group: Group, step: int) -> list[str]:
        """Every row, slot and key of a group that nobody is writing to."""
        wrong: list[str] = []
        table = group.tables["mixed"]
        hot = np.arange(MIXED, dtype=np.int64)
        keys = [hot if step else hot[:0]]
        expected = [(self._mixed_hot(step), self._accumulator(step))]
        for s in range(1, step + 1):
            keys.append(new_keys(s))
            expected.append(self.mixed(keys[-1], self.updates_of(s, step)))
        for part, (rows, accumulator) in zip(keys, expected, strict=True):
            found, values, slots = table.entries(part)
            if not found.all():
                wrong.append(f"step {step}: {int((~found).sum())} keys are missing")
                continue
            if len(part):
                _expect(wrong, "row", step, values, rows)
                _expect(wrong, "slot", step, slots[0], accumulator)
        count = sum(map(len, keys))
        if len(table) != count or not np.array_equal(np.sort(table.keys()), np.sort(np.concatenate(keys))):
            wrong.append(f"step {step}: {len(table)} keys, {count} expected")
        _, read_wrong = self.check_read(group)
        return wrong + read_wrong

    def _mixed_hot(self, step: int) -> Floats:
        # One more update per step; recomputing from the start every time would be quadratic.
        if self._hot_cache is None or self._hot_cache[0] > step:
            self._hot_cache = (0, self._initial.lookup(np.arange(MIXED)))
        at, rows = self._hot_cache
        for n in range(at + 1, step + 1):
            rows = rows - np.float32(1) / np.sqrt(self._accumulator(n) + np.float32(1e-7))
        self._hot_cache = (step, rows)
        return rows


def _expect(wrong: list[str], what: str, step: int, found: Floats, expected: Floats | np.float32) -> None:
    if not np.allclose(found, expected, rtol=1e-5, atol=1e-5):
        error = np.abs(found - expected)
        wrong.append(f"{what} at step {step}: off by up to {error.max():.3g} in {int((error > 1e-5).sum())} elements")
