"""One rank of a job of two nodes that initialises Horovod before it imports tf_sparse_ps, and then trains with "flat".

Argument: the folder for the outcome of the first attempt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.tensorflow as hvd

hvd.init()

import tensorflow as tf  # noqa: E402

import tf_sparse_ps as tsps  # noqa: E402


def step(topology: str) -> None:
    """Makes one eager step of a table."""
    layer = tsps.Embedding(None, 4)
    layer.build(None)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1, 2], tf.int64)))
    optimizer = tsps.DistributedOptimizer("sgd", topology=topology)
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def main() -> None:
    """Tries both topologies."""
    try:
        step("hierarchical")
    except RuntimeError as error:
        (Path(sys.argv[1]) / f"error-{hvd.rank()}").write_text(str(error))
    step("flat")


if __name__ == "__main__":
    main()
