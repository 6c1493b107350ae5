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
from tf_sparse_ps.config import initializers
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.config.eviction import Eviction
from tf_sparse_ps.config.metadata import USE
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.node import activity
from tf_sparse_ps.table import evicting, parameter_files
from tf_sparse_ps.table.arrays import checksum
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.shards import Shard
from tf_sparse_ps.table.table import Table

if TYPE_CHECKING:
    from tf_sparse_ps import optimizers
    from tf_sparse_ps.job.node_group import NodeGroup

_CHUNK_BYTES = 16 << 20
_ERASED_AT_ONCE = 1 << 20


@dataclasses.dataclass(eq=False)
class TableBinding:
    """A layer's table in this process.

    Attributes:
      group: The job's group on this node, which contains the table.
      path: `<group>/<table folder>`.
      path_tensor: `path` as a string scalar, which names the table in graphs. The table is in use as long as a program
        holds this tensor or a graph has captured it (`table_lifetime`).
      uuid: 32 hexadecimal digits, the same on all ranks and nodes.
      config: The configuration. `config.seed` is filled in.
      ordinal: The number of the table in the job.
      salt: A number that makes initial values differ from those of other tables with the same seed.
      optimizer: The update rule that is bound to the table, or None.
      leader_wrote_values: Whether this node's leader wrote values outside of steps, which nodes whose leaders did not
        must be given when the table is bound.
      is_of_earlier_run: Whether an earlier run of a named job may have left the rows. It may have been killed while it
        wrote them outside of steps, on some nodes only.
      writes: The number of writes outside of steps since all rows were set or the ranks agreed. Steps compare it.
      content: A number that stands for what was written, equal on ranks that have written the same. Steps of replicated
        tables compare it.
      erasures: The number of calls of `erase`, which all ranks make together.
      weights_checksum: Describes the `weights=` that a sharded table was made with; "": none.
      weight_name: The name of the variable that stands for the table in Keras.
      needs_initial_matrix: Whether this leader has made a sharded table whose initializer makes a whole matrix, and the
        table has no row of it yet.
    """

    group: NodeGroup
    path: str
    path_tensor: Any
    uuid: str
    config: TableConfig
    ordinal: int
    salt: int
    optimizer: optimizers.RowOptimizer | None = None
    leader_wrote_values: bool = False
    is_of_earlier_run: bool = False
    writes: int = 0
    content: int = 0
    erasures: int = 0
    weights_checksum: str = ""
    needs_initial_matrix: bool = False
    weight_name: str = ""
    _reader: Any = None
    _loaded: tuple[int, int] | None = None  # the optimizer of loaded slots, while the table itself does not record it
    _version: Any = None

    @property
    def nodes(self) -> int:
        """The number of nodes of the job."""
        return self.group.nodes

    @property
    def node(self) -> int:
        """The number of this node."""
        return self.group.node

    @property
    def version(self) -> tf.Variable:
        """`writes` and `content` as int64[2], a variable of this process that graphs read."""
        if self._version is None:
            self._version = _keras.local_variable([self.writes, self.content], "int64", "tsps.version")
        return self._version

    def agree(self, writes: int, content: int) -> None:
        """Sets the version of the table, which is the same on all ranks. Every rank calls it."""
        self.writes, self.content, self.leader_wrote_values = writes, content, False
        self.is_of_earlier_run = False
        if self._version is not None:
            with tf.init_scope():
                self._version.assign([writes, content])

    def _note(self, what: int, *, whole: bool) -> None:
        """Counts a write. `whole`: it replaces everything that was written before."""
        content = what if whole else number_of(self.content, what)
        leader_wrote_values = self.leader_wrote_values
        self.agree(1 if whole else self.writes + 1, content)
        self.leader_wrote_values = leader_wrote_values

    @property
    def placement(self) -> str:
        """ "replicated": every node has all rows; or "sharded": each row is on one of several nodes."""
        return "sharded" if isinstance(self.config.placement, Sharded) and self.nodes > 1 else "replicated"

    @property
    def shard(self) -> Shard | None:
        """The keys that a hash assigns to this node: its part of a sharded table. None: there is one node."""
        return Shard(self.node, self.nodes) if self.nodes > 1 else None

    def reader(self) -> Any:
        """Returns the table as a `tsps.Table`, open for reading."""
        if self._reader is None:
            self._reader = Table.open(self.path, "r")
        return self._reader

    def trained_by(self) -> tuple[int, int]:
        """Returns the identity of the optimizer that made the slots of this node, and its number of steps.

        Identity 0: any optimizer may use the slots.
        """
        identity, steps = self.reader().stats()["trained_by"]
        return self._loaded if identity == 0 and self._loaded is not None else (identity, steps)

    def load_trained_by(self, identity: int, steps: int) -> None:
        """Records that loaded slots were made by an optimizer, after `steps` of its steps. Every rank calls it.

        If an optimizer trains the table now, it continues with these slots. An optimizer that has not started yet
        treats them as slots of another one.
        """
        if not self.group.is_leader or self.trained_by()[0] in (0, identity):
            self.set_trained_by(identity, steps)
        else:
            self.set_trained_by(0, 0)
            self._loaded = (identity, steps)

    def set_trained_by(self, identity: int, steps: int) -> None:
        """Sets what `trained_by` returns. Every rank calls it; the leader writes."""
        self._loaded = None
        if self.group.is_leader:
            with eager_ops(f"setting the optimizer of table {self.path}") as _ops:
                _ops.set_optimizer(self.path, self.uuid, identity, steps)

    def take_index_seed(self, index_seed: int) -> None:
        """Sets the seed of the index, if the table has never had a row. Every rank calls it; the leader writes."""
        if self.group.is_leader:
            with eager_ops(f"setting the index seed of table {self.path}") as _ops:
                _ops.take_index_seed(self.path, self.uuid, index_seed)

    def bind_optimizer(self, optimizer: optimizers.RowOptimizer, *, replace: bool = False, renew: bool = False) -> None:
        """Gives the table its update rule and slots. Every rank calls it; the leader writes.

        Args:
          optimizer: The rule.
          replace: Drop the slots of another rule.
          renew: Reset the slots of the same rule to their initial values.

        Raises:
          StateError: Another rule is bound and `replace` is False.
        """
        if self.group.is_leader:
            with eager_ops(f"binding {optimizer.kind} to table {self.path}") as _ops:
                _ops.bind_optimizer(self.path, self.uuid, optimizer.kind, optimizer.slot_init, replace=replace)
                if renew:
                    _ops.renew_slots(self.path, self.uuid)
        self.optimizer = optimizer

    def reset_slots(self) -> None:
        """Gives all rows initial slots, if the table has an update rule. Every rank calls it; the leader writes."""
        if self.optimizer is not None:
            self.bind_optimizer(self.optimizer, renew=True)
        elif self.group.is_leader:
            with eager_ops(f"resetting the slots of table {self.path}") as _ops:
                _ops.renew_slots(self.path, self.uuid)

    @contextlib.contextmanager
    def writing(self, what: int, *, rows: bool = False, whole: bool = False) -> Iterator[bool]:
        """Surrounds a write outside of steps. The leader writes; the node's other ranks wait until it has done so.

        The leader waits for nobody, so that rank 0 may load weights alone. Another rank waits until the leader has
        written the same.

        Args:
          what: A number that stands for what is written, from `number_of`: equal on all ranks that write the same.
          rows: Whether every row is written or erased.
          whole: Whether every row and slot is written or erased, so that the table recovers from a failed step that
            lost rows.

        Yields:
          Whether this rank is to write.

        Raises:
          UnavailableError, WaitTimeoutError: The leader did not get there (`NodeGroup.wait`).
        """
        with self.group.one_writes(self.ordinal, what, self.path) as writes:
            yield writes
        self._note(what, whole=rows or whole)

    def assign(
        self,
        keys: npt.NDArray[np.int64],
        rows: npt.NDArray[np.float32],
        slots: tuple[npt.NDArray[np.float32], ...] = (),
        *,
        every: bool = False,
    ) -> None:
        """Sets rows (and slots) on this node, in chunks. Every rank calls it; the leader writes.

        Args:
          keys: int64[n].
          rows: float32[n, dim].
          slots: float32[n, dim] each; empty: present rows keep their slots.
          every: Whether the keys are all keys that the table can have.
        """
        self.leader_wrote_values = True
        arrays: list[npt.NDArray[Any]] = [keys, rows, *slots]
        with self.writing(number_of(*map(checksum, arrays)), rows=every) as writes:
            if writes:
                self.write_rows(keys, rows, slots)

    def replace(self, blocks: Iterable[Block], what: int, *, whole: bool) -> None:
        """Sets rows (and slots) on this node and erases every other key. Every rank calls it; the leader writes.

        Args:
          blocks: Keys, rows and slots as for `assign`. Each key is in one block. Only the leader reads them.
          what: A number that stands for the blocks, from `number_of`.
          whole: Whether the blocks have all slots of the table.
        """
        self.leader_wrote_values = True
        with self.writing(what, rows=True, whole=whole) as writes:
            if not writes:
                return
            had_rows = self.begin_replacing()
            written: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
            for block in blocks:
                use = block.metadata.get(USE.name)
                if use is None and self.records_use:  # present rows must not keep an old use
                    use = parameter_files.use_in(self.reader().step, len(block.keys))
                self.write_rows(block.keys, block.rows, block.slots, use)
                if had_rows:
                    written.append(block.keys)
            if had_rows:
                with eager_ops(f"erasing rows of table {self.path}") as _ops:
                    _ops.erase(self.path, self.uuid, np.setdiff1d(self.reader().keys(), np.concatenate(written)))

    def begin_replacing(self) -> bool:
        """Erases all rows on this node, if the table may have no room for them beside those that replace them.

        That is so if its rows are bounded or evicted. Only the leader calls it, before it writes the new rows.

        Returns:
          Whether the table still has rows. Those that are not written are to be erased at the end.
        """
        if self.config.max_rows is None and self.config.eviction is None:
            return len(self.reader()) > 0
        keys = self.reader().keys()
        with eager_ops(f"erasing rows of table {self.path}") as _ops:
            for start in range(0, len(keys), _ERASED_AT_ONCE):
                _ops.erase(self.path, self.uuid, keys[start : start + _ERASED_AT_ONCE])
                activity.progress()
        return False

    def erase(self, keys: npt.NDArray[np.int64]) -> None:
        """Erases the rows of keys, int64[n], on this node. Every rank calls it; the leader writes."""
        self.leader_wrote_values = True
        self.erasures += 1
        with self.writing(number_of("erased", checksum(keys))) as writes:
            if writes:
                with eager_ops(f"erasing rows of table {self.path}") as _ops:
                    _ops.erase(self.path, self.uuid, keys)

    def evict(self, eviction: Eviction) -> None:
        """Evicts all rows on this node that are due. Every rank calls it; the leader writes."""
        self.leader_wrote_values = True
        self.erasures += 1
        with self.writing(number_of("evicted", eviction.get_config(), self.erasures)) as writes:
            if writes:
                keep = () if self.config.eviction is None else self.config.eviction.keep
                keys = evicting.due(self.reader(), eviction, eviction.max_rows_of(self.parts), keep)
                with eager_ops(f"evicting rows of table {self.path}") as _ops:
                    _ops.erase(self.path, self.uuid, keys)

    def made_with(self) -> dict[str, str]:
        """Returns facts of the stored table by name, which must be equal on all nodes that have the same rows.

        They give new rows their values. Where steps admit keys or evict rows, the hash of the keys decides ties.
        """
        facts = {
            "initializer": str(initializers.deciding(self.reader().core_initializer())),
            "max_rows": str(self.reader().config.max_rows),
        }
        if self.config.eviction is not None or self.config.admission is not None:
            facts["index seed"] = str(self.reader().stats()["index_seed"])
        if self.config.admission is not None:
            facts["index seed of the counts"] = str(self.sketch().stats()["index_seed"])
        return facts

    @property
    def records_use(self) -> bool:
        """Whether the table records the use of its rows."""
        return USE in self.reader().config.metadata

    @property
    def counted(self) -> str | None:
        """The uuid of the table, if it counts how often keys occur before they get a row; None: it does not."""
        return None if self.config.admission is None else self.uuid

    def sketch(self) -> Any:
        """Returns the counts of keys without a row as a `tsps.Table`, open for reading. The table has an admission."""
        return Table.open(self.path + SKETCH, "r")

    def reset_counts(self, index_seed: int | None = None) -> None:
        """Empties the sketch of keys without a row on this node. Only the leader calls it.

        Args:
          index_seed: The seed of the sketch, if counts that were made with it follow.
        """
        with eager_ops(f"resetting the counts of table {self.path}") as _ops:
            _ops.set_admission(self.path, self.uuid, ())
        self.set_admission()
        if index_seed is not None:
            with eager_ops(f"setting the index seed of the counts of table {self.path}") as _ops:
                _ops.take_index_seed(self.path + SKETCH, self.sketch().uuid, index_seed)

    def set_admission(self) -> bool:
        """Lets the steps of this node admit keys as the configuration says. Only the leader calls it.

        Returns:
          Whether counts of an earlier run were lost, because it had another admission.
        """
        admission = self.config.admission
        numbers = () if admission is None else admission.for_core(self.parts)
        with eager_ops(f"setting the admission of table {self.path}") as _ops:
            return bool(_ops.set_admission(self.path, self.uuid, numbers))

    @property
    def parts(self) -> int:
        """The number of machines that share the rows."""
        return self.nodes if self.placement == "sharded" else 1

    def check_eviction(self) -> None:
        """Raises ValueError if the kept keys would fill a machine's part of the table."""
        _, (_, most, _), keep = self.config.eviction_for_core(self.parts)
        if most and len(keep) >= most:
            raise ValueError(
                f"table {self.config.name!r}: the eviction keeps {len(keep)} keys, and each of {self.parts} machines "
                f"has at most {most} rows. Keep fewer keys, or raise max_rows"
            )

    def set_eviction(self) -> None:
        """Lets the steps of this node evict rows as the configuration says. Only the leader calls it."""
        order, numbers, keep = self.config.eviction_for_core(self.parts)
        if order:
            with eager_ops(f"setting the eviction of table {self.path}") as _ops:
                _ops.set_eviction(self.path, self.uuid, order, numbers, keep)

    def write_counts(self, block: Block) -> None:
        """Writes lines of the sketch on this node, those that this node has. Only the leader calls it.

        Args:
          block: The numbers of the lines as keys, and the lines as the only metadata plane.
        """
        sketch = self.sketch()
        (lines,) = block.metadata.values()
        of_node = block.keys // (sketch.config.key_limit // self.parts) == (self.node if self.parts > 1 else 0)
        words = np.ascontiguousarray(lines[of_node]).view(np.int64)
        with eager_ops(f"writing the counts of table {self.path}") as _ops:
            _ops.assign_counts(self.path + SKETCH, sketch.uuid, block.keys[of_node], words)
        activity.progress()

    def write_rows(self, keys: Any, rows: Any, slots: Any = (), use: npt.NDArray[np.uint32] | None = None) -> None:
        """Writes rows on this node, in chunks: the leader's part of `assign`, with its arguments.

        All nodes are given the same rows of a sharded table, and each writes those that it owns.

        Args:
          keys: int64[n].
          rows: float32[n, dim].
          slots: As for `assign`.
          use: The use of the rows, uint32[n, 2], as the plane `USE` has it. None: present rows keep theirs, others
            count as used in the committed step. A table that does not record it ignores it.
        """
        if use is not None and self.records_use:
            use_bytes = np.ascontiguousarray(use).view(np.int64).reshape(-1)
        else:
            use_bytes = None
        with eager_ops(f"writing table {self.path}") as _ops:
            size = max(1, _CHUNK_BYTES // (4 * self.config.dim))
            for start in range(0, len(keys), size):
                part: Any = slice(start, start + size)
                if self.placement == "sharded":
                    part = start + np.flatnonzero(_table.owners(keys[part], self.nodes) == self.node)
                part_use = None if use_bytes is None else use_bytes[part]
                _ops.assign(self.path, self.uuid, keys[part], rows[part], [values[part] for values in slots], part_use)
                activity.progress()


def number_of(*parts: object) -> int:
    """Returns a hash of 63 bits of texts and numbers; it stands for what is written to a table."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def binding_of(variable: Any) -> TableBinding | None:
    """Returns the table of an anchor (`layers/anchor.py`), a Keras or TensorFlow variable; None for other variables."""
    return getattr(variable, "tsps_binding", None)
