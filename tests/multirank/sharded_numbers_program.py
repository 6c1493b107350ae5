"""One rank of the test that sharded tables give the numbers of the reference.

Arguments: the numbers of the cases in `sharded_cases.CASES`, with the suffix "-repeated" for the control in which a
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
MEMORY = 1_840_000  # bytes of a table that is partly on disk; 1.5 MiB of them are buffers
FILL = np.arange(7_500, dtype=np.int64) + 10**6  # no batch has these keys; they move the other rows to the disk


def config(t: int, case: dict[str, Any], disk: Path) -> Any:
    """Returns the configuration of a table of batches.py."""
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


def owned_here(binding: Any, keys: np.ndarray) -> np.ndarray:
    """Returns which keys' rows this node has."""
    if binding.placement != "sharded":
        return np.ones(len(keys), bool)
    return _table.owners(keys, binding.nodes) == binding.node


def of_this_node(binding: Any, keys: np.ndarray) -> np.ndarray:
    """Returns rows of keys, float32[n, dim], with zeros for rows of other nodes."""
    rows = np.zeros((len(keys), binding.config.dim), np.float32)
    is_here = owned_here(binding, keys)
    rows[is_here] = binding.reader().lookup(keys[is_here])
    return rows


def of_all_nodes(binding: Any, keys: np.ndarray) -> np.ndarray:
    """Returns rows of keys, each from the node that has it."""
    rows = np.zeros((len(keys), binding.config.dim), np.float32)
    parts = owned_here(binding, keys), of_this_node(binding, keys)
    for is_there, rows_there in tsps.collectives.current().allgather_object(parts, "test.first"):
        rows[is_there] = rows_there[is_there]
    return rows


class Both(keras.Model):
    """The two layers as a model, for `tsps.lookahead`."""

    def __init__(self, first: Any, collection: Any) -> None:
        super().__init__()
        self.first, self.others = first, collection

    def call(self, ids: Any) -> list[tf.Tensor]:
        """Returns each table's rows for its ids."""
        rows = self.others({f"f{t}": ids[t] for t in range(1, len(ids))})
        return [self.first(ids[0]), *(rows[f"f{t}"] for t in range(1, len(ids)))]


def steps(first: int, last: int) -> tf.data.Dataset:
    """Returns this rank's batches of the steps from `first` to `last`."""

    def elements() -> Iterator[Any]:
        for i in range(first, last):
            step_batch = batches.batch(i, this_rank.rank())
            yield tuple(step_batch.ids), tuple(step_batch.targets), tuple(step_batch.dense_targets)

    signature = (
        tuple(tf.TensorSpec([None], tf.int64) for _ in batches.DIMS),
        tuple(tf.TensorSpec([None, dim], tf.float32) for dim in batches.DIMS),
        tuple(tf.TensorSpec(shape, tf.float32) for shape in batches.DENSE),
    )
    return tf.data.Dataset.from_generator(elements, output_signature=signature)


def train(case: dict[str, Any], disk: Path) -> dict[str, Any]:
    """Trains tables and dense weights; returns this node's rows before and after, and the results of lookups."""
    configs = [config(t, case, disk) for t in range(len(batches.DIMS))]
    first = tsps.Embedding(configs[0].key_limit, configs[0].dim, table=configs[0])
    collection = tsps.EmbeddingCollection({f"f{t}": tsps.FeatureConfig(configs[t]) for t in range(1, len(configs))})
    first.build(None), collection.build(None)
    model = Both(first, collection)
    bindings = [*first.bindings, *collection.bindings]
    dense = [tf.Variable(weight) for weight in batches.first_dense()]
    optimizer = tsps.DistributedOptimizer(
        OPTIMIZERS[case["optimizer"]](batches.RATES[case["optimizer"]]),
        sparse_reduction=case["reduction"],
        wire=case["push"],
    )
    variables = [*first.trainable_variables, *collection.trainable_variables, *dense]

    @tf.function(
        input_signature=(
            [tf.TensorSpec([None], tf.int64) for _ in batches.DIMS],
            [tf.TensorSpec([None, dim], tf.float32) for dim in batches.DIMS],
            [tf.TensorSpec(shape, tf.float32) for shape in batches.DENSE],
        ),
        autograph=False,  # tracing takes most of a run
    )
    def step(ids: list[tf.Tensor], targets: list[tf.Tensor], dense_targets: list[tf.Tensor]) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([0.5 * tf.reduce_sum((w - t) ** 2) for w, t in zip(dense, dense_targets, strict=True)])
            # The layers are called twice: keys that repeat between the calls must count once.
            halves = [tf.shape(tensor)[0] // 2 for tensor in ids]
            for half in (lambda tensor, n: tensor[:n], lambda tensor, n: tensor[n:]):
                for rows, target in zip(
                    model.call([half(tensor, n) for tensor, n in zip(ids, halves, strict=True)]),
                    [half(tensor, n) for tensor, n in zip(targets, halves, strict=True)],
                    strict=True,
                ):
                    loss += 0.5 * tf.reduce_sum((rows - target) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    keys = [batches.all_keys(t) for t in range(len(batches.DIMS))]
    result: dict[str, Any] = {f"first{t}": of_all_nodes(b, keys[t]) for t, b in enumerate(bindings)}

    def send_to_disk(*, new: bool) -> None:
        for t, binding in enumerate(bindings):
            if binding.config.storage != "memory":
                if new:  # the batches' rows are written first, otherwise training would bring them into memory
                    binding.assign(keys[t], result[f"first{t}"])
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
        result |= {f"rows{t}": of_this_node(binding, keys[t]), f"seen{t}": seen.numpy()}
        result |= {f"keys{t}": np.setdiff1d(binding.reader().keys(), FILL), f"on_disk{t}": stats.get("rows_on_disk", 0)}
    result |= {f"dense{i}": weight.numpy() for i, weight in enumerate(dense)}
    return result | {f"statistic_{name}": value for name, value in optimizer.statistics().items()}


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
