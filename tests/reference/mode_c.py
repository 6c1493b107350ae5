"""A plain NumPy simulation of mode C in float32: local steps are immediate, global gradients arrive late.

It shares no code with the package: it follows docs/schedules.md. Global gradients arrive exactly S iterations after
their local gradients. Weights are one vector per rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import mode_a
import numpy as np

F = np.float32


@dataclasses.dataclass
class LocalStep:
    """A local step whose global gradient has not arrived.

    Attributes:
      gradient: float32[n], the local gradient.
      change: float32[n], the change of the weights by the local step.
      rate: The learning rate of the step.
    """

    gradient: np.ndarray
    change: np.ndarray
    rate: np.float32


class Rule:
    """An optimizer of one rank: "sgd", "momentum", "nesterov", "adagrad" or "adam", with Keras's defaults."""

    def __init__(self, kind: str, n: int, beta: float = 0.9) -> None:
        """Creates the optimizer for n weights."""
        self.kind, self.beta = kind, F(beta)
        first_slot = np.full(n, F(0.1)) if kind == "adagrad" else np.zeros(n, F)
        self.slots = {"sgd": [], "adam": [np.zeros(n, F), np.zeros(n, F)]}.get(kind, [first_slot])
        self.seen = 0

    def local(self, gradient: np.ndarray, rate: np.float32) -> np.ndarray:
        """Returns the change of the weights by a local step."""
        if self.kind == "sgd":
            return -rate * gradient
        if self.kind in ("momentum", "nesterov"):
            self.slots[0] = self.beta * self.slots[0] - rate * gradient
            return self.beta * self.slots[0] - rate * gradient if self.kind == "nesterov" else self.slots[0].copy()
        state_before = [slot.copy() for slot in self.slots], self.seen
        step = self.step(gradient, rate)
        self.slots, self.seen = state_before
        return step

    def step(self, gradient: np.ndarray, rate: np.float32) -> np.ndarray:
        """Returns the change of the weights by Adagrad's or Adam's own step."""
        self.seen += 1
        if self.kind == "adagrad":
            self.slots[0] = self.slots[0] + gradient * gradient
            return -rate * gradient / np.sqrt(self.slots[0] + F(1e-7))
        m, v = self.slots
        m, v = m + (gradient - m) * F(0.1), v + (gradient * gradient - v) * F(0.001)
        self.slots = [m, v]
        alpha = F(float(rate) * np.sqrt(1 - 0.999**self.seen) / (1 - 0.9**self.seen))
        return -m * alpha / (np.sqrt(v) + F(1e-7))

    def correct(self, local_step: LocalStep, mean: np.ndarray, rate: np.float32, late: int) -> np.ndarray:
        """Returns the change of the weights when the global gradient of a local step arrives, `late` steps after it."""
        if self.kind in ("adagrad", "adam"):
            return self.step(mean, rate) - local_step.change
        missing = local_step.rate * local_step.gradient - rate * mean
        if self.kind == "sgd":
            return missing
        self.slots[0] = self.slots[0] + F(self.beta**late) * missing
        series = sum((F(self.beta**k) for k in range(late + 1)), F(0))
        return missing * (1 + self.beta * series if self.kind == "nesterov" else series)


