"""A plain NumPy simulation of mode A on N nodes x R ranks, in float32, with the library's order of operations.

It shares no code with the package: it follows the documentation. Tables are dicts from key to row. Every rank
contributes dense gradients and, for each table, the gradients of the ids of its batch, in the batch's order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

F = np.float32


@dataclasses.dataclass
class SparseBatch:
    """One rank's gradients for one table in one step.

    Attributes:
      ids: int64[n], which may repeat.
      grads: float32[n, dim], the gradient of the row of each id.
    """

    ids: np.ndarray
    grads: np.ndarray


def local_sums(batch: SparseBatch) -> dict[int, np.ndarray]:
    """Returns one gradient per key of one rank, added up in the batch's order."""
    sums: dict[int, np.ndarray] = {}
    for key, grad in zip(batch.ids.tolist(), batch.grads, strict=True):
        sums[key] = sums[key] + grad if key in sums else grad.astype(F)
    return sums


def add_up(parts: Sequence[dict[int, np.ndarray]]) -> dict[int, np.ndarray]:
    """Returns one gradient per key, added up in the order of the parts."""
    sums: dict[int, np.ndarray] = {}
    for part in parts:
        for key, grad in part.items():
            sums[key] = sums[key] + grad if key in sums else grad
    return sums


def rounded(values: np.ndarray, wire: str) -> np.ndarray:
    """Returns float32 values after a wire of type "float32", "bfloat16" or "float16" has rounded them."""
    if wire == "float16":
        return values.astype(np.float16).astype(F)
    if wire == "bfloat16":  # the upper half of a float32, rounded to nearest even
        bits = values.astype(F).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(F)
    return values


def reduce_sparse(
    ranks: Sequence[dict[int, np.ndarray]], reduction: str, senders: Sequence[Sequence[int]], wire: str
) -> dict[int, np.ndarray]:
    """Returns one gradient per key of the job.

    Args:
      ranks: Each rank's gradients.
      reduction: "frequency", "average" or "sum".
      senders: The groups of ranks that send one sum each, in order: the ranks of a node, or each rank alone.
      wire: The type that a sender's gradients are rounded to.
    """
    sent = [{key: rounded(row, wire) for key, row in add_up([ranks[r] for r in group]).items()} for group in senders]
    sums = add_up(sent)
    counts: dict[int, int] = {}
    for gradients in ranks:
        for key in gradients:
            counts[key] = counts.get(key, 0) + 1
    divisor: dict[str, Callable[[int], float]] = {
        "frequency": lambda key: counts[key],
        "average": lambda key: len(ranks),
        "sum": lambda key: 1,
    }
    return {key: (total / F(divisor[reduction](key))).astype(F) for key, total in sums.items()}


