"""DLRM of TorchRec: an `EmbeddingBagCollection` whose tables are spread over the ranks, with gloo, on CPUs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingEnv, ShardingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from benchmarks.dlrm.clicks import DENSE, FEATURES, Batch
from benchmarks.dlrm.job import Settings, Work

_NAMES = [f"C{number + 1}" for number in range(FEATURES)]


class Dlrm(nn.Module):
    """DLRM as in examples/ctr/models.py."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embeddings = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=settings.dim,
                    num_embeddings=rows,
                    feature_names=[name],
                    init_fn=lambda weight: nn.init.uniform_(weight, -0.05, 0.05),
                )
                for name, rows in zip(_NAMES, settings.tables, strict=True)
            ]
        )
        self.bottom = _mlp(DENSE, (*settings.bottom, settings.dim))
        self.top = _mlp(settings.dim + (FEATURES + 1) ** 2, settings.top)
        self.top.append(_linear(settings.top[-1], 1))
        self.dim = settings.dim

    def forward(self, dense: torch.Tensor, ids: KeyedJaggedTensor) -> torch.Tensor:
        """Returns logits, float32[batch]. `dense`: float32[batch, 13]."""
        bottom = self.bottom(dense)
        rows = self.embeddings(ids).values().view(-1, FEATURES, self.dim)
        vectors = torch.cat([bottom[:, None], rows], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        logits: torch.Tensor = self.top(torch.cat([bottom, products.flatten(1)], dim=1))
        return logits[:, 0]


def _mlp(width: int, widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in zip((width, *widths), widths, strict=False):
        layers += [_linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers)


def _linear(inner: int, outer: int) -> nn.Linear:
    layer = nn.Linear(inner, outer)
    nn.init.xavier_uniform_(layer.weight)  # Keras's initial weights
    nn.init.zeros_(layer.bias)
    return layer


def make(settings: Settings) -> Work:
    """Returns the work of this rank."""
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "0")
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    dist.init_process_group("gloo", rank=rank, world_size=size)

    model = Dlrm(settings)
    rule = {"lr": settings.learning_rate, "eps": settings.epsilon**0.5}
    apply_optimizer_in_backward(torch.optim.Adagrad, model.embeddings.parameters(), dict(rule))
    sharder: Any = EmbeddingBagCollectionSharder()
    # Whole tables: gloo has no reduce-scatter, which tables that are spread by rows need.
    whole = ParameterConstraints(sharding_types=[ShardingType.TABLE_WISE.value])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=size, compute_device="cpu", local_world_size=size),
        constraints=dict.fromkeys(_NAMES, whole),
    )
    plan = planner.collective_plan(model, [sharder], dist.group.WORLD)
    parallel = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=plan,
        sharders=[sharder],
    )
    dense = [parameter for name, parameter in parallel.named_parameters() if "embeddings" not in name]
    optimizer = torch.optim.Adagrad(dense, **rule)
    loss = nn.BCEWithLogitsLoss()

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        loss(parallel(*_inputs(batch)), torch.from_numpy(batch.labels)).backward()
        optimizer.step()

    def score(batch: Batch) -> NDArray[np.float32]:
        with torch.no_grad():
            logits: NDArray[np.float32] = parallel(*_inputs(batch)).numpy()
            return logits

    def gather(number: float) -> list[float]:
        numbers: list[Any] = [None] * size
        dist.all_gather_object(numbers, number)
        return numbers

    return Work(rank, size, step, score, gather)


def _inputs(batch: Batch) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    ids = torch.from_numpy(np.ascontiguousarray(batch.ids.T).reshape(-1))
    lengths = torch.ones(len(ids), dtype=torch.int32)
    return torch.from_numpy(batch.dense), KeyedJaggedTensor(_NAMES, ids, lengths=lengths)
