"""`Shard`: which part of a table a node has, where a job has spread its rows over nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table
from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.table.arrays import Keys


class Shard(NamedTuple):
    """The keys that a hash gives to one of several nodes.

    Attributes:
      node: From 0 on.
      nodes: Of the job that made the table, 2 or more.
    """

    node: int
    nodes: int

    def __str__(self) -> str:
        return f"node {self.node} of {self.nodes}"

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Shard | None:
        """Of what the core says of a table, or of a sparse-parameter file. None: it is a whole table."""
        return cls(info["node"], info["nodes"]) if info["nodes"] else None

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of the keys, int64[n], are of this shard: bool[n]."""
        mine: npt.NDArray[np.bool_] = _table.owners(keys, self.nodes) == self.node
        return mine

    def check(self, keys: Keys, path: str) -> None:
        """Raises InvalidArgumentError for keys of other shards, naming one, its owner, and the table's `path`."""
        owners = _table.owners(keys.reshape(-1), self.nodes)
        others = np.flatnonzero(owners != self.node)
        if len(others):
            first = others[0]
            raise InvalidArgumentError(
                f"table {path} has the rows of {self} alone, and key {keys.reshape(-1)[first]} is on node "
                f"{owners[first]}: its row is in that node's shard"
            )


def describe(shard: Shard | None) -> str:
    """For messages."""
    return "a whole table" if shard is None else f"the rows of {shard} alone"


def check_restores(file: str, of_file: Shard | None, path: str, own: Shard | None) -> None:
    """Raises StateError if the content of a file with rows of a shard would become the whole content of a table.

    Args:
      file: The file, with rows of the shard `of_file`.
      path: The table, which is the shard `own`.
    """
    if of_file is not None and of_file != own:
        raise StateError(
            f"{file} has {describe(of_file)}, table {path} is for {describe(own)}: rows would be missing. Load the "
            "files of all nodes one after another with load_parameter_file()"
        )
