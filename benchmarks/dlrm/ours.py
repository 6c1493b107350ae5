"""DLRM of `make train`: an `EmbeddingCollection` of unbounded tables, which the ranks share."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.dlrm import tensorflow_work
from benchmarks.dlrm.job import Settings, Work
from ctr.generator import PlantedModel
from ctr.models import Dlrm


def make(settings: Settings) -> Work:
    """Returns the work of this rank."""
    import tf_sparse_ps as tsps

    tensorflow_work.set_threads(settings)
    ranks = tsps.init()
    model = Dlrm(PlantedModel.features, settings.dim, bottom=settings.bottom, top=settings.top)
    tensorflow_work.build(model)
    optimizer = tsps.DistributedOptimizer(tensorflow_work.adagrad(settings))

    @tf.function
    def step(inputs: Any, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tensorflow_work.loss(model, inputs, labels)
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    return tensorflow_work.work(
        model, step, ranks.rank, ranks.size, lambda number: ranks.allgather_object(number, "bench.numbers")
    )
