"""The served_rows suite: the quality of models that are served with rows in fewer bytes.

It trains the DLRM of examples/train_ctr.py on generated clicks, and the NeuMF of examples/ncf.py on generated
preferences, or on the files that `--movielens` names. Each model is trained once, and exported with each type of rows.
The versions are loaded, and evaluated on the same held-out data.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tf_sparse_ps as tsps
from benchmarks import harness

sys.path.insert(0, os.fspath(Path(__file__).absolute().parents[1] / "examples"))

from ctr.generator import PlantedModel
from ctr.models import Dlrm
from neumf import movielens
from neumf.model import NeuMF
from support import metrics

_ROWS = ("float32", "bfloat16", "float16", "int8")
_CUTOFF = 10
_CASES = 100  # per batch


def run(options: harness.Options) -> list[harness.Result]:
    """Returns the figures of all types of rows, and their differences to float32."""
    keras.utils.set_random_seed(1)  # the small cases train too few steps for quality that no seed changes
    return _clicks(options) + _preferences(options)


def _clicks(options: harness.Options) -> list[harness.Result]:
    samples, test_samples = (100_000, 20_000) if options.quick else (2_000_000, 200_000)
    data = PlantedModel(samples=samples, test_samples=test_samples)
    model = Dlrm(data.features, dim=16)
    model({"dense": tf.zeros([1, data.dense_width]), "ids": tf.zeros([1, len(data.features)], tf.int64)})
    model.compile(
        tsps.DistributedOptimizer(keras.optimizers.Adam(0.004)), loss=keras.losses.BinaryCrossentropy(from_logits=True)
    )
    batches, steps = data.train(8192, 0, 1)
    model.fit(batches, steps_per_epoch=steps, verbose=0)

    def auc(served: Callable[..., Any]) -> float:
        labels, logits = [], []
        for inputs, label in data.test(4096):
            labels.append(label.numpy())
            logits.append(np.asarray(served(inputs))[:, 0])
        return metrics.auc(np.concatenate(labels), np.concatenate(logits))

    return _compare(model, auc, "AUC", f"DLRM of 16, {samples:,} generated clicks")


def _preferences(options: harness.Options) -> list[harness.Result]:
    if options.movielens is None:
        users, items, epochs = (600, 300, 6) if options.quick else (4_000, 2_000, 6)
        data, source = _generated(users, items), f"{users:,} generated users"
    else:
        data, source, epochs = movielens.load(options.movielens), "MovieLens-1M", 4
    sampler = movielens.NegativeSampler(data, batch=512 if options.quick else 4096)
    model = NeuMF(data.user_count, data.item_count, factors=32, dropout=0.2)
    model({"user": tf.zeros([1], tf.int64), "item": tf.zeros([1], tf.int64)})
    model.compile(
        tsps.DistributedOptimizer(keras.optimizers.Adam(0.002)), loss=keras.losses.BinaryCrossentropy(from_logits=True)
    )
    ids = tf.TensorSpec([None], tf.int64)
    batches = tf.data.Dataset.from_generator(
        lambda: sampler.batches(epochs),
        output_signature=({"user": ids, "item": ids}, tf.TensorSpec([None], tf.float32)),
    )
    model.fit(batches.prefetch(4), epochs=epochs, steps_per_epoch=sampler.steps, verbose=0, shuffle=False)

    def hit_rate(served: Callable[..., Any]) -> float:
        scores = []
        for start in range(0, data.test_users.size, _CASES):
            candidates = data.candidates[start : start + _CASES]
            users = np.repeat(data.test_users[start : start + _CASES], candidates.shape[1])
            inputs = {"user": tf.constant(users), "item": tf.constant(candidates.reshape(-1))}
            scores.append(np.asarray(served(inputs)).reshape(candidates.shape))
        places = movielens.places(np.concatenate(scores), data.candidates)
        return metrics.hit_rate_and_ndcg(places, _CUTOFF)[0]

    return _compare(model, hit_rate, "HR@10", f"NeuMF-32, {source}, {epochs} epochs")


def _compare(
    model: keras.Model, evaluate: Callable[[Callable[..., Any]], float], figure: str, case: str
) -> list[harness.Result]:
    """Exports a model with each type of rows, and evaluates the versions."""
    figures, sizes = {}, {}
    with tempfile.TemporaryDirectory(prefix="tsps-served-rows-", dir="/var/tmp") as folder:
        for rows in _ROWS:
            path = tsps.export(model, Path(folder) / rows, rows=rows)
            figures[rows] = [evaluate(tsps.serving.load(path))]
            files = [file.stat().st_size for file in Path(path).rglob("*.serving")]
            sizes[rows] = [sum(files) / 1e6]
    lost = {rows: [figures["float32"][0] - figures[rows][0]] for rows in _ROWS[1:]}
    return [
        *harness.summarize("served_rows", f"{case}: {figure}", figures, peer="float32", unit=""),
        *harness.summarize("served_rows", f"{case}: {figure} lost", lost, peer=None, unit=""),
        *harness.summarize("served_rows", f"{case}: tables", sizes, peer="float32", unit="MB"),
    ]


def _generated(users: int, items: int, *, liked: int = 30, negatives: int = 99) -> movielens.LeaveOneOut:
    """Draws the items of users by a planted model of 8 factors. The first item of each user is held out."""
    draw = np.random.default_rng(0)
    of_users, of_items = draw.normal(0, 1, [users, 8]), draw.normal(0, 1, [items, 8])
    # The `liked` greatest sums of preference and Gumbel noise are a sample without replacement from the softmax.
    order = np.argsort(-(1.5 * of_users @ of_items.T + draw.gumbel(size=[users, items])), axis=1)
    chosen = order[:, :liked]
    chosen = draw.permuted(chosen, axis=1)
    others: NDArray[np.int64] = draw.permuted(order[:, liked:], axis=1)[:, :negatives]
    return movielens.LeaveOneOut(
        users=np.repeat(np.arange(users), liked - 1),
        items=chosen[:, 1:].reshape(-1),
        test_users=np.arange(users),
        candidates=np.concatenate([chosen[:, :1], others], axis=1),
        user_count=users,
        item_count=items,
    )
