"""`Table`: the store without TensorFlow.

A table lies in a group's directory: `Table.create("/dev/shm/me/items/user", config)` makes the table `user` in the
group `/dev/shm/me/items`. All tables of a group share one writer and one step. Within a process the groups are shared:
two `Table` objects of one group use one mapping and one writer lock.

While a TensorFlow job trains a group, the job's leader is its writer; open its tables with mode "r".
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import optimizers
from tf_sparse_ps.config.metadata import MetadataPlane, as_planes
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError
from tf_sparse_ps.table import disk_folders, groups, newer_rows, several_tables
from tf_sparse_ps.table.arrays import Keys, Rows, as_keys, as_rows, chunks
from tf_sparse_ps.table.parameter_files import ParameterFiles
from tf_sparse_ps.table.scan import Changes, Report, Scan


class Table(ParameterFiles):
    """One table of a group. Reads are thread-safe; writes are serialised per group.

    Use `create` or `open`. A context manager: leaving it closes the table.

    Attributes:
      path: `<group directory>/<table>`.
      mode: "r" or "r+".
      config: The configuration. After `open`, `config.initializer` is the resolved initializer, and `config.optimizer`
        is the one that was given to `open`.
      uuid: 32 hexadecimal digits.
      shard: The part of a sharded table that this node has; None: the whole table. Keys of other nodes can be neither
        looked up nor written here.
    """

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
        ids = self._own_keys(keys)
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
        (one,) = several_tables.scan({self: since}, slots=slots, max_bytes=max_bytes).values()
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
        return several_tables.step({self: (keys, grads, counts)})

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
        self._writable_group().assign(
            self._index,
            self._own_keys(keys),
            as_rows(rows, "rows"),
            [as_rows(values, "slots") for values in slots],
            as_planes(metadata),
        )

    def erase(self, keys: npt.ArrayLike) -> int:
        """Removes keys, integers [n], and returns how many of them were there."""
        return int(self._writable_group().erase(self._index, as_keys(keys)))

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
        return self.mark(self._writable_group().mark_changes())

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
        self._writable_group().bind_optimizer(self._index, optimizer.kind, list(optimizer.slot_init), replace)
        self.config = dataclasses.replace(self.config, optimizer=optimizer)

    def _assign_chunked(self, keys: Keys, rows: Rows) -> None:
        for chunk in chunks(len(keys), self.config.dim):
            self.assign(keys[chunk], rows[chunk])
