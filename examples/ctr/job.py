"""Trains a click-through-rate model on one rank, and writes the report."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from ctr import report
from ctr.generator import PlantedModel
from ctr.models import MODELS
from ctr.source import ClickData
from ctr.text_files import Avazu, Criteo
from support import cache, launch, metrics, schedules, storage
from support.progress import Progress

_TEST_BATCH = 4096


def run(options: argparse.Namespace) -> int:
    """Trains, evaluates and reports. Returns the exit status."""
    ranks = launch.begin_rank(options.seed)
    try:
        data = open_data(options)
        dataset, steps = data.train(options.batch, ranks.rank, ranks.size)
    except ValueError as error:
        print(f"train_ctr: {error}", file=sys.stderr)
        return 2

    with storage.make(options, ranks) as rows:
        return train(options, data, dataset, steps, ranks, rows)


def train(
    options: argparse.Namespace, data: ClickData, dataset: tf.data.Dataset, steps: int, ranks: Any, rows: Any
) -> int:
    """Trains the model and writes the report. `rows`: the storage of the tables. See `run`."""
    leader = ranks.rank == 0
    caches = cache.make(options, dict(zip(data.features, data.distinct_ids, strict=True)))
    model = MODELS[options.model](data.features, options.dim, options.dtype, rows, storage.placement(options), caches)
    # This call builds the model, so that its weights exist for the broadcast before the first step.
    model({"dense": tf.zeros([1, data.dense_width]), "ids": tf.zeros([1, len(data.features)], tf.int64)})
    model.compile(
        tsps.DistributedOptimizer(make_optimizer(options), schedule=schedules.make(options)),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )

    total_steps = steps * options.epochs
    evaluations = min(options.evaluations, total_steps)
    per_evaluation = total_steps // evaluations
    progress = Progress(
        total_steps=per_evaluation * evaluations,
        samples_per_step=options.batch * ranks.size,
        show=leader,
        disk=options.storage == "tiered",
    )
    # All ranks must look up sharded tables together, so all of them evaluate.
    all_evaluate = options.placement == "sharded"
    curve = Evaluation(data, progress, per_evaluation) if leader or all_evaluate else None
    model.fit(
        storage.ahead(dataset.repeat(options.epochs), model, options),
        epochs=evaluations,
        steps_per_epoch=per_evaluation,
        callbacks=[tsps.callbacks.BroadcastVariables(), tsps.callbacks.Drain(), progress, *([curve] if curve else [])],
        verbose=0,
        shuffle=False,
    )
    usage = report.measure(ranks, model)
    if curve is not None and leader:
        planted = data.planted_auc() if isinstance(data, PlantedModel) else None
        report.write(options, data.name, ranks, curve, planted, progress, usage)
    return 0


def open_data(options: argparse.Namespace) -> ClickData:
    """Opens the data source that `--data` names.

    Raises:
        ValueError: a file is missing or has another format.
    """
    if options.data == "generator":
        return PlantedModel(samples=options.samples, test_samples=options.test_samples, seed=options.seed)
    return {"criteo": Criteo, "avazu": Avazu}[options.data](options.path, options.test_path)


def make_optimizer(options: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Makes the Keras optimizer that `--optimizer` names. The tables use the same rule."""
    if options.optimizer == "adam":
        return keras.optimizers.Adam(options.learning_rate)
    # Keras's initial accumulators of 0.1 are much larger than the squared gradients of a mean loss. With them, rows
    # would hardly change.
    return keras.optimizers.Adagrad(options.learning_rate, initial_accumulator_value=1e-6)


class Evaluation(keras.callbacks.Callback):
    """Scores the held-out data after every epoch, on rank 0 or, if tables are sharded, on all ranks.

    Attributes:
        points: (step, AUC, log loss) after each epoch.
    """

    def __init__(self, data: ClickData, progress: Progress, steps_per_epoch: int) -> None:
        super().__init__()
        self.points: list[tuple[int, float, float]] = []
        self._data = data
        self._progress = progress
        self._steps = steps_per_epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds a point to the curve."""
        score = tf.function(self.model, reduce_retracing=True) if not self.points else self._score
        self._score = score
        labels, logits = [], []
        for inputs, label in self._data.test(_TEST_BATCH):
            labels.append(label.numpy())
            logits.append(score(inputs, training=False).numpy()[:, 0])
        label, logit = np.concatenate(labels), np.concatenate(logits)
        self.points.append(((epoch + 1) * self._steps, metrics.auc(label, logit), metrics.log_loss(label, logit)))
        self._progress.say(f"step {self.points[-1][0]}: held-out AUC {self.points[-1][1]:.4f}")
