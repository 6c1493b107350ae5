"""FBGEMM's table-batched embedding on the CPU. Its backward pass includes the update."""

from __future__ import annotations

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks import harness
from benchmarks.peers import Calls, Work


def one_table(work: Work, rule: str) -> Calls:
    """Makes the calls of lookup and step, with a bag for each id.

    Args:
        work: The work.
        rule: The name of an EmbOptimType.
    """
    torch.set_num_threads(work.threads)
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(work.rows, work.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType[rule],
        learning_rate=harness.LEARNING_RATE,
        pooling_mode=PoolingMode.SUM,
    )
    offsets = torch.arange(len(work.ids[0]) + 1)
    next_ids = harness.Cycle([torch.from_numpy(batch) for batch in work.ids])
    next_gradients = harness.Cycle([torch.from_numpy(batch) for batch in work.gradients])

    def look() -> None:
        with torch.no_grad():
            table(next_ids(), offsets)

    def step() -> None:
        table(next_ids(), offsets).backward(next_gradients())

    return look, step
