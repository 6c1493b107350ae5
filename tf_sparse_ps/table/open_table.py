"""`OpenTable`: a table that is open in this process, the base class of `Table` without the methods for rows."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.config.admission import Admission
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.table import newer_rows
from tf_sparse_ps.table.arrays import Keys, as_keys
from tf_sparse_ps.table.shards import Shard

_UNKNOWN = 2**32 - 1  # a change generation that no state has
# A mark is the uuid of a table, the life of its group (missing in marks of earlier versions), and a change generation.
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
        """Releases the mapping and, with the group's last open table of this process, the writer lock."""
        self._open_group = None

    @property
    def step(self) -> int:
        """The group's committed step."""
        return int(self._group.step())

    def version(self) -> tuple[int, int]:
        """Returns the group's step and its number of other changes. While both stay the same, nothing was written."""
        info = self._group.info()
        return info["step"], info["version"]

    @property
    def _group(self) -> Any:
        """The group, after this property has written the newer rows of this process's devices to the table."""
        group = self._group_as_it_is
        newer_rows.flush(self.path)
        return group

    @property
    def _group_as_it_is(self) -> Any:
        if self._open_group is None:
            raise StateError(f"table {self.path} is closed. Open it again with tsps.Table.open()")
        return self._open_group

    def _generation(self, mark: str) -> int:
        """Returns the change generation of a mark, or `_UNKNOWN` for a mark of another table or life."""
        match = _MARK.fullmatch(mark)
        if match is None:
            raise InvalidArgumentError(f"mark must be what mark_changes() returned. Received: {mark!r}")
        uuid, life, generation = match.groups()
        is_known = uuid == self.uuid and life is not None and int(life, 16) == self._group.life()
        return min(int(generation), _UNKNOWN) if is_known else _UNKNOWN

    def check_writable(self) -> None:
        """Raises StateError unless the mode is "r+"."""
        self._writable_group()

    def _set_policies(self) -> None:
        """Lets this process's steps admit keys and evict rows as the configuration says, and in no other way."""
        self._group_as_it_is.stop_policies(self._index)  # those of an earlier configuration of this process
        nodes = 1 if self.shard is None else self.shard.nodes
        if (admission := self.config.admission) is not None:
            numbers = admission.for_core(nodes)
            if self._group_as_it_is.set_admission(self._index, *numbers):
                warnings.warn(admission.forgotten(self.path), stacklevel=4)
        order, numbers, keep = self.config.eviction_for_core(nodes)
        if order:
            self._group_as_it_is.set_eviction(self._index, order, *numbers, np.array(keep, np.int64))

    def sketch_fill(self, admission: Admission) -> tuple[float | None, float | None]:
        """Returns `sketch_fill` and `sketch_error` as `Table.stats` describes them."""
        sketch = self._group_as_it_is.sketch_of(self._index)
        if sketch is None:
            return None, None
        fill, error = self._group_as_it_is.sketch_fill(self._index, sketch, admission.count, admission.half_life)
        return float(fill), float(error)

    def set_trained_by(self, identity: int, steps: int) -> None:
        """Records which optimizer made the slots and its number of steps. Identity 0: any optimizer may use them."""
        self._writable_group().set_optimizer(self._index, identity, steps)

    def bind_slots(self, kind: str, slot_init: Sequence[float], reason: str) -> None:
        """Makes the slots of an update rule, if the table has none.

        Args:
          kind: The rule's name in the core: "sgd", "adagrad", "adam" or "rowwise_adagrad".
          slot_init: The initial value of the elements of each slot.
          reason: The end of the error's message, which gives the reason for the rule and the remedy.

        Raises:
          StateError: The table has slots of another rule.
        """
        group = self._writable_group()
        bound = group.stats(self._index)["optimizer"]["kind"]
        if bound == "none":
            group.bind_optimizer(self._index, kind, list(slot_init), False)
        elif bound != kind:
            raise StateError(f"table {self.path} is trained by {bound}, and {reason}")

    def _writable_group(self) -> Any:
        if self.mode != "r+":
            raise StateError(f'table {self.path} is open for reading only. Open it with mode "r+"')
        return self._group

    def _own_keys(self, keys: npt.ArrayLike) -> Keys:
        """Converts keys to int64, and checks that they belong to this shard, if the table is one."""
        ids = as_keys(keys)
        if self.shard is not None:
            self.shard.check(ids, self.path)
        return ids