class Simulation:
    """N ranks under DelayedGlobal(staleness, cycle, apply, reproducible=True)."""

    def __init__(
        self,
        weights: np.ndarray,
        ranks: int,
        kind: str,
        *,
        staleness: int,
        cycle: int,
        apply: str = "all",
        tables: Sequence[dict[int, np.ndarray]] = (),
        senders: Sequence[Sequence[int]] = (),
    ) -> None:
        """Starts all ranks from equal weights, float32[n]. Tables: as in `mode_a.Simulation`, with "frequency"."""
        self.weights = [weights.astype(F) for _ in range(ranks)]
        self.rules = [Rule(kind, len(weights)) for _ in range(ranks)]
        self.staleness, self.cycle, self.apply = staleness, cycle, apply
        self.local_steps: list[list[LocalStep]] = [[] for _ in range(ranks)]  # of each rank, oldest first
        self.means: list[tuple[np.ndarray, np.float32]] = []  # the global gradients of these steps
        self.in_cycle, self.with_samples, self.discarded, self.most_late = 0, [0] * ranks, 0, 0
        self.tables = [{key: row.astype(F) for key, row in table.items()} for table in tables]
        self.table_rule, self.senders = mode_a.Rule("sgd"), senders
        self.sparse: list[tuple[list[dict[int, np.ndarray]], float]] = []  # reduced, per table; their rates

    def train(
        self,
        gradient: Callable[[int, np.ndarray], np.ndarray],
        rate: float,
        weights: Sequence[float] | None = None,
        sparse: Sequence[Sequence[mode_a.SparseBatch]] = (),
    ) -> None:
        """Makes one iteration of every rank.

        Args:
          gradient: Returns the gradient of a rank at its weights.
          rate: The learning rate.
          weights: Each rank's weight in the means; None: 1.
          sparse: `sparse[rank][table]`.
        """
        ranks = range(len(self.weights))
        weights = [1.0] * len(ranks) if weights is None else weights
        local_gradients = [gradient(r, self.weights[r]).astype(F) * F(weights[r] > 0) for r in ranks]
        for r in ranks:
            change = self.rules[r].local(local_gradients[r], F(rate))
            self.weights[r] = self.weights[r] + change
            self.local_steps[r].append(LocalStep(local_gradients[r], change, F(rate)))
            self.with_samples[r] += weights[r] > 0
        total = sum(weights)
        self.means.append((mode_a.reduce_dense(local_gradients, weights), F(rate)))
        assert total > 0
        if self.tables:
            parts = [
                [mode_a.local_sums(batch_of_table) if w > 0 else {} for batch_of_table in batches]
                for batches, w in zip(sparse, weights, strict=True)
            ]
            reduced = [
                mode_a.reduce_sparse([part[t] for part in parts], "frequency", self.senders, "float32")
                for t in range(len(self.tables))
            ]
            self.sparse.append((reduced, rate))
        self.in_cycle += 1
        if self.in_cycle == self.cycle:
            self.drain()
        else:
            self._take(len(self.means) - self.staleness)

    def drain(self) -> None:
        """Applies the outstanding global gradients, and averages."""
        self._take(len(self.means))
        done = [F(n / self.in_cycle) for n in self.with_samples]
        self.weights = [self._mean(self.weights, done)] * len(self.weights)
        for k in range(len(self.rules[0].slots)):
            mean = self._mean([rule.slots[k] for rule in self.rules], done)
            for rule in self.rules:
                rule.slots[k] = mean
        self.in_cycle, self.with_samples = 0, [0] * len(self.weights)

    @staticmethod
    def _mean(arrays: Sequence[np.ndarray], weights: Sequence[np.float32]) -> np.ndarray:
        total = sum((array * weight for array, weight in zip(arrays, weights, strict=True)), np.zeros_like(arrays[0]))
        return (total / sum(weights, F(0))).astype(F)

    def _take(self, n: int) -> None:
        """Applies the global gradients of the oldest n local steps."""
        if n <= 0:
            return
        outstanding = len(self.means)
        for k in range(n):
            if self.apply == "newest" and k < n - 1:
                self.discarded += 1
                continue
            late = outstanding - 1 - k
            self.most_late = max(self.most_late, late)
            mean, rate = self.means[k]
            for r, rule in enumerate(self.rules):
                self.weights[r] = self.weights[r] + rule.correct(self.local_steps[r][k], mean, rate, late)
        for reduced, rate in self.sparse[:n]:
            for table, gradients in zip(self.tables, reduced, strict=True):
                for key, row in gradients.items():
                    table[key] = self.table_rule.update(key, table[key], row, rate, 0)
        self.means, self.sparse = self.means[n:], self.sparse[n:]
        self.local_steps = [steps[n:] for steps in self.local_steps]
