"""`TableBinding`: a layer's table in this process, and how the ranks of a node write it together."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import _table
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.node import activity
from tf_sparse_ps.table.arrays import checksum
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.shards import Shard
from tf_sparse_ps.table.table import Table

if TYPE_CHECKING:
    from tf_sparse_ps import optimizers
    from tf_sparse_ps.job.node_group import NodeGroup

_CHUNK_BYTES = 16 << 20


@dataclasses.dataclass(eq=False)
class TableBinding:
    """A layer's table in this process.

    Attributes:
      group: The job's group on this node, where the table is.
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
      nodes: Of the job.
      node: This one.
      writes: Writes outside of steps, since all rows were set or ranks agreed. Steps compare it.
      content: A number that stands for what was written, the same on ranks that have written the same. Steps of
        replicated tables compare it.
      given: Tells `weights=` that a sharded table began with from others; "": it was given none.
      cache: Its rows on a device (`cache/device_store.py`), or None.
      weight_name: Of the variable that stands for the table in Keras.
      unfilled: This leader has made a sharded table whose initializer makes a whole matrix, of which it has no row yet.
    """

    group: NodeGroup
    path: str
    path_tensor: Any
    uuid: str
    config: TableConfig
    ordinal: int
    salt: int
    config_hash: str
    optimizer: optimizers.RowOptimizer | None = None
    explicit: bool = False
    nodes: int = 1
    node: int = 0
    writes: int = 0
    content: int = 0
    given: str = ""
    unfilled: bool = False
    cache: Any = None
    weight_name: str = ""
    _reader: Any = None
    _loaded: tuple[int, int] | None = None  # whose slots were loaded, while the table itself does not say it
    _version: Any = None

    @property
    def version(self) -> tf.Variable:
        """int64[2], `writes` and `content`: what graphs read. A variable of this process."""
        if self._version is None:
            self._version = _keras.local_variable([self.writes, self.content], "int64", "tsps.version")
        return self._version

    def agree(self, writes: int, content: int) -> None:
        """From now on the table has this version: it is the same on all ranks. Every rank calls it."""
        self.writes, self.content, self.explicit = writes, content, False
        if self._version is not None:
            with tf.init_scope():
                self._version.assign([writes, content])

    def _note(self, what: int, *, whole: bool) -> None:
        """Notes a write. `whole`: what was written before does not matter any more."""
        content = what if whole else number_of(self.content, what)
        explicit = self.explicit
        self.agree(1 if whole else self.writes + 1, content)
        self.explicit = explicit

    @property
    def placement(self) -> str:
        """Where its rows are: "replicated", all of them on every node, or "sharded", each on one of several nodes."""
        return "sharded" if isinstance(self.config.placement, Sharded) and self.nodes > 1 else "replicated"

    @property
    def shard(self) -> Shard | None:
        """The keys that a hash gives to this node: of a sharded table those that it has. None: there is one node."""
        return Shard(self.node, self.nodes) if self.nodes > 1 else None

    def reader(self) -> Any:
        """The table as a `tsps.Table`, open for reading."""
        if self._reader is None:
            self._reader = Table.open(self.path, "r")
        return self._reader

    def trained_by(self) -> tuple[int, int]:
        """Which optimizer made the slots that this node has, 0 if any may go on, and after how many of its steps."""
        identity, steps = self.reader().stats()["trained_by"]
        return self._loaded if identity == 0 and self._loaded is not None else (identity, steps)

    def load_trained_by(self, identity: int, steps: int) -> None:
        """Slots were loaded that this optimizer made, after that many of its steps. Every rank calls it; leaders act.

        An optimizer that trains the table now goes on with them. To one that has not begun they are the other one's.
        """
        if not self.group.is_leader or self.trained_by()[0] in (0, identity):
            self.set_trained_by(identity, steps)
        else:
            self.set_trained_by(0, 0)
            self._loaded = (identity, steps)

    def set_trained_by(self, identity: int, steps: int) -> None:
        """Says what `trained_by` is to return. Every rank calls it; the leader acts."""
        self._loaded = None
        if self.group.is_leader:
            with eager_ops(f"setting the optimizer of table {self.path}") as _ops:
                _ops.set_optimizer(self.path, self.uuid, identity, steps)

    def take_index_seed(self, index_seed: int) -> None:
        """Gives the index this seed, if the table has never had a row. Every rank calls it; the leader acts."""
        if self.group.is_leader:
            with eager_ops(f"setting the index seed of table {self.path}") as _ops:
                _ops.take_index_seed(self.path, self.uuid, index_seed)

    def bind_optimizer(self, optimizer: optimizers.RowOptimizer, *, replace: bool = False, renew: bool = False) -> None:
        """Gives the table its update rule and slots. Every rank calls it; the leader acts.

        Args:
          optimizer: The rule.
          replace: Slots of another rule are dropped.
          renew: Slots of the same rule get their initial values.

        Raises:
          StateError: Another rule is bound and `replace` is False.
        """
        if self.cache is not None:
            self.cache.flush()
        if self.group.is_leader:
            with eager_ops(f"binding {optimizer.kind} to table {self.path}") as _ops:
                _ops.bind_optimizer(self.path, self.uuid, optimizer.kind, optimizer.slot_init, replace=replace)
                if renew:
                    _ops.renew_slots(self.path, self.uuid)
        self.optimizer = optimizer
        if self.cache is not None:
            self.cache.bind(optimizer)

    @contextlib.contextmanager
    def writing(self, what: int, *, rows: bool = False, whole: bool = False) -> Iterator[bool]:
        """Surrounds a write outside of steps: the leader writes, the node's other ranks leave when it has done so.

        The leader does not wait for anyone, so that rank 0 may load weights by itself. Another rank waits until the
        leader has written the same.

        Args:
          what: Stands for what is written, from `number_of`: the same on all ranks that write the same.
          rows: Every row is written or erased.
          whole: Every row and slot is written or erased, so that rows which a failed step has lost are there again.

        Yields:
          Whether this rank is to write.

        Raises:
          UnavailableError, WaitTimeoutError: The leader did not get there (`NodeGroup.wait`).
        """
        with contextlib.ExitStack() as stack:
            if self.cache is not None:
                stack.enter_context(self.cache.host_writes(whole=whole))
            yield stack.enter_context(self.group.one_writes(self.ordinal, what, self.path))
        self._note(what, whole=rows or whole)

    def assign(
        self,
        keys: npt.NDArray[np.int64],
        rows: npt.NDArray[np.float32],
        slots: tuple[npt.NDArray[np.float32], ...] = (),
        *,
        every: bool = False,
    ) -> None:
        """Sets rows (and slots) on this node, in chunks. Every rank calls it; the leader acts.

        Args:
          keys: int64[n].
          rows: float32[n, dim].
          slots: float32[n, dim] each; empty: rows that are there keep theirs.
          every: The keys are all that the table can have.
        """
        self.explicit = True
        arrays: list[npt.NDArray[Any]] = [keys, rows, *slots]
        with self.writing(number_of(*map(checksum, arrays)), rows=every) as writes:
            if writes:
                self.write_rows(keys, rows, slots)

    def replace(self, blocks: Iterable[Block], what: int, *, whole: bool) -> None:
        """Sets rows (and slots) on this node, and erases every other key. Every rank calls it; the leader reads blocks.

        Args:
          blocks: With arguments of `assign`; keys are in one of them.
          what: Stands for the blocks, from `number_of`.
          whole: The blocks have slots, if the table has some.
        """
        self.explicit = True
        with self.writing(what, rows=True, whole=whole) as writes:
            if not writes:
                return
            others = len(self.reader()) > 0
            written: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
            for block in blocks:
                self.write_rows(block.keys, block.rows, block.slots)
                if others:
                    written.append(block.keys)
            if others:
                with eager_ops(f"erasing rows of table {self.path}") as _ops:
                    _ops.erase(self.path, self.uuid, np.setdiff1d(self.reader().keys(), np.concatenate(written)))

    def write_rows(self, keys: Any, rows: Any, slots: Any = ()) -> None:
        """Sets rows on this node, in chunks: the leader's part of `assign`, with its arguments.

        Of a sharded table those that the node has: all nodes are given the same.
        """
        with eager_ops(f"writing table {self.path}") as _ops:
            size = max(1, _CHUNK_BYTES // (4 * self.config.dim))
            for start in range(0, len(keys), size):
                part: Any = slice(start, start + size)
                if self.placement == "sharded":
                    part = start + np.flatnonzero(_table.owners(keys[part], self.nodes) == self.node)
                _ops.assign(self.path, self.uuid, keys[part], rows[part], [values[part] for values in slots])
                activity.progress()


def number_of(*parts: object) -> int:
    """A number of 63 bits that stands for texts and numbers: for what is written to a table."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def binding_of(variable: Any) -> TableBinding | None:
    """The table behind a variable, Keras's or TensorFlow's, or None if it is no anchor (`layers/anchor.py`)."""
    return getattr(variable, "tsps_binding", None)
