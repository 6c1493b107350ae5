"""One rank of the test that tables admit and evict as the simulation does, on all nodes alike.

Tables are replicated and sharded, in memory and with rows on disk.

Arguments: the number of steps; the folder for results. Each rank simulates the job, and compares its node's tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import admission
import eviction
import mode_a
import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import _table
from tf_sparse_ps.config.placement import Sharded

keras = tf.keras
DIM, BATCH, RATE = 3, 60, 0.25
START = 0.5
POLICIES: dict[str, dict[str, Any]] = {
    "lru": {"eviction": tsps.Eviction(25, max_rows=1500, keep=[1, 2])},
    "lfu": {"eviction": tsps.Eviction(max_rows=1600, policy="lfu", half_life=9)},
    "old": {"eviction": tsps.Eviction(7)},
    "count": {"admission": tsps.Admission(3, 500, half_life=20)},
    "both": {"admission": tsps.Admission(2, 1000), "eviction": tsps.Eviction(9, max_rows=600)},
    "disk": {"admission": tsps.Admission(2, 2000), "eviction": tsps.Eviction(30, max_rows=1600, policy="lfu")},
}
MEMORY = 1_745_000  # of a table with rows on disk; 1.5 MiB are buffers


def ids_of(rank: int, step: int) -> np.ndarray:
    """Returns the ids of a rank's batch: some of a few hundred hot ones, and others that drift."""
    random = np.random.default_rng([rank, step])
    hot = random.zipf(1.3, BATCH) % 300
    drifting = 1000 + 40 * step + random.integers(0, 800, BATCH)
    return np.where(random.random(BATCH) < 0.4, hot, drifting).astype(np.int64)


def gradients_of(rank: int, step: int) -> np.ndarray:
    """Returns the gradient of each id's row."""
    return np.random.default_rng([rank, step, 1]).normal(size=(BATCH, DIM)).astype(np.float32)


