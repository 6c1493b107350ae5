"""One rank of the test of constants in collectives: in every graph, TensorFlow knows the input of some ranks or all.

Argument: the folder for results. In each operation, the input is a constant on this rank, on its neighbour, or on both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

from benchmarks.operation_counts import operation_counts
from tf_sparse_ps import collectives

CALLS = 3


def traced(world: Any, operation: Callable[[tf.Tensor], list[tf.Tensor]], name: str, constant: bool) -> Any:
    """Returns a function with the operation after another one. A rank that runs it too early waits forever."""
    waited_for = tf.Variable(0.0)

    @tf.function
    def step(fed: tf.Tensor) -> list[tf.Tensor]:
        with tf.control_dependencies(world.allreduce([waited_for.read_value()], f"{name}.before")):
            value = tf.constant([1.0, 2.0]) if constant else tf.identity(fed)
        return operation(value)

    return step


def main() -> None:
    """Runs every operation three times in one trace, and counts the runs."""
    this_rank.init()
    world, results = collectives.current(), {}
    operations: dict[str, Callable[[tf.Tensor, str], list[tf.Tensor]]] = {
        "allreduce": lambda value, name: world.allreduce([value, 2.0 * value], name, average=False),
        "allgather": lambda value, name: world.allgather([value], name),
        "broadcast": lambda value, name: [world.broadcast(value, 1, name)],
        "alltoall": lambda value, name: list(world.alltoall(value, tf.constant([1, 1]), name)),
    }
    for verb, operation in operations.items():
        for constant_on in ("rank0", "rank1", "both"):
            name = f"{verb}.{constant_on}"
            constant = constant_on in ("both", f"rank{this_rank.rank()}")
            step = traced(world, lambda value, name=name, run=operation: run(value, name), name, constant)
            for call in range(CALLS):
                outputs = step(tf.constant([1.0, 2.0]))
                results[f"{name}.{call}"] = [np.asarray(output).tolist() for output in outputs]
    counts = {name: count for name, count in operation_counts(world).items() if name.split(".")[0] in operations}
    (Path(sys.argv[1]) / f"{this_rank.rank()}.json").write_text(json.dumps({"results": results, "counts": counts}))


if __name__ == "__main__":
    main()
