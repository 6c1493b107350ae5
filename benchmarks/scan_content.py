"""Computes the content of the table of the suite `scans` after training step n (1, 2, ...), from n alone.

Every step adds 1 to the gradients of all elements of the rows that it touches, and the rule is Adagrad with rate 1. A
row therefore follows from its initial value and from the number of steps that touched it. The table has two kinds of
rows:

  0 .. rows - 1    exist before training begins, by one update with the gradient key % 16. Step n touches the rows of
                   batch (n - 1) % batches. Its keys are Zipf-distributed: some rows are in every step, most in few
  new keys         each step inserts a few, spread over int64, and no other step touches them

The states of step n and step n + 1 differ in every row of a batch, and in the set of keys.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from benchmarks.harness import zipf_ids
from benchmarks.job_sizes import EXPONENT
from tf_sparse_ps.optimizers import Adagrad

RANKS = 2
RULE = Adagrad(learning_rate=1.0, initial_accumulator_value=1.0, epsilon=1e-7)
_NEW = 8  # keys per step
_FIRST_GRADIENTS = 16
_SPREAD = 0x9E3779B97F4A7C15
_INVERSE = pow(_SPREAD, -1, 2**64)

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the table, and of the work on it.

    Attributes:
        rows: The number of rows before training begins.
        draws: The number of ids that a rank draws for a step. Repeated ids are left out.
        batches: The number of different batches, which take turns.
        lookup: The number of keys of a lookup of the external process.
        lookups: The number of lookups after each of the other operations was done once.
    """

    rows: int
    draws: int
    batches: int
    lookup: int
    lookups: int


FULL = Sizes(rows=1_000_000, draws=95_000, batches=64, lookup=200_000, lookups=24)
QUICK = Sizes(rows=20_000, draws=4_000, batches=8, lookup=20_000, lookups=4)


def first_gradient(keys: Keys) -> npt.NDArray[np.int64]:
    """Returns the gradients of the update that made the rows 0 .. rows - 1. New keys had no such update: gradient 0."""
    return keys % _FIRST_GRADIENTS


def new_keys(step: int) -> Keys:
    """Returns the keys that a step inserts."""
    numbers = np.arange(_NEW, dtype=np.uint64) + np.uint64((step - 1) * _NEW + 1)
    return (numbers * np.uint64(_SPREAD)).view(np.int64)


class Batches:
    """The keys of every step."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._of_rank = [
            [np.unique(ids) for ids in zipf_ids(sizes.rows, sizes.draws, sizes.batches, exponent=EXPONENT, seed=1 + r)]
            for r in range(RANKS)
        ]

    def of_rank(self, step: int, rank: int) -> Keys:
        """Returns the keys of one rank's step, each once. Two ranks may have the same key."""
        return np.concatenate([self._of_rank[rank][(step - 1) % self._sizes.batches], new_keys(step)[rank::RANKS]])

    def old_of_all(self, batch: int) -> Keys:
        """Returns the keys of 0 .. rows - 1 in a batch of all ranks, each once."""
        return np.unique(np.concatenate([keys[batch] for keys in self._of_rank]))


