"""`OpenTable`: a table that is open in this process; the base of `Table`, without the methods for rows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.table import newer_rows
from tf_sparse_ps.table.arrays import Keys, as_keys
from tf_sparse_ps.table.shards import Shard

_UNKNOWN = 2**32 - 1  # no state has this change generation
# The uuid of a table; the life of its group, which marks of earlier versions lack; the change generation.
_MARK = re.compile(r"([0-9a-fA-F]{32}):(?:([0-9a-f]{16}):)?([0-9]+)")


class OpenTable:
    """A table that is open in this process. `Table` describes its attributes."""

    def __init__(self, group: Any, index: int, config: TableConfig, mode: str) -> None:
        info = group.table_info(index)
        self.path = os.path.join(group.info()["path"], info["name"])
        self.mode = mode
        self.config = config
        self.uuid: str = info["uuid"]
        self.shard = Shard.of(info)
        self._open_group: Any = group
        self._index = index

    def close(self) -> None:
        """Gives up the mapping and, with the group's last table of this process, the writer lock."""
        self._open_group = None

    @property
    def step(self) -> int:
        """The group's committed step."""
        return int(self._group.step())

    def version(self) -> tuple[int, int]:
        """The group's step and its number of other changes. While both stay the same, nothing has been written."""
        info = self._group.info()
        return info["step"], info["version"]

    @property
    def _group(self) -> Any:
        """The group, once the rows that devices of this process hold have been written to the table."""
        group = self._group_as_it_is
        newer_rows.flush(self.path)
        return group

    @property
    def _group_as_it_is(self) -> Any:
        if self._open_group is None:
            raise StateError(f"table {self.path} is closed")
        return self._open_group

    def _generation(self, mark: str) -> int:
        """Returns the change generation of a mark; for a mark of another table or life, one that no state has."""
        match = _MARK.fullmatch(mark)
        if match is None:
            raise InvalidArgumentError(f"mark must be what mark_changes() returned. Received: {mark!r}")
        uuid, life, generation = match.groups()
        is_known = uuid == self.uuid and life is not None and int(life, 16) == self._group.life()
        return min(int(generation), _UNKNOWN) if is_known else _UNKNOWN

    def check_writable(self) -> None:
        """Raises StateError unless the mode is "r+"."""
        self._writable_group()

    def set_trained_by(self, identity: int, steps: int) -> None:
        """Records which optimizer made the slots and its number of steps; identity 0: any optimizer may use them."""
        self._writable_group().set_optimizer(self._index, identity, steps)

    def bind_slots(self, kind: str, slot_init: Sequence[float], otherwise: str) -> None:
        """Makes the slots of an update rule, if the table has none.

        Args:
          kind: The rule's name in the core: "sgd", "adagrad", "adam" or "rowwise_adagrad".
          slot_init: Initial value of the elements of each slot.
          otherwise: The beginning of the message of the error.

        Raises:
          StateError: The table has slots of another rule.
        """
        group = self._writable_group()
        bound = group.stats(self._index)["optimizer"]["kind"]
        if bound == "none":
            group.bind_optimizer(self._index, kind, list(slot_init), False)
        elif bound != kind:
            raise StateError(f"{otherwise}: table {self.path} is trained by {bound}")

    def _writable_group(self) -> Any:
        if self.mode != "r+":
            raise StateError(f'table {self.path} is open for reading; open it with mode "r+"')
        return self._group

    def _own_keys(self, keys: npt.ArrayLike) -> Keys:
        """Converts keys to int64, and checks that they belong to this shard, if the table is one."""
        ids = as_keys(keys)
        if self.shard is not None:
            self.shard.check(ids, self.path)
        return ids
