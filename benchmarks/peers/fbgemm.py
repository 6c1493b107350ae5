"""FBGEMM's table-batched embedding on the CPU, whose backward pass is the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks import harness

LEARNING_RATE = 0.01


def make(
    rule: str,
    *,
    rows: int,
    dim: int,
    ids: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    threads: int,
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Lookup and step; a bag for each id.

    Args:
        rule: name of an EmbOptimType.
        rows, dim: of the table.
        ids, gradients: batches.
        threads: for torch.
    """
    torch.set_num_threads(threads)
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType[rule],
        learning_rate=LEARNING_RATE,
        pooling_mode=PoolingMode.SUM,
    )
    offsets = torch.arange(len(ids[0]) + 1)
    next_ids = harness.Cycle([torch.from_numpy(one) for one in ids])
    next_gradients = harness.Cycle([torch.from_numpy(one) for one in gradients])

    def look() -> None:
        with torch.no_grad():
            table(next_ids(), offsets)

    def step() -> None:
        table(next_ids(), offsets).backward(next_gradients())

    return look, step
