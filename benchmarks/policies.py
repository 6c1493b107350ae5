"""The policies suite: the training step of the suite `step` on tables with policies, against the same without."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness, rules, steps


def run(options: harness.Options) -> list[harness.Result]:
    """Runs the step with each policy.

    A table at its bound looks at 1,024 rows per step. With a lower bound it evicts rows, and makes them again. With
    admission, all keys have rows, except in "counting keys", where most wait for their third occurrence.
    """
    rows, dim, count = (10_000, 64, 2_130) if options.quick else (1_000_000, 64, 213_000)
    ids = [tf.constant(batch) for batch in harness.zipf_ids(rows, count, batches=8)]
    gradients = [tf.constant(gradient) for gradient in harness.normal_gradients(count, dim)]
    next_ids, next_gradients = harness.Cycle(ids), harness.Cycle(gradients)
    admission, eviction = tsps.Admission(2, rows), tsps.Eviction(100_000, max_rows=rows)
    policies: dict[str, dict[str, Any]] = {
        "without policies": {},
        "with eviction": {"eviction": eviction},
        "evicting rows": {"eviction": tsps.Eviction(100_000, max_rows=rows * 9 // 10)},
        "with admission": {"admission": admission},
        "with both": {"admission": admission, "eviction": eviction},
        "counting keys": {"admission": tsps.Admission(3, rows, half_life=10)},
    }
    variants = {}
    for name, of_table in policies.items():
        table = tsps.Embedding(None, dim, **of_table)
        table(ids[0])
        step = steps.train_step(table, rules.ours())
        for _ in range(1 if name == "counting keys" else 2):  # the second makes rows of admitted keys
            steps.fill(step, rows, dim)
        variants[name] = functools.partial(_call, step, next_ids, next_gradients)
    return harness.compare(
        "policies",
        f"lookup + backward + Adagrad, {rows:,} x {dim}, {count:,} ids ({np.unique(ids[0]).size:,} unique)",
        variants,
        peer="without policies",
        options=options,
    )


def _call(step: Callable[..., Any], next_ids: Callable[[], Any], next_gradients: Callable[[], Any]) -> None:
    step(next_ids(), next_gradients())
