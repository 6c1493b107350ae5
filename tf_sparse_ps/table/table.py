"""`Table`: the store without TensorFlow.

A table lies in a group's directory: `Table.create("/dev/shm/me/items/user", config)` makes the table `user` in the
group `/dev/shm/me/items`. All tables of a group share one writer and one step. Within a process the groups are shared:
two `Table` objects of one group use one mapping and one writer lock.

While a TensorFlow job trains a group, the job's leader is its writer; open its tables with mode "r".
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import optimizers
from tf_sparse_ps.config.metadata import MetadataPlane, as_planes
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError, StateError, TableExistsError
from tf_sparse_ps.table import disk_folders, groups, newer_rows, parameter_files
from tf_sparse_ps.table.arrays import Keys, Rows, as_counts, as_keys, as_rows, block_rows, chunks
from tf_sparse_ps.table.shards import Shard

# keys and gradients, or keys, gradients and counts
Update = tuple[npt.ArrayLike, npt.ArrayLike] | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike | None]


@dataclasses.dataclass(frozen=True)
class Report:
    """What `Table.verify` found.

    Attributes:
      ok: Nothing is wrong.
      problems: What is wrong, in words.
      rows: Live keys of the table.
      step: The group's committed step.
    """

    ok: bool
    problems: tuple[str, ...]
    rows: int
    step: int


@dataclasses.dataclass(frozen=True)
class Changes:
    """What `Table.changes_since` tells.

    Attributes:
      everything: What changed is not known: `written` has all keys, and any other key may have been erased.
      written: Keys that are there and were written, int64[n], each once.
      erased: Keys that were erased, int64[m], each once. A key that is in `written`, too, was written afterwards.
    """

    everything: bool
    written: Keys
    erased: Keys


_UNKNOWN = 2**32 - 1  # a change generation that there is not
# Of a table its uuid; the life of its group, which marks of earlier versions do not have; the change generation.
_MARK = re.compile(r"([0-9a-fA-F]{32}):(?:([0-9a-f]{16}):)?([0-9]+)")


class Block(NamedTuple):
    """Rows of a `Scan`."""

    keys: Keys
    """int64[n]."""
    rows: Rows
    """float32[n, dim]."""
    slots: tuple[Rows, ...]
    """float32[n, width] each; none if they were not asked for."""
    metadata: dict[str, npt.NDArray[Any]]
    """As `Table.metadata`; empty if slots were not asked for."""


class Scan:
    """A table as of one committed state; see `Table.scan`. Ends with its `with` block, or when it is dropped.

    Attributes:
      step: Of that state.
      optimizer: Whose slots the rows have, as the core says it.
      trained_by: Which optimizer made the slots, 0 if any may go on with them, and after how many of its steps.
      erased: Of a scan since a mark, the keys that were erased, int64[m]. One that is among the rows, too, was written
        afterwards. None: all rows come; a copy that another scan began with is of no use.
    """

    def __init__(self, core: Any, dim: int) -> None:
        self._core = core
        self._block = block_rows(dim)
        self.step = int(core.step())
        self.optimizer: dict[str, Any] = core.optimizer()
        self.trained_by: tuple[int, int] = core.trained_by()
        self.erased: Keys | None = core.erased()
        self._rows = int(core.rows())

    def __len__(self) -> int:
        """Rows of the table; of a scan since a mark, or of a shard, not all of them come."""
        return self._rows

    def take_shard(self, shard: Shard) -> None:
        """Leaves out the rows and the erased keys of other shards. Before the first row."""
        self._core.take_shard(shard.node, shard.nodes)
        self.erased = self._core.erased()

    def __iter__(self) -> Iterator[Block]:
        while len((block := self._next()).keys):
            yield block

    def _next(self) -> Block:
        return self.take(self._block)

    def write_to(self, writer: Any, n: int) -> int:
        """Appends the next rows, about `n`, to a `_table.ParameterFileWriter`; returns how many, 0 at the end."""
        return int(writer.append_scan(self._core, n))

    def take(self, n: int) -> Block:
        """The next rows, at most `n` of them; none when all have been read."""
        keys, rows, slots, metadata = self._core.next(n)
        return Block(keys, rows, tuple(slots), metadata)

    def read(self) -> Block:
        """All blocks as one, or what is left of them."""
        blocks = [self._next()]
        while len(blocks[-1].keys):
            blocks.append(self._next())
        return Block(
            np.concatenate([block.keys for block in blocks]),
            np.concatenate([block.rows for block in blocks]),
            tuple(np.concatenate(parts) for parts in zip(*(block.slots for block in blocks), strict=True)),
            {name: np.concatenate([block.metadata[name] for block in blocks]) for name in blocks[0].metadata},
        )

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the scan: the writer keeps no images for it any more."""
        self._core.close()