class Content:
    """The expected content. Its checks describe what differs."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        batches = Batches(sizes)
        # [key, k]: the number of the first k batches that contain the key.
        self._among_first = np.zeros((sizes.rows, sizes.batches + 1), np.uint16)
        for batch in range(sizes.batches):
            self._among_first[batches.old_of_all(batch), batch + 1] = 1
        np.cumsum(self._among_first, axis=1, out=self._among_first)
        # [first gradient, touches]: an element of a row, and of its accumulator, in the store's order of operations.
        squares = np.arange(_FIRST_GRADIENTS, dtype=np.float32)
        self._sums = [np.float32(RULE.initial_accumulator_value) + squares * squares]
        self._values = [-squares / np.sqrt(self._sums[0] + np.float32(RULE.epsilon))]

    @property
    def rows_per_step(self) -> float:
        """The mean number of rows that a step touches."""
        return float(self._among_first[:, -1].sum()) / self._sizes.batches + _NEW

    def keys(self, n: int) -> Keys:
        """Returns all keys after n steps, sorted."""
        numbers = np.arange(1, n * _NEW + 1, dtype=np.uint64)
        return np.sort(np.concatenate([np.arange(self._sizes.rows), (numbers * np.uint64(_SPREAD)).view(np.int64)]))

    def rows(self, keys: Keys, n: int) -> tuple[Floats, Floats]:
        """Returns the value of all elements of each key's row after n steps, and of its accumulator."""
        touches = self._touches(keys, n)
        self._extend(int(touches.max(initial=0)))
        first = np.where(self._is_old(keys), first_gradient(keys), 0)
        return np.stack(self._values)[touches, first], np.stack(self._sums)[touches, first]

    def wrong_count(self, rows: int, n: int) -> list[str]:
        """Returns what is wrong with a number of rows after n steps; empty: nothing."""
        expected = self._sizes.rows + n * _NEW
        return [] if rows == expected else [f"{rows} rows after step {n}, expected {expected}"]

    def wrong_keys(self, keys: Keys, before: int, after: int) -> list[str]:
        """Returns what is wrong with keys that should be those of a step from `before` to `after`; empty: nothing."""
        n = (len(keys) - self._sizes.rows) // _NEW
        if not before <= n <= after:
            return [f"{len(keys)} keys, as after step {n}; they were read from step {before} to step {after}"]
        if not np.array_equal(np.sort(keys), self.keys(n)):
            return [f"{len(keys)} keys, but not those of step {n}"]
        return []

    def wrong_rows(self, keys: Keys, rows: Floats, n: int, accumulators: Floats | None = None) -> list[str]:
        """Returns what is wrong with rows, and accumulators, that were read as of step n; empty: nothing."""
        wrong = []
        expected = self.rows(keys, n)
        for kind, values, right in zip(("rows", "accumulators"), (rows, accumulators), expected, strict=True):
            if values is None:
                continue
            differ = np.flatnonzero((values != right[:, None]).any(axis=1))
            if len(differ):
                key, elements = int(keys[differ[0]]), values[differ[0]]
                wrong.append(
                    f"{len(differ)} of {len(keys)} {kind} are not those of step {n}. The first one, key {key}: "
                    f"{elements.min()} to {elements.max()}, expected {right[differ[0]]}; "
                    f"that is as after {self._nearest(key, float(elements[0]), kind)} touches, expected "
                    f"{int(self._touches(keys[differ[:1]], n)[0])}"
                )
        return wrong

    def _nearest(self, key: int, value: float, kind: str) -> int:
        known = np.stack(self._values if kind == "rows" else self._sums)
        first = int(first_gradient(np.int64(key))) if 0 <= key < self._sizes.rows else 0  # type: ignore[arg-type]
        return int(np.abs(known[:, first] - value).argmin())

    def _is_old(self, keys: Keys) -> npt.NDArray[np.bool_]:
        return (keys >= 0) & (keys < self._sizes.rows)

    def _touches(self, keys: Keys, n: int) -> npt.NDArray[np.int64]:
        times, rest = divmod(n, self._sizes.batches)
        old = np.where(self._is_old(keys), keys, 0)
        touches = times * self._among_first[old, -1].astype(np.int64) + self._among_first[old, rest]
        numbers = keys.view(np.uint64) * np.uint64(_INVERSE)  # 1, 2, ... of new keys
        entered = (numbers != 0) & (numbers <= np.uint64(n * _NEW))
        return np.where(self._is_old(keys), touches, entered.astype(np.int64))

    def _extend(self, touches: int) -> None:
        rate, epsilon = np.float32(RULE.learning_rate), np.float32(RULE.epsilon)
        while len(self._sums) <= touches:
            self._sums.append(self._sums[-1] + np.float32(1))
            self._values.append(self._values[-1] - rate / np.sqrt(self._sums[-1] + epsilon))
