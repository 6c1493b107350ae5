"""One rank of a job whose ranks are configured differently, in several ways one after another.

Every rank records the outcome of each way. Argument: the folder for results.
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

import tf_sparse_ps as tsps
from benchmarks.operation_counts import operation_counts
from tf_sparse_ps import _version, callbacks
from tf_sparse_ps.training import initial_sync

keras = tf.keras


def step(layers: list[Any], optimizer: Any, dense: list[tf.Variable], scale: float = 1.0) -> None:
    """Makes one eager step."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(layer(tf.constant([1, 2, 3], tf.int64))) for layer in layers])
        loss = scale * loss + tf.add_n([tf.reduce_sum(weight**2) for weight in dense])
    variables = [*(layer.trainable_variables[0] for layer in layers), *dense]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def built(*arguments: Any, **options: Any) -> Any:
    """Returns a layer with its table."""
    layer = tsps.Embedding(*arguments, **options)
    layer.build(None)
    return layer


def per_rank(usual: Any, on_rank_2: Any) -> Any:
    """Returns one value on rank 2, and another on all other ranks."""
    return on_rank_2 if this_rank.rank() == 2 else usual


def reduction() -> None:
    step([built(None, 4)], tsps.DistributedOptimizer("sgd", sparse_reduction=per_rank("frequency", "sum")), [weight()])


def topology() -> None:
    step([built(None, 4)], tsps.DistributedOptimizer("sgd", topology=per_rank("flat", "hierarchical")), [weight()])


def wire() -> None:
    step([built(None, 4)], tsps.DistributedOptimizer("sgd", wire=per_rank("float32", "bfloat16")), [weight()])


def rule() -> None:
    chosen = per_rank(tsps.optimizers.Adagrad(), tsps.optimizers.Adagrad(initial_accumulator_value=0.2))
    step([built(None, 4)], tsps.DistributedOptimizer("sgd", sparse_optimizer=chosen), [weight()])


def bound() -> None:
    step([built(per_rank(10, 11), 4)], tsps.DistributedOptimizer("sgd"), [weight()])


def dense_shape() -> None:
    step([built(None, 4)], tsps.DistributedOptimizer("sgd"), [tf.Variable(tf.ones([per_rank(2, 3)]))])


def clipping() -> None:
    step(
        [built(None, 4)], tsps.DistributedOptimizer(keras.optimizers.SGD(0.1, clipnorm=per_rank(1.0, 2.0))), [weight()]
    )


def version() -> None:
    own = _version.__version__
    _version.__version__ = per_rank("0.1.0", "0.2.0")
    try:
        step([built(None, 4)], tsps.DistributedOptimizer("sgd"), [weight()])
    finally:
        _version.__version__ = own


def leader_fails() -> None:
    # Only the leaders write. An error that they find must end the other ranks, too.
    layer = built(None, 4)
    step([layer], tsps.DistributedOptimizer("sgd", sparse_optimizer="adagrad"), [weight()])
    if this_rank.local_rank() == 0:
        layer.bindings[0].optimizer = None  # like in a process that attaches to the table
    step([layer], tsps.DistributedOptimizer("sgd", sparse_optimizer="adam"), [weight()])


def broadcast_shapes() -> None:
    variables = [tf.Variable(tf.ones([per_rank(2, 3)]))]
    initial_sync.broadcast_variables(variables, 0, tsps.collectives.current())


def callback_on_some_ranks() -> None:
    inputs = keras.Input([1], dtype="int64")
    model = keras.Model(inputs, keras.layers.Flatten()(tsps.Embedding(None, 1)(inputs)))
    model.compile(tsps.DistributedOptimizer("sgd"), "mse")
    checkpoint = callbacks.Checkpoint("/dev/null/never-made", every_steps=1)
    data = checkpoint.dataset(lambda _: tf.data.Dataset.from_tensors((tf.ones([2, 1], tf.int64), tf.ones([2, 1]))))
    model.fit(data, verbose=0, callbacks=per_rank([checkpoint], []))


def weight() -> tf.Variable:
    """Returns a dense weight."""
    return tf.Variable([1.0, 2.0])


def not_finite() -> None:
    step([built(None, 4)], tsps.DistributedOptimizer("sgd"), [weight()], scale=float("nan"))


def collectives_work() -> dict[str, Any]:
    """Runs every operation on inputs that invite grappler to fold, merge or drop it; returns the results as lists."""
    world, rank = tsps.collectives.current(), this_rank.rank()
    total = tf.Variable(0.0)

    @tf.function
    def step() -> tf.Tensor:
        (constant,) = world.allreduce([tf.constant(2.0)], "t.constant", average=False)
        (same,) = world.allreduce([tf.constant(2.0)], "t.same", average=False)
        world.allgather([tf.ones([rank, 2])], "t.unused")  # no op needs the result
        if rank == 1:
            total.assign_add(constant + same)  # only rank 1 needs the result
        return total.read_value()

    @tf.function
    def steps() -> tf.Tensor:
        for _ in range(3):  # unrolled: one name three times in a graph
            result = step()
        for _ in tf.range(2):
            result = step()
        return result

    last = steps()
    before = {name: count for name, count in operation_counts(world).items() if name.startswith("t.")}
    rows, counts = world.alltoall(tf.range(world.size * 2) + 100 * rank, tf.fill([world.size], 2), "t.alltoall")
    ragged = world.allgather([tf.fill([rank], rank), tf.fill([rank, 1], float(rank)), tf.zeros([0, 3])], "t.ragged")
    means = world.allreduce([tf.constant([float(rank)]), tf.constant([1.0, rank], tf.float64)], "t.means")
    return {
        "last": float(last),
        "enqueued": before,
        "alltoall": [rows.numpy().tolist(), counts.numpy().tolist()],
        "ragged": [values.numpy().tolist() for values in ragged],
        "means": [values.numpy().tolist() for values in means],
        "broadcast": world.broadcast(tf.constant([rank, -rank]), 3, "t.broadcast").numpy().tolist(),
        "objects": world.allgather_object({"rank": rank, "text": "x" * rank}, "t.objects"),
        "object": world.broadcast_object(("from", rank), 1, "t.object"),
    }


WAYS: list[Callable[[], None]] = [
    reduction,
    topology,
    wire,
    rule,
    bound,
    dense_shape,
    clipping,
    version,
    leader_fails,
    broadcast_shapes,
    callback_on_some_ranks,
]


def main() -> None:
    """Tries every way, and then trains, to show that no operation is left hanging."""
    this_rank.init()
    outcomes: dict[str, Any] = {"collectives": collectives_work()}
    outcomes |= this_rank.outcomes_of(WAYS)
    explicit = built(
        6, 3, embeddings_initializer=lambda shape, dtype=None: np.full(shape, this_rank.rank(), np.float32)
    )
    outcomes["explicit before"] = np.asarray(explicit(tf.range(6))).tolist()
    step([explicit], tsps.DistributedOptimizer("sgd"), [weight()])
    outcomes["explicit"] = np.asarray(explicit(tf.range(6))).tolist()
    (Path(sys.argv[1]) / f"outcomes-{this_rank.rank()}.json").write_text(json.dumps(outcomes))
    tsps.collectives.current().barrier("test.written")
    not_finite()  # the leaders refuse the step, and no rank may wait for it


if __name__ == "__main__":
    main()