class Table:
    """One table of a group. Reads are thread-safe; writes are serialised per group.

    Use `create` or `open`. A context manager: leaving it closes the table.

    Attributes:
      path: `<group directory>/<table>`.
      mode: "r" or "r+".
      config: What the table is. Of a table that was opened, `config.initializer` is the resolved one, and
        `config.optimizer` is the one given to `open`.
      uuid: 32 hexadecimal digits.
      shard: Of a table that a job has spread over nodes, whose keys these are; None: all of them. Other nodes' keys can
        be neither looked up nor written here.
    """

    def __init__(self, group: Any, index: int, config: TableConfig, mode: str) -> None:
        info = group.table_info(index)
        self.path = os.path.join(group.info()["path"], info["name"])
        self.mode = mode
        self.config = config
        self.uuid: str = info["uuid"]
        self.shard = Shard.of(info)
        self._open_group: Any = group
        self._index = index

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: TableConfig) -> Table:
        """Makes a table, and its group when there is none, and opens it with mode "r+".

        Args:
          path: `<group directory>/<table>`; the last part must be `config.name`, and the group's parent must exist.
          config: What to make. `config.optimizer` is bound; without one the table can be read and assigned, not
            trained.

        Raises:
          TableExistsError: The table is there already.
          WriterLockedError: Another process is the group's writer.
          NoSpaceError, AccessError: From the file system.
        """
        folder, name = os.path.split(os.path.abspath(path))
        if name != config.name:
            raise InvalidArgumentError(f"the path must end with the table's name, {config.name!r}. Received: {path}")
        if config.placement != "replicated":
            raise InvalidArgumentError(
                f"table {config.name!r}: a tsps.Table is on one machine; tables of layers can be sharded. "
                f"Received: placement={config.placement}"
            )
        if config.cache is not None:
            raise InvalidArgumentError(
                f"table {config.name!r}: a tsps.Table has no rows on a device; tables of layers can have a cache. "
                f"Received: cache={config.cache}"
            )
        resolved = config.resolved_initializer()
        group = groups.open_group(folder, create=True)
        group.open_writer()
        seeds = (config.seed, resolved.seed, secrets.randbits(63))
        with disk_folders.prepared(config.storage, os.path.abspath(path)) as (storage_folder, storage_memory):
            index = group.create_table(
                name=name,
                uuid=secrets.token_hex(16),
                dim=config.dim,
                key_limit=config.key_limit or 0,
                max_rows=config.max_rows or 0,
                initializer={
                    "kind": resolved.kind,
                    "a": resolved.a,
                    "b": resolved.b,
                    "seed": next(seed for seed in seeds if seed is not None),
                    "salt": len(group.tables()),
                },
                metadata=[plane.for_core() for plane in config.metadata],
                dtype=config.dtype,
                rounding=config.rounding,
                storage_folder=storage_folder,
                storage_memory=storage_memory,
            )
        if config.optimizer is not None:
            group.bind_optimizer(index, config.optimizer.kind, list(config.optimizer.slot_init), False)
        table = cls(group, index, config, "r+")
        if resolved.values is not None:
            table._assign_chunked(np.arange(config.key_limit or 0, dtype=np.int64), resolved.values())
        return table

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], mode: Literal["r", "r+"] = "r", config: TableConfig | None = None
    ) -> Table:
        """Opens a table.

        Args:
          path: `<group directory>/<table>`.
          mode: "r" to read, beside any writer; "r+" to write, as the group's only writer.
          config: What the table is expected to be: another width, key limit, type, optimizer or other metadata is an
            error. Its optimizer's hyperparameters and its constraint are used by `apply_gradients`; without it the
            table cannot be trained.

        Raises:
          NotFoundError: No such group or table.
          WriterLockedError: mode is "r+" and another process, or this process's TensorFlow ops, is the writer.
          StateError: The table is not what `config` says.
          DamagedFileError, AccessError: A file is not what it should be.
        """
        if mode not in ("r", "r+"):
            raise InvalidArgumentError(f'mode must be "r" or "r+". Received: {mode!r}')
        folder, name = os.path.split(os.path.abspath(path))
        group = groups.open_group(folder)
        index = group.find_table(name)
        if mode == "r+":
            group.open_writer()
        info = group.table_info(index)
        stored = group.stats(index)["optimizer"]
        if config is not None:
            groups.check_same(str(path), info, stored, config)
        seen = TableConfig(
            name,
            info["dim"],
            max_rows=info["max_rows"] or None,
            key_limit=info["key_limit"] or None,
            seed=info["initializer"]["seed"] & (2**63 - 1),
            initializer=groups.keras_form(info["initializer"]),
            optimizer=None if config is None else config.optimizer,
            constraint=None if config is None else config.constraint,
            dtype=info["dtype"],
            rounding=info["rounding"],
            metadata=tuple(map(MetadataPlane.from_core, info["metadata"])),
            storage=disk_folders.storage_of(info),
        )
        return cls(group, index, seen, mode)

    def close(self) -> None:
        """Gives up the mapping and, with the group's last table of this process, the writer lock."""
        self._open_group = None

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of live keys."""
        return int(self._group.stats(self._index)["rows"])

    def __repr__(self) -> str:
        shard = "" if self.shard is None else f" shard: {self.shard}"
        return f"<tf_sparse_ps.Table {self.path} dim={self.config.dim} mode={self.mode!r}{shard}>"

    @property
    def step(self) -> int:
        """The group's committed step."""
        return int(self._group.step())

    def version(self) -> tuple[int, int]:
        """The group's step and its count of other changes: equal before and after, nothing was written in between."""
        info = self._group.info()
        return info["step"], info["version"]

    @property
    def _group(self) -> Any:
        """The group, whose table has all rows that this process has of it."""
        group = self._group_as_it_is
        newer_rows.flush(self.path)
        return group

    @property
    def _group_as_it_is(self) -> Any:
        if self._open_group is None:
            raise StateError(f"table {self.path} is closed")
        return self._open_group

    # --- reading ---

    def lookup(self, keys: npt.ArrayLike) -> Rows:
        """Rows of `keys`, all of one step; absent keys give their initial value. Writes nothing.

        Args:
          keys: Integers of any shape.

        Returns:
          float32[*keys.shape, dim].

        Raises:
          InvalidArgumentError: The keys are no integers, or an unsigned one is beyond 2**63 - 1; or one is on another
            node than this shard.
          KeyRangeError: A key outside a bounded table.
        """
        ids = self._own(keys)
        rows: Rows = self._group.lookup(self._index, ids.reshape(-1))
        return rows.reshape(*ids.shape, self.config.dim)

    def keys(self) -> Keys:
        """The live keys, int64[len(self)], of one committed state."""
        keys: Keys = self._group.keys(self._index)
        return keys

    def entries(
        self, keys: npt.ArrayLike, *, slots: bool = True
    ) -> tuple[npt.NDArray[np.bool_], Rows, tuple[Rows, ...]]:
        """What is stored under `keys`, all of one step.

        Args:
          keys: int64[n].
          slots: Read the optimizer's slots too.

        Returns:
          found bool[n]; rows float32[n, dim]; a tuple of float32[n, dim], one per slot, or of float32[n, 1] where the
          rule keeps one float per row. Absent keys have zeros.
        """
        found, rows, values = self._group.entries(self._index, as_keys(keys), slots)
        return found, rows, tuple(values)

    def scan(self, *, slots: bool = True, max_bytes: int | None = None, since: str | None = None) -> Scan:
        """Reads the whole table, as of one committed state, beside whoever trains it.

        The writer keeps images of the rows that it writes meanwhile, and never waits for the scan.

        Args:
          slots: Read the optimizer's slots and the metadata planes too.
          max_bytes: How much memory the images may take. None: a quarter of the table, and at least 1 GiB.
          since: What `mark_changes` returned: of the rows only those that were written since, and `Scan.erased`, the
            keys that were erased; as with `changes_since`, everything where it is not known what changed.

        Returns:
          A context manager, and an iterator over `Block`s of rows.

        Raises:
          UnavailableError: More than `max_bytes` were written while the scan went on; or the table was bound to another
            optimizer; or the group lies on a read-only file system and changed. Here, or at the next block.

        Example:
          with table.scan(slots=False) as scan:
              for block in scan:
                  index.add(block.keys, block.rows)
        """
        (one,) = scan({self: since}, slots=slots, max_bytes=max_bytes).values()
        return one

    def metadata(self, keys: npt.ArrayLike) -> dict[str, npt.NDArray[Any]]:
        """What is stored under `keys` in the table's metadata planes (`config.metadata`), all of one step.

        Args:
          keys: int64[n].

        Returns:
          For each plane, by name, an array [n, elements] of its type; of bfloat16 uint16, the values' bits. Absent keys
          have zeros.
        """
        values: dict[str, npt.NDArray[Any]] = self._group.metadata(self._index, as_keys(keys))
        return values

    def changes_since(self, mark: str) -> Changes:
        """The keys that were written or erased since `mark_changes` returned `mark`.

        Args:
          mark: Of this table. With one of another table, of another life of this one, or from before its optimizer was
            replaced, what changed is not known, and the answer is everything; likewise when very many keys have been
            erased since.

        Returns:
          The keys, of one committed state. After a process was killed there may be more than changed, never less.

        Raises:
          InvalidArgumentError: No mark.
        """
        return Changes(*self._group.changed_since(self._index, self._generation(mark)))

    def core_initializer(self) -> dict[str, Any]:
        """What gives absent keys their rows: kind, a, b, seed and salt, as the core knows them."""
        initializer: dict[str, Any] = self._group_as_it_is.table_info(self._index)["initializer"]
        return initializer

    def stats(self) -> dict[str, Any]:
        """Sizes, optimizer and counters: rows, bytes, step, version, writer, and this process's counters.

        `bytes` is what the table takes in memory, `group_bytes` what all tables of its group, their undo log and
        control file do. Both count files in memory at the sizes that are reserved for growth. `bytes_on_disk` is apart.
        `shard` is "node i of n" where a job has spread the table over nodes, else None; sizes are the shard's.
        `device_dirty_since_step` is the step since which a device, of another process, has newer rows, else None.
        """
        group = self._group
        info = group.info()
        stats: dict[str, Any] = {
            "path": self.path,
            "uuid": self.uuid,
            "dim": self.config.dim,
            "shard": None if self.shard is None else str(self.shard),
            **group.stats(self._index),
            "step": info["step"],
            "version": info["version"],
            "device_dirty_since_step": newer_rows.dirty_since(self.path),
            "writer_pid": info["writer_pid"],
            "writer_alive": info["writer_alive"],
            "unfinished": info["unfinished"],
            "group_bytes": info["bytes"],
            "counters": group.counters(),
        }
        return stats

    def verify(self) -> Report:
        """Checks the table: index, row numbers and returned rows against each other, and that every key can be found.

        Damage is reported, not raised. Values have no checksums: a wrong one that is finite is not noticed.

        Raises:
          UnavailableError: The table kept changing.
        """
        problems: list[str] = []
        rows, step = len(self), self.step
        try:
            self._group.verify(self._index)
            with self.scan(slots=False) as scan:
                rows, step = len(scan), scan.step
                problems += self._problems_of_rows(scan)
        except (DamagedFileError, NotFoundError) as error:  # or rows on a disk are gone
            problems.append(str(error))
        return Report(not problems, tuple(problems), rows, step)

    def _problems_of_rows(self, scan: Scan) -> list[str]:
        problems: list[str] = []
        limit = self.config.key_limit
        for keys, values, *_ in scan:
            if limit is not None and (keys.min() < 0 or keys.max() >= limit):
                problems.append(f"a key is outside 0 .. {limit - 1}")
            if self.shard is not None and not self.shard.has(keys).all():
                problems.append(f"a key is not one of {self.shard}")
            if not np.isfinite(values).all():
                problems.append("a row is not finite")
        return sorted(set(problems))

    # --- writing ---

    def apply_gradients(self, keys: npt.ArrayLike, grads: npt.ArrayLike, counts: npt.ArrayLike | None = None) -> int:
        """Makes one optimizer step of the group, on this table. See `step` for several tables.

        Args:
          keys: Integers [n]; they may repeat.
          grads: float [n, dim]. Gradients of equal keys are added up.
          counts: int [n]: of how many ranks each row is the sum; the sums are then divided by the key's total.
            None: the rows come from one rank, nothing is divided.

        Returns:
          The group's step after this one.

        Raises:
          InvalidArgumentError: Wrong types or shapes, or a gradient that is not finite; nothing is applied.
          StateError: Mode is "r", or no optimizer is bound.
          NoSpaceError: No room for the new rows; nothing is applied.
        """
        return step({self: (keys, grads, counts)})

    def assign(
        self,
        keys: npt.ArrayLike,
        rows: npt.ArrayLike,
        slots: Sequence[npt.ArrayLike] = (),
        metadata: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """Sets rows, adding absent keys. Of equal keys the last wins. The step stays, the group's version grows.

        Args:
          keys: Integers [n].
          rows: float [n, dim]; of a table of 16 bits rounded to the nearest.
          slots: One float array per slot, with the shapes that `entries` returns; empty: present keys keep theirs, new
            keys get initial ones.
          metadata: Values of metadata planes by name, as `metadata()` returns them; likewise for planes that are left
            out.

        Raises:
          InvalidArgumentError, KeyRangeError, NoSpaceError: Nothing is changed. A finite value that is beyond the range
            of the table's type is an invalid argument, too, and a key that is not of this shard.
          StateError: Mode is "r".
        """
        self._writable().assign(
            self._index,
            self._own(keys),
            as_rows(rows, "rows"),
            [as_rows(values, "slots") for values in slots],
            as_planes(metadata),
        )

    def erase(self, keys: npt.ArrayLike) -> int:
        """Removes keys, integers [n], and returns how many of them were there."""
        return int(self._writable().erase(self._index, as_keys(keys)))

    def mark_changes(self) -> str:
        """Returns a mark of now for `changes_since`. Any number of consumers may have marks; none costs anything.

        Example:
          >>> mark = table.mark_changes()
          >>> table.save(full)
          >>> ...                                    # training goes on
          >>> changes = table.changes_since(mark)    # what a copy that was saved at `mark` lacks

        Raises:
          StateError: Mode is "r".
        """
        return self.mark(self._writable().mark_changes())

    def mark(self, generation: int) -> str:
        """What `mark_changes` returns of a change generation that has begun."""
        return f"{self.uuid}:{self._group.life():016x}:{generation}"

    def bind_optimizer(self, optimizer: optimizers.RowOptimizer, *, replace: bool = False) -> None:
        """Gives the table an update rule and its slots.

        Args:
          optimizer: The rule; its hyperparameters are used by this object's `apply_gradients`.
          replace: Drop the slots of another rule, instead of refusing.

        Raises:
          StateError: Another rule is bound and `replace` is False.
        """
        self._writable().bind_optimizer(self._index, optimizer.kind, list(optimizer.slot_init), replace)
        self.config = dataclasses.replace(self.config, optimizer=optimizer)

    # --- files (parameter_files.py) ---

    def export_parameter_file(self, path: str | os.PathLike[str], *, slots: bool = True, progress: bool = True) -> int:
        """Writes rows, slots and metadata to a sparse-parameter file (docs/format.md), whole or not at all.

        Of a shard its rows alone; the file says which shard that is.

        Args:
          path: The file; replaced if there.
          slots: Write the optimizer's slots and the metadata planes too.
          progress: Show a progress bar if it takes longer than two seconds.

        Returns:
          The number of rows written.

        Raises:
          UnavailableError: The table kept changing.
          WriterLockedError: Another process or thread is writing this file.
        """
        return parameter_files.export(self, path, slots=slots, progress=progress)

    def load_parameter_file(self, path: str | os.PathLike[str], *, slots: bool = True, progress: bool = True) -> int:
        """Assigns every row of a sparse-parameter file, block by block; to a shard those of its keys.

        Warns if the file has the rows of one node alone, of a table that was spread over several, and this is not that
        node's shard: it is whole when the files of all nodes have been loaded.

        Args:
          path: The file.
          slots: Also read its slots and metadata. A table without an optimizer then gets the file's; metadata planes
            that the file does not have get their initial value. False: rows alone; present keys keep their slots and
            metadata.
          progress: Show a progress bar if it takes longer than two seconds.

        Returns:
          The number of rows assigned.

        Raises:
          NotFoundError, DamagedFileError: The file is missing, truncated, foreign, newer or damaged. Blocks before a
            damaged one have been assigned.
          InvalidArgumentError: The file's rows have another width.
          StateError: The file has slots of another rule than the table, or a metadata plane that the table does not
            have, or has with another type or width; nothing has been assigned. Mode is "r".
        """
        return parameter_files.load(self, path, slots=slots, progress=progress)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the table to `<folder>/<name>.tfsps`, a sparse-parameter file with all planes; returns its path.

        Of a shard its rows alone, and the file says so; `model.save()` in the job that trains it writes those of all.

        Raises:
          UnavailableError: The table kept changing.
          WriterLockedError: Another process or thread is writing this file.
        """
        return parameter_files.save(self, folder)

    def restore(self, folder: str | os.PathLike[str]) -> int:
        """Makes the table what `save` wrote to `folder`: other keys are erased. The step stays.

        A restore that is killed leaves a mixture; restore again. Returns the number of rows.

        Raises:
          StateError: The file has the rows of one shard, and this is another one, or a whole table.
        """
        return parameter_files.restore(self, folder)

    # --- helpers ---

    def _generation(self, mark: str) -> int:
        """The change generation of a mark; of one that is not this table's, one that there is not."""
        found = _MARK.fullmatch(mark)
        if found is None:
            raise InvalidArgumentError(f"mark must be what mark_changes() returned. Received: {mark!r}")
        uuid, life, generation = found.groups()
        is_mine = uuid == self.uuid and life is not None and int(life, 16) == self._group.life()
        return min(int(generation), _UNKNOWN) if is_mine else _UNKNOWN

    def check_writable(self) -> None:
        """Raises StateError unless the mode is "r+"."""
        self._writable()

    def set_trained_by(self, identity: int, steps: int) -> None:
        """Says which optimizer made the slots, and how many steps it had made; 0: any may go on with them."""
        self._writable().set_optimizer(self._index, identity, steps)

    def bind_slots(self, kind: str, slot_init: Sequence[float], otherwise: str) -> None:
        """Makes slots of this rule if the table has none.

        Args:
          kind: The rule's name in the core: "sgd", "adagrad", "adam" or "rowwise_adagrad".
          slot_init: Initial value of the elements of each slot.
          otherwise: See below.

        Raises:
          StateError: It has slots of another rule; `otherwise` starts the message.
        """
        group = self._writable()
        bound = group.stats(self._index)["optimizer"]["kind"]
        if bound == "none":
            group.bind_optimizer(self._index, kind, list(slot_init), False)
        elif bound != kind:
            raise StateError(f"{otherwise}: table {self.path} is trained by {bound}")

    def _writable(self) -> Any:
        if self.mode != "r+":
            raise StateError(f'table {self.path} is open for reading; open it with mode "r+"')
        return self._group

    def _own(self, keys: npt.ArrayLike) -> Keys:
        """Keys as int64; of a shard all must be its own."""
        ids = as_keys(keys)
        if self.shard is not None:
            self.shard.check(ids, self.path)
        return ids

    def _assign_chunked(self, keys: Keys, rows: Rows) -> None:
        for chunk in chunks(len(keys), self.config.dim):
            self.assign(keys[chunk], rows[chunk])


def step(updates: Mapping[Table, Update]) -> int:
    """Makes one optimizer step of a group on several of its tables: all of it, or nothing.

    Args:
      updates: For each table its keys and gradients, and counts if wanted; see `Table.apply_gradients`. Tables of the
        group that are left out keep their rows.

    Returns:
      The group's step after this one.

    Raises:
      InvalidArgumentError: The tables are not of one group; or as `Table.apply_gradients`.
      StateError: A table is open for reading, or has no optimizer.
    """
    if not updates:
        raise InvalidArgumentError("a step needs at least one table")
    groups = [table._writable() for table in updates]
    if any(group is not groups[0] for group in groups):
        raise InvalidArgumentError(f"the tables of a step must be of one group. Received: {[t.path for t in updates]}")
    group = groups[0]
    number = group.step() + 1
    parts = []
    for table, (keys, grads, *rest) in updates.items():
        optimizer = table.config.optimizer
        if optimizer is None:
            raise StateError(
                f"table {table.path} has no optimizer: give one to TableConfig(optimizer=...) when creating it, "
                "to Table.open(config=...), or to bind_optimizer"
            )
        hyper = optimizer.hyper_values(number)
        if (constraint := table.config.resolved_constraint()) is not None:
            hyper += constraint.parameters
        counts = None
        if rest and rest[0] is not None:
            counts = as_counts(rest[0])
        parts.append((table._index, table._own(keys), as_rows(grads, "gradients"), counts, hyper))
    group.apply_step(number, parts)
    return int(number)


def scan(tables: Mapping[Table, str | None], *, slots: bool = True, max_bytes: int | None = None) -> dict[Table, Scan]:
    """Scans several tables of a group, all as of one committed state: see `Table.scan`.

    Args:
      tables: For each the mark since which its rows are wanted, or None: all of them.
      slots: As of `Table.scan`.
      max_bytes: How much memory the images may take, of all tables together.

    Returns:
      For each table its scan; they are read one at a time, by one thread. Images are kept until all are closed.

    Raises:
      InvalidArgumentError: The tables are not of one group; no mark.
      UnavailableError: As of `Table.scan`.
    """
    group = _common_group(tables, "a scan")
    marks = [None if mark is None else table._generation(mark) for table, mark in tables.items()]
    cores = group.scans([table._index for table in tables], slots, max_bytes or 0, marks)
    return {table: Scan(core, table.config.dim) for table, core in zip(tables, cores, strict=True)}


def _common_group(tables: Mapping[Table, Any], call: str) -> Any:
    """The group of tables.

    Raises:
      InvalidArgumentError: They are of several.
    """
    groups = {id(group): group for group in (table._group for table in tables)}
    if len(groups) != 1:
        raise InvalidArgumentError(f"{call} needs tables of one group. Received: {[t.path for t in tables]}")
    (group,) = groups.values()
    return group


def read(reads: Mapping[Table, npt.ArrayLike]) -> tuple[int, dict[Table, Rows]]:
    """Looks keys up in several tables of a group, all of one committed step.

    Args:
      reads: For each table its keys, integers of any shape.

    Returns:
      The step, and for each table float32[*keys.shape, dim].

    Raises:
      InvalidArgumentError: The tables are not of one group; or as `Table.lookup`.
    """
    group = _common_group(reads, "a read")
    ids = [table._own(keys) for table, keys in reads.items()]
    step, rows = group.lookup_tables([(t._index, k.reshape(-1)) for t, k in zip(reads, ids, strict=True)])
    return int(step), {t: values.reshape(*k.shape, t.config.dim) for t, k, values in zip(reads, ids, rows, strict=True)}


__all__ = ["NotFoundError", "Report", "Table", "TableExistsError", "as_keys", "step"]
