"""Collectives of one process. They send nothing."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps.collectives.interface import Collectives


class LocalCollectives(Collectives):
    """The collectives of a job of one rank. They return their inputs."""

    kind = "local"
    rank = local_rank = cross_rank = 0
    size = local_size = cross_size = 1

    def allreduce(self, tensors: Sequence[tf.Tensor], name: str, *, average: bool = True) -> list[tf.Tensor]:
        """See `Collectives.allreduce`."""
        return list(tensors)

    def allgather(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """See `Collectives.allgather`."""
        return list(tensors)

    def alltoall(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Collectives.alltoall`."""
        return tensor, splits

    def broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        """See `Collectives.broadcast`."""
        return tensor

    def subset(self, ranks: Sequence[int]) -> LocalCollectives | None:
        """See `Collectives.subset`."""
        return self if list(ranks) == [0] else None

    def barrier(self, name: str) -> None:
        """See `Collectives.barrier`."""

    def broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        """See `Collectives.broadcast_object`."""
        return obj

    def allgather_object(self, obj: Any, name: str) -> list[Any]:
        """See `Collectives.allgather_object`."""
        return [obj]

    def at_exit(self, action: Callable[[], None]) -> None:
        """See `Collectives.at_exit`."""
        atexit.register(action)
