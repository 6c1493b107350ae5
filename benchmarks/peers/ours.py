"""tf_sparse_ps.Embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

import tf_sparse_ps as tsps
from benchmarks.peers import tensorflow_work


def make(
    rule: str,
    dtype: str = "float32",
    policy: str = "float32",
    *,
    rows: int,
    dim: int,
    ids: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    threads: int,
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Lookup and step of an unbounded table that has all rows.

    Args:
        rule: "adagrad" or "rowwise_adagrad".
        dtype: of the rows.
        policy: of the layer.
        rows, dim: of the table.
        ids, gradients: batches.
        threads: for TensorFlow.
    """
    tensorflow_work.set_threads(threads)
    layer = tsps.Embedding(None, dim, table=tsps.TableConfig("peer", dim, dtype=dtype), dtype=policy)
    layer.build(None)
    rate = tensorflow_work.LEARNING_RATE
    sparse = tsps.optimizers.RowwiseAdagrad() if rule == "rowwise_adagrad" else None
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(rate), sparse_optimizer=sparse)
    return tensorflow_work.cases(layer, optimizer, ids, gradients, fill=rows)
