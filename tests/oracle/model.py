"""The NumPy model: the effect of every operation on a job. It does not use the package.

Sums, divisions and update rules are those of `tests/reference`, in float32 and in the documented order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import mode_a
import numpy as np
import row_rules

from tests.oracle import data
from tests.oracle.options import Operation, Options
from tests.oracle.policies import Policies
from tests.oracle.row_rule_table import RULES
from tests.oracle.state import State, TableState

F = np.float32


class Model:
    """Applies the operations of a job to a `State`."""

    def __init__(
        self,
        options: Options,
        initial: Sequence[np.ndarray],
        salts: Sequence[int],
        owners: Sequence[np.ndarray],
        fault: str = "",
    ) -> None:
        """Prepares the model; `first` makes a state.

        Args:
          options: The options of the job.
          initial: The rows of absent keys of each table, float32[keys, dim].
          salts: The salt of each table, on which its stochastic rounding depends.
          owners: The node of each key of each table's pool; 0 for tables of which every node has all rows.
          fault: A fault of the control: "gradient" loses one gradient, and "unused" lets rows age a step longer.
        """
        self.options, self.rule = options, RULES[options.rule]
        self._initial, self._salts, self._fault = list(initial), list(salts), fault
        self._owners = list(owners)
        self._pools = [data.pool(options, t) for t in range(len(options.tables))]
        alone = [[rank] for rank in range(options.ranks)]
        self._senders = alone if options.topology == "flat" else options.nodes

    def first(self) -> State:
        """Returns the state of a new job."""
        dense = data.first_dense(self.options)
        dense_rule = self.rule if self.options.matched else RULES["sgd"]
        return State(
            [self._first_table(t) for t in range(len(self.options.tables))],
            dense,
            [np.full_like(dense, value) for value in dense_rule.slot_init],
            0,
            0,
            float(F(self.rule.rate)),
        )

    def _first_table(self, t: int) -> TableState:
        table = self.options.tables[t]
        rows, present = self._initial[t].copy(), np.zeros(table.keys, bool)
        if table.weights:
            rows, present = self._stored(t, data.matrix(self.options, t, 0)), np.ones(table.keys, bool)
        width = 1 if self.rule.row_wise else table.dim
        slots = [np.full((table.keys, width), value, F) for value in self.rule.slot_init]
        shards = range(self.options.shards(t) if table.has_policies else 0)
        state = TableState(present, rows, slots, [Policies.of(self.options, t, self._fault) for _ in shards])
        self._wrote(t, state, 0, np.flatnonzero(present))
        return state

    def _of_shard(self, t: int, positions: np.ndarray, shard: int) -> list[int]:
        """Returns the keys at positions that belong to a shard of a table."""
        keys: list[int] = self._pools[t][positions[self._owners[t][positions] == shard]].tolist()
        return keys

    def _wrote(self, t: int, table: TableState, step: int, positions: np.ndarray) -> None:
        for shard, policies in enumerate(table.policies):
            policies.wrote(step, self._of_shard(t, positions, shard))

    def _erase(self, t: int, table: TableState, positions: np.ndarray) -> None:
        table.present[positions] = False
        table.rows[positions] = self._initial[t][positions]
        for slot, value in zip(table.slots, self.rule.slot_init, strict=True):
            slot[positions] = value
        for shard, policies in enumerate(table.policies):
            policies.erased(self._of_shard(t, positions, shard))

    def _stored(self, t: int, rows: np.ndarray) -> np.ndarray:
        """Returns rows as a table stores assigned values."""
        dtype = self.options.tables[t].dtype
        return rows.astype(F) if dtype == "float32" else row_rules.widen(row_rules.nearest(rows, dtype))

    # --- lookups ---

    def seen(self, state: State, t: int, positions: np.ndarray) -> np.ndarray:
        """Returns rows as lookups in the job return them."""
        rows: np.ndarray = state.tables[t].rows[positions]
        return mode_a.rounded(rows, self.options.tables[t].pull) if self.options.sharded(t) else rows

    def positions(self, t: int, keys: np.ndarray) -> np.ndarray:
        """Returns the positions of keys in the pool."""
        return np.searchsorted(self._pools[t], keys)

    def predictions(self, state: State, batch: data.Batch) -> np.ndarray:
        """Returns the Keras model's output for a batch, float32[batch, 1]."""
        total = (batch.dense * state.dense).sum(1)
        for t in range(len(self.options.tables)):
            total = total + 0.5 * (self._errors(state, t, batch).astype(np.float64) ** 2).sum((1, 2, 3))
        return total[:, None].astype(F)

    def _errors(self, state: State, t: int, batch: data.Batch) -> np.ndarray:
        rows = self.seen(state, t, self.positions(t, batch.ids[t]))
        layer = self.options.tables[t].layer
        if layer in ("sum", "mean"):
            rows = (rows[:, :, :1] + rows[:, :, 1:]) * F(0.5 if layer == "mean" else 1)
        return rows - batch.targets[t]

    # --- training ---

    def train(self, state: State, number: int, weights: Sequence[float] = ()) -> None:
        """Makes one step with the batch of this number, on all ranks."""
        options = self.options
        weights = list(weights) or [1.0] * options.ranks
        batches = [data.batch(options, number, rank) for rank in range(options.ranks)]
        state.iterations += 1
        means = [batch.dense.mean(0, dtype=np.float64).astype(F)[None] for batch in batches]
        dense = self._clipped(mode_a.reduce_dense(means, weights))
        dense_rule = self.rule if options.matched else RULES["sgd"]
        hyper = dense_rule.hyper(state.rate, state.iterations)
        state.dense, state.dense_slots = row_rules.update(dense_rule.kind, hyper, state.dense, state.dense_slots, dense)
        reduced, occurrences = [], []
        for t in range(len(options.tables)):
            parts = [
                self._local(state, t, batch) if weight > 0 else {}
                for batch, weight in zip(batches, weights, strict=True)
            ]
            if self._fault == "gradient" and t == 0 and state.iterations == 3:
                parts[0].pop(next(iter(parts[0])))
            sums = mode_a.reduce_sparse(parts, options.reduction, self._sent_by(t), self._wire(t))
            reduced.append({key: self._clipped(grad) for key, grad in sums.items()})
            occurrences.append(self._occurrences(t, batches, weights))
        state.pending.append((reduced, occurrences, state.rate, state.iterations))
        if options.schedule != "delayed":
            self.drain(state)
            return
        state.in_cycle += 1
        if state.in_cycle == options.cycle:
            self.drain(state)
        else:
            self._apply(state, len(state.pending) - options.staleness)

    def _occurrences(self, t: int, batches: Sequence[data.Batch], weights: Sequence[float]) -> Counter[int]:
        """Returns the number of ids with each position of a table, in the batches of ranks that count in this step."""
        counts: Counter[int] = Counter()
        if self.options.tables[t].has_policies:
            for batch, weight in zip(batches, weights, strict=True):
                if weight > 0:
                    counts.update(self.positions(t, batch.ids[t].ravel()).tolist())
        return counts

    def _sent_by(self, t: int) -> list[list[int]]:
        return self.options.nodes if self.options.sharded(t) else self._senders

    def _wire(self, t: int) -> str:
        """Returns the dtype of the wire. Nothing is sent on one node, unless every rank sends its own gradients."""
        return self.options.wire if len(self._sent_by(t)) > 1 else "float32"

    def _clipped(self, gradient: np.ndarray) -> np.ndarray:
        limit = F(self.options.clip)
        return np.clip(gradient, -limit, limit) if limit else gradient

    def _local(self, state: State, t: int, batch: data.Batch) -> dict[int, np.ndarray]:
        """Returns one rank's gradients of a table by position, summed in the order of the batch, feature by feature."""
        layer = self.options.tables[t].layer
        gradients = self._errors(state, t, batch) * F(1 / self.options.batch) * F(0.5 if layer == "mean" else 1)
        ids = batch.ids[t]
        gradients = np.broadcast_to(gradients, (*ids.shape, gradients.shape[-1]))
        ids = self.positions(t, ids.transpose(1, 0, 2)).reshape(-1)
        gradients = gradients.transpose(1, 0, 2, 3).reshape(len(ids), -1)
        return mode_a.local_sums(mode_a.SparseBatch(ids, np.ascontiguousarray(gradients)))

    def drain(self, state: State) -> None:
        """Applies the gradients that a delayed schedule has outstanding."""
        self._apply(state, len(state.pending))
        state.in_cycle = 0

    def part_of_drain(self, state: State, n: int) -> State:
        """Returns the state after the n oldest outstanding gradients. A drain commits them one by one."""
        part = state.copy()
        self._apply(part, n)
        return part

    def _apply(self, state: State, n: int) -> None:
        for reduced, occurrences, rate, iterations in state.pending[: max(n, 0)]:
            state.step += 1
            for t, gradients in enumerate(reduced):
                self._update(state, t, self._admitted(state, t, gradients, occurrences[t]), rate, iterations)
        state.pending = state.pending[max(n, 0) :]

    def _admitted(
        self, state: State, t: int, gradients: dict[int, np.ndarray], occurrences: Counter[int]
    ) -> dict[int, np.ndarray]:
        """Lets the policies of a table make a step. Returns the gradients that are not dropped."""
        table = state.tables[t]
        trained = np.array(sorted(gradients), np.int64)
        for shard, policies in enumerate(table.policies):
            absent = self._of_shard(t, trained[~table.present[trained]], shard)
            counts = [occurrences[position] for position in self.positions(t, np.array(absent, np.int64)).tolist()]
            dropped, evicted = policies.step(
                state.step, self._of_shard(t, trained, shard), dict(zip(absent, counts, strict=True))
            )
            self._erase(t, table, self.positions(t, np.array(evicted, np.int64)))
            without = set(self.positions(t, np.array(sorted(dropped), np.int64)).tolist())
            gradients = {at: gradient for at, gradient in gradients.items() if at not in without}
        return gradients

    def _update(self, state: State, t: int, gradients: dict[int, np.ndarray], rate: float, iterations: int) -> None:
        options, table = self.options.tables[t], state.tables[t]
        if not gradients:
            return
        positions = np.array(list(gradients))
        hyper = self.rule.hyper(rate, iterations)
        rows, slots = row_rules.update(
            self.rule.kind,
            hyper,
            table.rows[positions],
            [slot[positions] for slot in table.slots],
            np.stack(list(gradients.values())),
        )
        if options.constraint == "non_neg":
            rows = np.where(rows >= 0, rows, F(0))
        if options.dtype != "float32" and options.rounding == "stochastic":
            keys = self._pools[t][positions]
            draws = row_rules.row_draws(data.table_seed(self.options, t), self._salts[t], keys, state.step)
            rows = row_rules.widen(row_rules.stochastic(rows, options.dtype, draws))
        table.rows[positions] = self._stored(t, rows)
        table.present[positions] = True
        for slot, values in zip(table.slots, slots, strict=True):
            slot[positions] = values

    # --- other writes ---

    def make(self, state: State, operation: Operation) -> None:
        """Makes an operation without steps."""
        if operation.kind in ("save", "drain"):
            self.drain(state)
        elif operation.kind == "rate":
            self.drain(state)
            state.rate = float(F(operation.value))
        elif operation.kind == "evict":
            table = state.tables[operation.table]
            for policies in table.policies:
                keys = np.array(policies.due(state.step), np.int64)
                self._erase(operation.table, table, self.positions(operation.table, keys))
        elif operation.kind == "set_weights":
            table = state.tables[operation.table]
            self._wrote(operation.table, table, state.step, np.arange(len(table.present)))
            table.rows[:] = self._stored(
                operation.table, data.matrix(self.options, operation.table, int(operation.value))
            )
            table.present[:] = True
        elif operation.kind == "save_weights":
            kept = state.copy()
            kept.saved = None
            state.saved = kept
        elif operation.kind == "load_weights":
            kept, policies_before = state.saved.copy(), [table.policies for table in state.tables]
            state.tables, state.dense, state.dense_slots = kept.tables, kept.dense, kept.dense_slots
            state.iterations, state.rate = kept.iterations, kept.rate
            for table, policies in zip(state.tables, policies_before, strict=True):
                table.policies = policies  # files of weights have no counts of keys

    def edit(self, state: State, number: int) -> None:
        """Writes to the tables what `data.edit` writes between two runs."""
        for t, table in enumerate(state.tables):
            assigned, rows, erased = data.edit(self.options, number, t)
            table.rows[assigned] = self._stored(t, rows)
            table.present[assigned] = True
            self._wrote(t, table, state.step, assigned)
            self._erase(t, table, erased)
