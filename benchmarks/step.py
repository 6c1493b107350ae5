"""The step suite: 1M rows x 64 floats, 213k Zipf(1.05) ids, Adagrad, against keras.layers.Embedding."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness, rules, steps


def run(options: harness.Options) -> list[harness.Result]:
    """Compares our hashed table, which takes any int64 key, with Keras's dense one, which takes only 0 .. 1M - 1."""
    rows, dim, count = (10_000, 64, 2_130) if options.quick else (1_000_000, 64, 213_000)
    ids = [tf.constant(batch) for batch in harness.zipf_ids(rows, count, batches=8)]
    gradients = [tf.constant(gradient) for gradient in harness.normal_gradients(count, dim)]
    next_ids, next_gradients = harness.Cycle(ids), harness.Cycle(gradients)

    table = tsps.Embedding(None, dim)
    dense = keras.layers.Embedding(rows, dim)
    table(ids[0]), dense(ids[0])
    our_lookup, keras_lookup = steps.lookup(table), steps.lookup(dense)
    our_step, keras_step = steps.train_step(table, rules.ours()), steps.train_step(dense, rules.adagrad())
    steps.fill(our_step, rows, dim)

    sizes = f"{rows:,} x {dim}, {count:,} ids ({np.unique(ids[0]).size:,} unique)"
    results = harness.compare(
        "step",
        f"lookup, {sizes}",
        {"keras, dense": lambda: keras_lookup(next_ids()), "ours, hashed": lambda: our_lookup(next_ids())},
        peer="keras, dense",
        options=options,
        calls=9,
    )
    return results + harness.compare(
        "step",
        f"lookup + backward + Adagrad, {sizes}",
        {
            "keras": lambda: keras_step(next_ids(), next_gradients()),
            "ours": lambda: our_step(next_ids(), next_gradients()),
        },
        peer="keras",
        options=options,
    )
