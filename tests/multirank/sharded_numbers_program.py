"""One rank of the test that sharded tables give the numbers of the reference.

Arguments: the numbers of the cases in `sharded_cases.CASES`, with "-repeated" behind them for the control in which a
rank's keys are not merged before they travel; the folder for results.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import batches
import numpy as np
import tensorflow as tf
import this_rank
from sharded_cases import CASES, ON_DISK, ROUNDS_PULLS, SHARDED, STEPS, name_of

import tf_sparse_ps as tsps
from tf_sparse_ps import _table
from tf_sparse_ps.reduction import sparse_reducers

keras = tf.keras
OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}
MEMORY = 12_850_000  # of a table that is partly on disk: 12 MiB are buffers
FILL = np.arange(7_500, dtype=np.int64) + 10**6  # keys that no batch has: they send the others' rows to the disk


def config(t: int, case: dict[str, Any], disk: Path) -> Any:
    """Of a table of batches.py."""
    sharded = SHARDED[t]
    on_disk = case["storage"] == "tiered" and ON_DISK[t]
    wire = case["pull"] if ROUNDS_PULLS[t] else "float32"
    return tsps.TableConfig(
        f"table{t}",
        batches.DIMS[t],
        key_limit=batches.KEYS[t] if batches.BOUNDED[t] else None,
        dtype=case["dtype"] if sharded else "float32",
        rounding="nearest",
        storage=tsps.Tiered(disk, memory=MEMORY) if on_disk else "memory",
        placement=tsps.Sharded(wire=wire) if sharded else "replicated",
    )


def own(binding: Any, keys: np.ndarray) -> np.ndarray:
    """Which keys' rows this node has."""
    if binding.placement != "sharded":
        return np.ones(len(keys), bool)
    return _table.owners(keys, binding.nodes) == binding.node


def of_this_node(binding: Any, keys: np.ndarray) -> np.ndarray:
    """Rows of keys, float32[n, dim]: zeros where another node has them."""
    rows = np.zeros((len(keys), binding.config.dim), np.float32)
    mine = own(binding, keys)
    rows[mine] = binding.reader().lookup(keys[mine])
    return rows


def of_all_nodes(binding: Any, keys: np.ndarray) -> np.ndarray:
    """The same, each from the node that has it."""
    rows = np.zeros((len(keys), binding.config.dim), np.float32)
    parts = own(binding, keys), of_this_node(binding, keys)
    for theirs, found in tsps.collectives.current().allgather_object(parts, "test.first"):
        rows[theirs] = found[theirs]
    return rows


class Both(keras.Model):
    """The two layers as a model, which `tsps.lookahead` looks through."""

    def __init__(self, first: Any, others: Any) -> None:
        super().__init__()
        self.first, self.others = first, others

    def call(self, ids: Any) -> list[tf.Tensor]:
        """Rows of each table for its ids."""
        found = self.others({f"f{t}": ids[t] for t in range(1, len(ids))})
        return [self.first(ids[0]), *(found[f"f{t}"] for t in range(1, len(ids)))]


def steps(first: int, last: int) -> tf.data.Dataset:
    """This rank's batches of these steps."""

    def elements() -> Iterator[Any]:
        for i in range(first, last):
            one = batches.batch(i, this_rank.rank())
            yield tuple(one.ids), tuple(one.targets), tuple(one.dense_targets)

    signature = (
        tuple(tf.TensorSpec([None], tf.int64) for _ in batches.DIMS),
        tuple(tf.TensorSpec([None, dim], tf.float32) for dim in batches.DIMS),
        tuple(tf.TensorSpec(shape, tf.float32) for shape in batches.DENSE),
    )
    return tf.data.Dataset.from_generator(elements, output_signature=signature)


