"""`rows_for`: sends the keys of a pull to the nodes that own them, and receives their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives


def rows_for(
    pull: _ops.Pull,
    asked: tuple[tf.Tensor, tf.Tensor],
    keys: Sequence[tf.Tensor],
    tables: tuple[Sequence[tf.Tensor], Sequence[Any], Sequence[int]],
    group: Collectives | None,
    name: str,
) -> list[tf.Tensor]:
    """Completes a pull after `pull.ask`. Every rank calls it.

    Args:
      pull: The ops of the pull.
      asked: The results of `pull.ask`.
      keys: The keys that `pull.ask` was called with, T of int64[u_t].
      tables: The paths, uuids and row widths of T tables.
      group: The result of `NodeExchange.cross_node_group()`.
      name: The name of the collectives between nodes, the same on all ranks.

    Returns:
      The rows, as `pull.take` returns them.
    """
    (buffer, splits), (paths, uuids, dims) = asked, tables
    if group is not None:
        wanted, _ = group.alltoall(buffer, splits, f"{name}.keys")
        served, splits = pull.serve(wanted, paths, uuids)
        buffer, _ = group.alltoall(served, splits, f"{name}.rows")
    return pull.take(buffer, keys, paths, uuids, dims)
