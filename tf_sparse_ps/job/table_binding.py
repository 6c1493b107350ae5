"""`TableBinding`: a layer's table in this process, and how the ranks of a node write it together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.config.table_config import TableConfig

if TYPE_CHECKING:
    from tf_sparse_ps import optimizers
    from tf_sparse_ps.job.job import Job

_CHUNK_BYTES = 16 << 20


@dataclasses.dataclass(eq=False)
class TableBinding:
    """A layer's table in this process.

    Attributes:
      job: The job it belongs to.
      path: `<group>/<table folder>`.
      path_tensor: `path` as a string scalar, by which graphs name the table: it is in use as long as anyone holds
        this, or a graph has captured it (`table_lifetime`).
      uuid: 32 hexadecimal digits, the same on all ranks and nodes.
      config: What it is; `config.seed` is filled in.
      ordinal: Its number in the job.
      salt: Tells its initial values from those of other tables with the same seed.
      optimizer: The update rule bound to it, or None.
      explicit: The leader wrote values, so that a node whose leader did not must be given them.
      config_hash: Equal on all ranks, or their layers are not the same.
      writes: Calls of `write` so far, the same on all ranks of a node.
    """

    job: Job
    path: str
    path_tensor: Any
    uuid: str
    config: TableConfig
    ordinal: int
    salt: int
    config_hash: str
    optimizer: optimizers.RowOptimizer | None = None
    explicit: bool = False
    writes: int = 0
    _reader: Any = None

    def reader(self) -> Any:
        """The table as a `tsps.Table`, open for reading."""
        from tf_sparse_ps.table.table import Table

        if self._reader is None:
            self._reader = Table.open(self.path, "r")
        return self._reader

    def bind_optimizer(self, optimizer: optimizers.RowOptimizer, *, replace: bool = False) -> None:
        """Gives the table its update rule and slots. Every rank calls it; the leader acts.

        Raises:
          StateError: Another rule is bound and `replace` is False.
        """
        if self.job.is_leader:
            with eager_ops(f"binding {optimizer.kind} to table {self.path}") as _ops:
                _ops.bind_optimizer(self.path, self.uuid, optimizer.kind, optimizer.slot_init, replace=replace)
        self.optimizer = optimizer

    def write(self, action: Callable[[], None]) -> None:
        """Runs `action` on the leader; the node's other ranks return when the leader has done so.

        All ranks of a node call this the same number of times. A call on the leader alone does not wait for anyone, so
        that rank 0 may load weights by itself.

        Raises:
          UnavailableError, WaitTimeoutError: The leader did not get there.
        """
        self.writes += 1
        if self.job.is_leader:
            action()
            self.job.publish_write(self)
        else:
            self.job.wait_for_write(self)

    def assign(
        self,
        keys: npt.NDArray[np.int64],
        rows: npt.NDArray[np.float32],
        slots: tuple[npt.NDArray[np.float32], ...] = (),
        *,
        erase_others: bool = False,
    ) -> None:
        """Sets rows (and slots) on this node, in chunks. Every rank calls it; the leader acts.

        Args:
          keys: int64[n].
          rows: float32[n, dim].
          slots: float32[n, dim] each; empty: rows that are there keep theirs.
          erase_others: Also remove every other key.
        """
        self.explicit = True
        self.write(lambda: self.assign_here(keys, rows, slots, erase_others))

    def assign_here(self, keys: Any, rows: Any, slots: Any = (), erase_others: bool = False) -> None:
        """The leader's part of `assign`."""
        with eager_ops(f"writing table {self.path}") as _ops:
            size = max(1, _CHUNK_BYTES // (4 * self.config.dim))
            for start in range(0, len(keys), size):
                part = slice(start, start + size)
                _ops.assign(self.path, self.uuid, keys[part], rows[part], [values[part] for values in slots])
            if erase_others:
                _ops.erase(self.path, self.uuid, np.setdiff1d(self.reader().keys(), keys))


def binding_of(variable: Any) -> TableBinding | None:
    """The table behind a variable, Keras's or TensorFlow's, or None if it is no anchor (`layers/anchor.py`)."""
    return getattr(variable, "tsps_binding", None)
