"""DLRM of `keras.layers.Embedding`: a replica in each rank, whose gradients Horovod reduces, as IndexedSlices."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.dlrm import tensorflow_work
from benchmarks.dlrm.job import Settings, Work


def make(settings: Settings) -> Work:
    """Returns the work of this rank."""
    tensorflow_work.set_threads(settings)
    hvd.init()
    model = tensorflow_work.KerasDlrm(settings)
    tensorflow_work.build(model)
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer = tensorflow_work.adagrad(settings)

    @tf.function
    def step(inputs: Any, labels: tf.Tensor) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tensorflow_work.loss(model, inputs, labels)
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    def gather(number: float) -> list[float]:
        numbers: list[float] = hvd.allgather(tf.constant([number], tf.float64)).numpy().tolist()
        return numbers

    return tensorflow_work.work(model, step, hvd.rank(), hvd.size(), gather)