def train(case: dict[str, Any], disk: Path) -> dict[str, Any]:
    """Trains tables and dense weights; returns what this node has before and after, and what look-ups give."""
    configs = [config(t, case, disk) for t in range(len(batches.DIMS))]
    first = tsps.Embedding(configs[0].key_limit, configs[0].dim, table=configs[0])
    others = tsps.EmbeddingCollection({f"f{t}": tsps.FeatureConfig(configs[t]) for t in range(1, len(configs))})
    first.build(None), others.build(None)
    model = Both(first, others)
    bindings = [*first.bindings, *others.bindings]
    dense = [tf.Variable(weight) for weight in batches.first_dense()]
    optimizer = tsps.DistributedOptimizer(
        OPTIMIZERS[case["optimizer"]](batches.RATES[case["optimizer"]]),
        sparse_reduction=case["reduction"],
        wire=case["push"],
    )
    variables = [*first.trainable_variables, *others.trainable_variables, *dense]

    @tf.function(
        input_signature=(
            [tf.TensorSpec([None], tf.int64) for _ in batches.DIMS],
            [tf.TensorSpec([None, dim], tf.float32) for dim in batches.DIMS],
            [tf.TensorSpec(shape, tf.float32) for shape in batches.DENSE],
        ),
        autograph=False,  # tracing is most of a run
    )
    def step(ids: list[tf.Tensor], targets: list[tf.Tensor], dense_targets: list[tf.Tensor]) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([0.5 * tf.reduce_sum((w - t) ** 2) for w, t in zip(dense, dense_targets, strict=True)])
            # Called twice: keys repeat between the calls, and must count once.
            halves = [tf.shape(one)[0] // 2 for one in ids]
            for half in (lambda one, n: one[:n], lambda one, n: one[n:]):
                for rows, target in zip(
                    model.call([half(one, n) for one, n in zip(ids, halves, strict=True)]),
                    [half(one, n) for one, n in zip(targets, halves, strict=True)],
                    strict=True,
                ):
                    loss += 0.5 * tf.reduce_sum((rows - target) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    keys = [batches.all_keys(t) for t in range(len(batches.DIMS))]
    found: dict[str, Any] = {f"first{t}": of_all_nodes(b, keys[t]) for t, b in enumerate(bindings)}

    def send_to_disk(*, new: bool) -> None:
        for t, binding in enumerate(bindings):
            if binding.config.storage != "memory":
                if new:  # those of the batches first, or they would come into memory when they are trained
                    binding.assign(keys[t], found[f"first{t}"])
                binding.assign(FILL, np.zeros((len(FILL), binding.config.dim), np.float32))

    for begin in (0, STEPS // 2):
        send_to_disk(new=begin == 0)
        dataset = steps(begin, begin + STEPS // 2)
        if case["ahead"]:
            dataset = tsps.lookahead(dataset, model, batches=case["ahead"])
        for values in dataset:
            step(*map(list, values))
    for t, (binding, seen) in enumerate(zip(bindings, model.call(list(map(tf.constant, keys))), strict=True)):
        stats = binding.reader().stats()
        found |= {f"rows{t}": of_this_node(binding, keys[t]), f"seen{t}": seen.numpy()}
        found |= {f"keys{t}": np.setdiff1d(binding.reader().keys(), FILL), f"on_disk{t}": stats.get("rows_on_disk", 0)}
    found |= {f"dense{i}": weight.numpy() for i, weight in enumerate(dense)}
    return found | {f"statistic_{name}": value for name, value in optimizer.statistics().items()}


def main() -> None:
    """Runs the cases."""
    this_rank.init()
    numbers, _, control = sys.argv[1].partition("-")
    folder = Path(sys.argv[2])
    if control:
        sparse_reducers.unique = list
    for number in map(int, numbers.split(",")):
        case = CASES[number]
        print(f"rank {this_rank.rank()}: {name_of(case)}", flush=True)  # shown when the test times out
        np.savez(folder / f"{name_of(case)}-{this_rank.rank()}.npz", **train(case, folder / "disk" / str(number)))
    tsps.collectives.current().barrier("test.end")


if __name__ == "__main__":
    main()
