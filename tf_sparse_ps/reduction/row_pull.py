"""The exchange between nodes in a pull of rows: keys go to the nodes that own them, rows come back."""

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
    """All of a pull behind `pull.ask`. Every rank calls it.

    Args:
      pull: The parts of it.
      asked: What `pull.ask` returned.
      keys: T of int64[u_t], which it was given.
      tables: T paths, uuids and widths of rows.
      group: `NodeExchange.cross_node_group()`.
      name: Of what goes between nodes, the same on all ranks.

    Returns:
      As of `pull.take`.
    """
    (buffer, splits), (paths, uuids, dims) = asked, tables
    if group is not None:
        wanted, _ = group.alltoall(buffer, splits, f"{name}.keys")
        served, splits = pull.serve(wanted, paths, uuids)
        buffer, _ = group.alltoall(served, splits, f"{name}.rows")
    return pull.take(buffer, keys, paths, uuids, dims)
