"""The program of a worker.

Arguments: "one" (all workers on one node), "nodes" (on several nodes) or "sharded" (each on its own node), a colon, and
for "one" the names of runs with commas between them; the folder for results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import batches
import loops
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import CollectivesError
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.training import initial_sync

keras = tf.keras


def operations(world: Any) -> dict[str, Any]:
    """Runs every operation on inputs that invite grappler to fold, merge or drop it. Returns the results as lists."""
    rank, size = world.rank, world.size
    total = tf.Variable(0.0)

    @tf.function
    def step() -> tf.Tensor:
        (constant,) = world.allreduce([tf.constant(2.0)], "t.constant", average=False)
        (same,) = world.allreduce([tf.constant(2.0)], "t.same", average=False)
        world.allgather([tf.ones([rank, 2])], "t.unused")  # the result is unused
        if rank == 1:
            total.assign_add(constant + same)  # only rank 1 uses the results
        return total.read_value()

    @tf.function
    def steps() -> tf.Tensor:
        for _ in range(3):  # unrolled: one name occurs three times in a graph
            result = step()
        for _ in tf.range(2):
            result = step()
        return result

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def unknown_sizes(values: tf.Tensor) -> Any:
        (gathered,) = world.allgather([values], "t.unknown.gathered")
        (summed,) = world.allreduce([values], "t.unknown.summed", average=False)
        return gathered, summed, world.broadcast(values, 1, "t.unknown.sent")

    last = steps()
    unknown = [[tensor.numpy().tolist() for tensor in unknown_sizes(tf.fill([n], rank + 1))] for n in (3, 0, 40, 3)]
    parts_of_ranks = tf.fill([size * (size - 1) // 2, 2], 1.5 * rank)
    rows, counts = world.alltoall(parts_of_ranks, tf.range(size), "t.alltoall")
    ragged = [tf.fill([rank], rank), tf.fill([rank, 1], float(rank)), tf.zeros([0, 3]), tf.fill([1], rank == 1)]
    types = [tf.uint8, tf.int16, tf.uint32, tf.uint64, tf.float16, tf.bfloat16]
    subset = world.subset([0, size - 1])
    try:
        world.allreduce([tf.constant(["text"])], "t.text", average=False)
        refused = "no error"
    except TypeError as error:
        refused = str(error)
    return {
        "last": float(last),
        "unknown": unknown,
        "alltoall": [rows.numpy().tolist(), counts.numpy().tolist()],
        "ragged": [tensor.numpy().tolist() for tensor in world.allgather(ragged, "t.ragged")],
        "means": [
            tensor.numpy().tolist()
            for tensor in world.allreduce([tf.constant([float(rank)]), tf.constant([1.0, rank], tf.float64)], "t.means")
        ],
        "sums": [
            tf.cast(world.allreduce([tf.constant([200, rank], dtype)], f"t.{dtype.name}", average=False)[0], tf.int32)
            .numpy()
            .tolist()
            for dtype in types
        ],
        "broadcast": world.broadcast(tf.constant([rank, -rank]), size - 1, "t.broadcast").numpy().tolist(),
        "bits": str(world.broadcast(tf.constant([float("nan"), -0.0, rank], tf.float16), 1, "t.bits").numpy().tolist()),
        "objects": world.allgather_object({"rank": rank, "text": "x" * rank}, "t.objects"),
        "object": world.broadcast_object(("from", rank), 1, "t.object"),
        "subset": subset and subset.allgather([tf.fill([rank + 1], rank)], "t.subset")[0].numpy().tolist(),
        "refused": refused,
    }


ONE_NODE: dict[str, dict[str, Any]] = {
    "sgd-frequency": {"steps": batches.STEPS},
    "adagrad-frequency": {"steps": batches.STEPS},
    "adam-frequency": {"steps": batches.STEPS},
    "adagrad-average": {"steps": 30, "tape": "distributed", "topology": "flat"},
    "sgd-sum": {"steps": 10, "eager": True, "collectives": "tf.distribute"},
}


def one_node(strategy: Any) -> dict[str, dict[str, Any]]:
    """Runs the cases in which all workers share tables."""
    names = sys.argv[1].partition(":")[2].split(",")
    runs = {
        name: loops.train(strategy, *name.split("-"), **options) for name, options in ONE_NODE.items() if name in names
    }
    if "fit" not in names:
        return runs
    if _keras.IS_KERAS_3:
        try:
            loops.fit(strategy, True)
        except ValueError as error:
            runs["fit"] = {"error": np.array(f"{type(error).__name__}: {error}")}
    else:
        runs |= {"ours": loops.fit(strategy, True, steps_per_execution=3), "keras": loops.fit(strategy, False)}
    return runs


def begin_apart(strategy: Any, rank: int, *, graph: bool) -> list[Any]:
    """Trains a weight that has a different value on each worker.

    Returns:
      The weight after its creation, and the weight and the rows after each of two steps.
    """
    with strategy.scope():
        table, weight = tsps.Embedding(2, 1, "zeros"), tf.Variable(1.0 + rank)
        table.build(None)
        optimizer = tsps.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    values = [float(weight.values[0])]
    weight.values[0].assign(2.0 + rank)

    def replica_step() -> None:
        with tf.GradientTape() as tape:
            loss = weight * (1.0 + 2.0 * rank) + tf.reduce_sum(table(tf.constant([rank], tf.int64)))
            loss /= strategy.num_replicas_in_sync
        variables = [weight, *table.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def step() -> None:
        strategy.run(replica_step)

    run_step = tf.function(step) if graph else step
    for _ in range(2):
        run_step()
        values.append([float(weight.values[0]), *np.asarray(table(tf.range(2))).ravel().tolist()])
    return values


def several_nodes(strategy: Any) -> dict[str, dict[str, Any]]:
    """Runs the cases in which some workers share tables, and leaders exchange gradients."""
    return {
        "adagrad-frequency": loops.train(strategy, "adagrad", "frequency", 60),
        "sgd-average": loops.train(strategy, "sgd", "average", 20, topology="flat", clip=1e9),
        "adagrad-sum": loops.train(strategy, "adagrad", "sum", 20, wire="bfloat16"),
    }


def sharded(strategy: Any) -> dict[str, dict[str, Any]]:
    """Runs the cases in which each worker has a part of some tables."""
    placement = tsps.Sharded()
    runs = {
        "adagrad-frequency": loops.train(strategy, "adagrad", "frequency", 40, placement=placement),
        "sgd-average": loops.train(strategy, "sgd", "average", 10, placement=placement, eager=True),
    }
    if not _keras.IS_KERAS_3:
        options: dict[str, Any] = {"steps_per_execution": 3}
        runs |= {"ours": loops.fit(strategy, True, placement=placement, **options)}
        runs |= {"keras": loops.fit(strategy, False)}
    return runs


def refused_beside_others(strategy: Any) -> str:
    """Returns the error of a sharded table when workers share a machine."""
    with strategy.scope():
        layer = tsps.Embedding(None, 4, placement=tsps.Sharded(), name="words")
        try:
            layer.build(None)
        except UnsupportedError as error:
            return str(error)
    return "no error"


def meet(folder: Path, name: str, world: Any) -> None:
    """Waits for all workers without a collective operation, for a minute at most."""
    (folder / f"{name}-{world.rank}").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob(f"{name}-*"))) < world.size and time.monotonic() < until:
        time.sleep(0.05)


def main() -> None:
    """Runs everything that the tests check."""
    which, folder = sys.argv[1].partition(":")[0], Path(sys.argv[2])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        world = tsps.collectives.current()
    report: dict[str, Any] = {} if which == "sharded" else {"operations": operations(world)}
    if which == "one":
        report["sharded"] = refused_beside_others(strategy)
    for name, arrays in {"one": one_node, "nodes": several_nodes, "sharded": sharded}[which](strategy).items():
        np.savez(folder / f"{name}-{world.rank}.npz", **arrays)
    variables = [tf.Variable(float(world.rank)), tf.Variable([world.rank, 7])]
    initial_sync.broadcast_variables(variables, 1, world)
    group = tsps.job.current()
    if which == "one":
        report["apart"] = {"graph": begin_apart(strategy, world.rank, graph=True)}
        report["apart"]["eager"] = begin_apart(strategy, world.rank, graph=False)
    report |= {
        "broadcast variables": [variable.numpy().tolist() for variable in variables],
        "places": [world.rank, world.size, world.local_rank, world.local_size, world.cross_rank, world.cross_size],
        "group": group.group_path,
        "leaders": group.leaders,
        "job outside of the scope": tsps.collectives.current() is world,
    }
    try:
        tsps.DistributedOptimizer("sgd", collectives="local")
    except ValueError as error:
        report["local"] = str(error)
    (folder / f"found-{world.rank}.json").write_text(json.dumps(report))
    world.barrier("test.written")
    if which == "nodes":  # an operation that the other ranks do not call ends with an error
        # The first failing worker aborts the others' operations, and TensorFlow may end them when a worker has ended.
        # So no worker begins before all have left the barrier, and none ends before all have reported their error.
        meet(folder, "left", world)
        os.environ["TFSPS_TIMEOUT_S"] = "3"
        try:
            world.allreduce([tf.zeros([])], f"t.alone.{world.rank}", average=False)
        except CollectivesError as error:
            (folder / f"alone-{world.rank}").write_text(str(error))
        meet(folder, "ended", world)


if __name__ == "__main__":
    main()
