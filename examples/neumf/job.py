"""Trains NeuMF on one rank, and writes the report."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tf_sparse_ps as tsps
from neumf import movielens
from neumf.model import NeuMF
from support import launch, metrics, schedules
from support.progress import Progress

_CASES_PER_BATCH = 100
_CUTOFF = 10


def run(options: argparse.Namespace) -> int:
    """Trains, evaluates and reports. Returns the exit status."""
    ranks = launch.begin_rank(options.seed)
    leader = ranks.rank == 0
    batch = options.batch // ranks.size
    try:
        data = movielens.load(options.path, options.stem)
        sampler = movielens.NegativeSampler(
            data, negatives=options.negatives, batch=batch, rank=ranks.rank, ranks=ranks.size, seed=options.seed
        )
    except ValueError as error:
        print(f"ncf: {error}", file=sys.stderr)
        return 2

    model = NeuMF(data.user_count, data.item_count, options.factors, options.dropout, options.dtype)
    # This call builds the model, so that its weights exist for the broadcast before the first step.
    model({"user": tf.zeros([1], tf.int64), "item": tf.zeros([1], tf.int64)})
    model.compile(
        tsps.DistributedOptimizer(keras.optimizers.Adam(options.learning_rate), schedule=schedules.make(options)),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    ids = tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(
        lambda: sampler.batches(options.epochs),
        output_signature=({"user": ids, "item": ids}, tf.TensorSpec([None], tf.float32)),
    )
    progress = Progress(total_steps=sampler.steps * options.epochs, samples_per_step=batch * ranks.size, show=leader)
    ranking = Ranking(data, progress) if leader else None
    began = time.perf_counter()
    model.fit(
        dataset.prefetch(4),
        epochs=options.epochs,
        steps_per_epoch=sampler.steps,
        callbacks=[
            tsps.callbacks.BroadcastVariables(),
            tsps.callbacks.Drain(),
            progress,
            *([ranking] if ranking else []),
        ],
        verbose=0,
        shuffle=False,
    )
    if ranking is not None:
        report(options, ranks.size, batch, ranking, progress, time.perf_counter() - began)
    return 0


class Ranking(keras.callbacks.Callback):
    """Computes HR@10 and NDCG@10 after every epoch. It needs no collective, so one rank alone can run it.

    Attributes:
        epochs: (HR, NDCG, training loss of this rank) of each epoch.
    """

    def __init__(self, data: movielens.LeaveOneOut, progress: Progress) -> None:
        super().__init__()
        self.epochs: list[tuple[float, float, float]] = []
        self._data = data
        self._progress = progress
        self._score: Any = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ranks the held-out item of every user."""
        if self._score is None:
            self._score = tf.function(self.model, reduce_retracing=True)
        users, candidates = self._data.test_users, self._data.candidates
        scores = np.concatenate(
            [
                self._scores(users[start : start + _CASES_PER_BATCH], candidates[start : start + _CASES_PER_BATCH])
                for start in range(0, users.size, _CASES_PER_BATCH)
            ]
        )
        hit_rate, ndcg = metrics.hit_rate_and_ndcg(movielens.places(scores, candidates), _CUTOFF)
        loss = float((logs or {}).get("loss", float("nan")))
        self.epochs.append((hit_rate, ndcg, loss))
        self._progress.say(f"epoch {epoch + 1}: HR@10 {hit_rate:.4f}  NDCG@10 {ndcg:.4f}  loss {loss:.4f}")

    def _scores(self, users: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.float32]:
        inputs = {
            "user": tf.constant(np.repeat(users, items.shape[1])),
            "item": tf.constant(items.reshape(-1)),
        }
        return self._score(inputs, training=False).numpy().reshape(items.shape)


def report(
    options: argparse.Namespace, ranks: int, batch: int, ranking: Ranking, progress: Progress, seconds: float
) -> None:
    """Writes report.txt and report.json, and prints the report."""
    best = max(range(len(ranking.epochs)), key=lambda epoch: ranking.epochs[epoch][:2])

    def figures_of(epoch: int) -> str:
        hit_rate, ndcg, _ = ranking.epochs[epoch]
        return f"HR@10 {hit_rate:.4f}, NDCG@10 {ndcg:.4f}"

    text = [
        f"NeuMF-{options.factors} on {options.stem}, {ranks} rank{'s' * (ranks > 1)} x {batch} samples, "
        f"Adam {options.learning_rate:g}, dropout {options.dropout:g}",
        "  epoch   HR@10  NDCG@10    loss",
        *(
            f"  {epoch + 1:5d}  {hit_rate:.4f}   {ndcg:.4f}  {loss:.4f}"
            for epoch, (hit_rate, ndcg, loss) in enumerate(ranking.epochs)
        ),
        f"  best epoch by HR@10, {best + 1}: {figures_of(best)}",
        f"  last epoch, {len(ranking.epochs)}: {figures_of(-1)}",
        f"  {progress.samples_per_second:,.0f} samples/s, {seconds:.0f} s with the evaluations",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.txt").write_text("\n".join(text) + "\n")
    figures = {
        "epochs": [dict(zip(("hr", "ndcg", "loss"), epoch, strict=True)) for epoch in ranking.epochs],
        "best_epoch": best + 1,
        "ranks": ranks,
        "samples_per_second": progress.samples_per_second,
        "seconds": seconds,
        "options": {name: str(value) for name, value in vars(options).items()},
    }
    (options.out / "report.json").write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(text))
