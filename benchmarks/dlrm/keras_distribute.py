"""DLRM of `keras.layers.Embedding`: a replica in each worker of a MultiWorkerMirroredStrategy."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from benchmarks.dlrm import tensorflow_work
from benchmarks.dlrm.job import Settings, Work


def make(settings: Settings) -> Work:
    """Returns the work of this worker."""
    tensorflow_work.set_threads(settings)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    size = strategy.num_replicas_in_sync
    with strategy.scope():
        model = tensorflow_work.KerasDlrm(settings)
        tensorflow_work.build(model)
        optimizer = tensorflow_work.adagrad(settings)

    def replica_step(inputs: Any, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tensorflow_work.loss(model, inputs, labels) / size
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    @tf.function
    def step(inputs: Any, labels: tf.Tensor) -> None:
        strategy.run(replica_step, (inputs, labels))

    @tf.function
    def gather(number: tf.Tensor) -> tf.Tensor:
        return strategy.gather(strategy.run(lambda value: value[None], (number,)), axis=0)

    cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))
    return tensorflow_work.work(
        model,
        step,
        cluster.get("task", {}).get("index", 0),
        size,
        lambda number: gather(tf.constant(number, tf.float64)).numpy().tolist(),
    )