class Simulated:
    """One table, as the node of this rank has it."""

    def __init__(self, binding: Any, nodes: list[list[int]]) -> None:
        sharded = binding.placement == "sharded"
        self.binding = binding
        self.nodes = nodes
        self.own = (binding.nodes, binding.node) if sharded else None
        policy = binding.config.eviction or tsps.Eviction(10**6)
        self.evictions = eviction.Evictions(
            int(binding.reader().stats()["index_seed"]),
            policy.unused_steps or 0,
            (policy.max_rows or 0) // (binding.nodes if sharded else 1),
            policy.policy,
            policy.half_life,
            frozenset(policy.keep),
        )
        self.admissions = None
        if (wanted := binding.config.admission) is not None:
            self.admissions = admission.Admissions(
                int(binding.sketch().stats()["index_seed"]),
                wanted.count,
                wanted.half_life,
                -(-wanted.expected_keys // (binding.nodes if sharded else 1)),
            )
        self.most_on_disk = 0
        self.rows: dict[int, np.ndarray] = {}
        self.rule = mode_a.Rule("adagrad")

    def train(self, step: int) -> None:
        """Makes a step of all ranks."""
        ranks = [
            mode_a.local_sums(mode_a.SparseBatch(ids_of(rank, step), gradients_of(rank, step)))
            for rank in range(this_rank.size())
        ]
        reduced = mode_a.reduce_sparse(ranks, "frequency", self.nodes, "float32")
        if self.own is not None:
            owners = _table.owners(np.array(list(reduced), np.int64), self.own[0])
            own = {key for key, node in zip(reduced, owners.tolist(), strict=True) if node == self.own[1]}
            reduced = {key: row for key, row in reduced.items() if key in own}
        if self.admissions is not None:
            occurrences = {key: 0 for key in reduced if key not in self.rows}
            for rank in range(this_rank.size()):
                for key in ids_of(rank, step).tolist():
                    if key in occurrences:
                        occurrences[key] += 1
            dropped = self.admissions.step(step, occurrences)
            reduced = {key: row for key, row in reduced.items() if key not in dropped}
        for key in self.evictions.step(step, reduced):
            del self.rows[key]
            self.rule.slots.pop(key)
        for key, gradient in reduced.items():
            row = self.rows.get(key, np.full(DIM, START, np.float32))
            self.rows[key] = self.rule.update(key, row, gradient, RATE, step)

    def compare(self, when: str) -> None:
        """Asserts that the table has the same rows, slots and uses."""
        table = self.binding.reader()
        with table.scan() as scan:
            block = scan.read()
        self.most_on_disk = max(self.most_on_disk, table.stats()["rows_on_disk"])
        order = np.argsort(block.keys)
        keys = np.array(sorted(self.rows), np.int64)
        np.testing.assert_array_equal(block.keys[order], keys, when)
        if "use" in block.metadata:
            uses = np.array([self.evictions.uses[key] for key in keys.tolist()], np.uint32)
            np.testing.assert_array_equal(block.metadata["use"][order], uses, when)
        np.testing.assert_array_equal(block.rows[order], np.stack([self.rows[key] for key in keys.tolist()]), when)
        slots = np.stack([self.rule.slots[key][0] for key in keys.tolist()])
        np.testing.assert_array_equal(block.slots[0][order], slots, when)
        stats = table.stats()
        counts = stats["evicted_unused"], stats["evicted_excess"]
        assert counts == (self.evictions.unused, self.evictions.excess), (when, counts)
        if self.admissions is not None:
            counts = stats["admitted"], stats["gradients_dropped"]
            assert counts == (self.admissions.admitted, self.admissions.dropped), (when, counts)
        if self.evictions.max_rows:
            assert len(keys) <= self.evictions.max_rows, when


def main() -> None:
    collectives = this_rank.init()
    steps = int(sys.argv[1])
    disk = Path(sys.argv[2]) / "disk"
    configs = {
        f"{name}-{placement}": tsps.TableConfig(
            f"{name}-{placement}",
            DIM,
            initializer=keras.initializers.Constant(START),
            placement=Sharded() if placement == "sharded" else "replicated",
            storage=tsps.Tiered(disk, memory=MEMORY) if name == "disk" else "memory",
            **policies,
        )
        for name, policies in POLICIES.items()
        for placement in ("replicated", "sharded")
    }
    layers = {name: tsps.Embedding(None, DIM, table=config) for name, config in configs.items()}
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(RATE))

    @tf.function
    def train(ids: tf.Tensor, gradients: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(layer(ids) * gradients) for layer in layers.values()])
        weights = [weight for layer in layers.values() for weight in layer.trainable_weights]
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    for layer in layers.values():
        layer.build(None)
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(collectives.allgather_object(collectives.cross_rank, "test.nodes")):
        nodes.setdefault(node, []).append(rank)
    simulated = {name: Simulated(layer.bindings[0], list(nodes.values())) for name, layer in layers.items()}
    for step in range(1, steps + 1):
        rank = this_rank.rank()
        train(tf.constant(ids_of(rank, step)), tf.constant(gradients_of(rank, step)))
        for name, table in simulated.items():
            table.train(step)
            if step % 10 == 0 or step == steps:
                table.compare(f"{name}, step {step}")
        if step % 10 == 0 or step == steps:
            collectives.barrier(f"test.compared.{step}")  # otherwise another rank makes the next step meanwhile
    for name, table in simulated.items():
        evicted, admissions = table.evictions.unused + table.evictions.excess, table.admissions
        assert evicted > (500 if admissions is None else 100) or table.binding.config.eviction is None, name
        assert (table.most_on_disk > 100) == name.startswith("disk"), (name, table.most_on_disk)
        assert admissions is None or min(admissions.admitted, admissions.dropped) > 100, name
    print(f"rank {this_rank.rank()} agrees", flush=True)


if __name__ == "__main__":
    main()
