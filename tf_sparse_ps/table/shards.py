"""`Shard`: the part of a sharded table that one node has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table
from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.table.arrays import Keys


class Shard(NamedTuple):
    """The keys that a hash assigns to one of several nodes.

    Attributes:
      node: The number of the node, counted from 0.
      nodes: The number of nodes of the job that made the table, 2 or more.
    """

    node: int
    nodes: int

    def __str__(self) -> str:
        return f"node {self.node} of {self.nodes}"

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Shard | None:
        """Returns the shard, given the core's description of a table or of a file. None: it is a whole table."""
        return cls(info["node"], info["nodes"]) if info["nodes"] else None

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns bool[n], which of the keys, int64[n], belong to this shard."""
        in_shard: npt.NDArray[np.bool_] = _table.owners(keys, self.nodes) == self.node
        return in_shard

    def check(self, keys: Keys, path: str) -> None:
        """Raises InvalidArgumentError if a key belongs to another shard. The message names the key and the `path`."""
        owners = _table.owners(keys.reshape(-1), self.nodes)
        elsewhere = np.flatnonzero(owners != self.node)
        if len(elsewhere):
            first = elsewhere[0]
            raise InvalidArgumentError(
                f"table {path} has the rows of {self} alone, and key {keys.reshape(-1)[first]} is on node "
                f"{owners[first]}. Use the table of that node"
            )


def describe(shard: Shard | None) -> str:
    """Returns a description of a shard or a whole table, for messages."""
    return "a whole table" if shard is None else f"the rows of {shard} alone"


def check_restores(file: str, file_shard: Shard | None, path: str, table_shard: Shard | None) -> None:
    """Raises StateError if a file has too few rows to be the whole content of a table.

    Args:
      file: The path of the file, for messages.
      file_shard: The shard whose rows the file has; None: it has the rows of a whole table.
      path: The path of the table, for messages.
      table_shard: The shard that the table is; None: a whole table.
    """
    if file_shard is not None and file_shard != table_shard:
        raise StateError(
            f"{file} has {describe(file_shard)}, and table {path} is for {describe(table_shard)}. Rows would be "
            "missing. Load the files of all nodes one after another with load_parameter_file()"
        )