def reduce_dense(ranks: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Returns the weighted mean over ranks, added up in rank order. Ranks of weight 0 do not count, even with NaN."""
    total = np.zeros_like(ranks[0], F)
    for gradient, weight in zip(ranks, weights, strict=True):
        if weight > 0:
            total = total + gradient.astype(F) * F(weight)
    return (total / F(sum(weights))).astype(F) if sum(weights) > 0 else total


class Rule:
    """An update rule with its slots, for one array or for a dict of rows."""

    def __init__(self, kind: str, **options: float) -> None:
        """`kind`: "sgd", "adagrad" or "adam". `options`: as in Keras."""
        self.kind, self.options = kind, options
        self.slots: dict[object, list[np.ndarray]] = {}

    def update(self, name: object, weight: np.ndarray, grad: np.ndarray, rate: float, step: int) -> np.ndarray:
        """Returns the new value of `weight`. `step` counts from 1."""
        rate32 = F(rate)
        if self.kind == "sgd":
            return weight - rate32 * grad
        if self.kind == "adagrad":
            start = np.full_like(weight, F(self.options.get("initial_accumulator_value", 0.1)))
            (total,) = self.slots.get(name, [start])
            total = total + grad * grad
            self.slots[name] = [total]
            return weight - rate32 * grad / np.sqrt(total + F(self.options.get("epsilon", 1e-7)))
        if self.kind == "adam":
            beta_1, beta_2 = F(self.options.get("beta_1", 0.9)), F(self.options.get("beta_2", 0.999))
            m, v = self.slots.get(name, [np.zeros_like(weight), np.zeros_like(weight)])
            # The correction is computed in double precision: 1 - beta^t cancels badly in float.
            alpha = F(rate * np.sqrt(1 - float(beta_2) ** step) / (1 - float(beta_1) ** step))
            m = m + (grad - m) * F(1 - float(beta_1))
            v = v + (grad * grad - v) * F(1 - float(beta_2))
            self.slots[name] = [m, v]
            return weight - m * alpha / (np.sqrt(v) + F(self.options.get("epsilon", 1e-7)))
        raise ValueError(self.kind)


class Simulation:
    """The state of a job: replicated dense weights, and tables of which every node has an equal copy."""

    def __init__(
        self,
        dense: Sequence[np.ndarray],
        tables: Sequence[dict[int, np.ndarray]],
        kind: str,
        reduction: str,
        rate: float,
        senders: Sequence[Sequence[int]],
        wire: str = "float32",
        row_types: Sequence[str] | None = None,
        pull_wires: Sequence[str] | None = None,
    ) -> None:
        """Starts from dense weights and from tables that contain all keys of the test.

        Args:
          dense: The initial dense weights.
          tables: The initial rows by key.
          kind: The update rule.
          reduction: See `reduce_sparse`.
          rate: The learning rate.
          senders: See `reduce_sparse`.
          wire: See `reduce_sparse`.
          row_types: The type that each table's updated rows are rounded to (to nearest). None: no rounding.
          pull_wires: The type that each table's looked-up rows are rounded to. None: no rounding.
        """
        self.row_types = row_types or ["float32"] * len(tables)
        self.pull_wires = pull_wires or ["float32"] * len(tables)
        self.senders, self.wire = senders, wire
        self.dense = [weight.astype(F) for weight in dense]
        self.tables = [{key: row.astype(F) for key, row in table.items()} for table in tables]
        self.reduction, self.rate, self.step = reduction, rate, 0
        self.dense_rule, self.table_rules = Rule(kind), [Rule(kind) for _ in tables]

    def rows(self, table: int, ids: np.ndarray) -> np.ndarray:
        """Returns float32[n, dim], the rows of ids."""
        return np.stack([self.tables[table][key] for key in ids.tolist()])

    def seen(self, table: int, ids: np.ndarray) -> np.ndarray:
        """Returns float32[n, dim], the rows of ids as lookups return them."""
        return rounded(self.rows(table, ids), self.pull_wires[table])

    def train(
        self,
        dense: Sequence[Sequence[np.ndarray]],
        sparse: Sequence[Sequence[SparseBatch | None]],
        weights: Sequence[float] | None = None,
    ) -> None:
        """Makes one step.

        Args:
          dense: `dense[rank][weight]`, gradients.
          sparse: `sparse[rank][table]`; None if the rank did not use the table.
          weights: Each rank's weight in the dense mean; None: 1. Sparse gradients of ranks of weight 0 are left out.
        """
        weights = [1.0] * len(dense) if weights is None else weights
        sparse = [
            batches if weight > 0 else [None] * len(batches) for batches, weight in zip(sparse, weights, strict=True)
        ]
        self.step += 1
        for i, weight in enumerate(self.dense):
            grad = reduce_dense([gradients[i] for gradients in dense], weights)
            self.dense[i] = self.dense_rule.update(i, weight, grad, self.rate, self.step)
        for t, rows in enumerate(self.tables):
            per_rank = [{} if batches[t] is None else local_sums(batches[t]) for batches in sparse]
            for key, grad in reduce_sparse(per_rank, self.reduction, self.senders, self.wire).items():
                updated = self.table_rules[t].update(key, rows[key], grad, self.rate, self.step)
                rows[key] = rounded(updated, self.row_types[t])
