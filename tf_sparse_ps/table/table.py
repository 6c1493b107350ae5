"""`Table`: the store without TensorFlow.

A table is a folder in its group's directory: `Table.create("/dev/shm/me/items/user", config)` makes the table `user` in
the group `/dev/shm/me/items`. All tables of a group share one writer and one step. A process opens a group once: two
`Table` objects of the same group share one mapping and one writer lock.

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
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.config.metadata import MetadataPlane, as_planes
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError, TableExistsError
from tf_sparse_ps.table import disk_folders, groups, newer_rows, several_tables
from tf_sparse_ps.table.arrays import Keys, Rows, as_keys, as_rows, chunks
from tf_sparse_ps.table.parameter_files import ParameterFiles
from tf_sparse_ps.table.scan import Changes, Report, Scan
from tf_sparse_ps.urls import local_path


class Table(ParameterFiles):
    """One table of a group. Reads are thread-safe; writes are serialised per group.

    Make one with `create` or `open`. A table is a context manager, which closes it at the end.

    Attributes:
      path: The path, `<group directory>/<table>`.
      mode: "r" to read, "r+" to read and write.
      config: The configuration. After `open`, `config.initializer` is the resolved initializer, and `config.optimizer`
        is the one that was given to `open`.
      uuid: The identity of the table, 32 hexadecimal digits.
      shard: The part of a sharded table that this node has; None: the whole table. Keys of other nodes can be neither
        looked up nor written here.
    """

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: TableConfig) -> Table:
        """Makes a table and opens it with mode "r+". Makes its group too, if the group does not exist.

        Args:
          path: The path, `<group directory>/<table>`. Its last part must be `config.name`, and the folder that contains
            the group must exist.
          config: The configuration. `config.optimizer` is bound to the table. Without an optimizer, the table can be
            read and assigned, but not trained.

        Raises:
          TableExistsError: The table exists already.
          WriterLockedError: Another process is the group's writer.
          InvalidArgumentError: The path does not end with `config.name`, or the configuration is for layers only.
          NoSpaceError, AccessError: The file system has no space left, or denies access.
        """
        folder, name = os.path.split(local_path(path))
        if name != config.name:
            raise InvalidArgumentError(f"the path must end with the table's name, {config.name!r}. Received: {path}")
        if config.placement != "replicated":
            raise InvalidArgumentError(
                f"table {config.name!r} cannot be sharded, because a tsps.Table is on one machine. Only tables of "
                f"layers can be sharded. Received: placement={config.placement}"
            )
        if config.cache is not None:
            raise InvalidArgumentError(
                f"table {config.name!r} cannot have a cache, because a tsps.Table has no rows on a device. Only tables "
                f"of layers can have a cache. Received: cache={config.cache}"
            )
        resolved = config.resolved_initializer()
        config = dataclasses.replace(config, metadata=config.planes)
        group = groups.open_group(folder, create=True)
        group.open_writer()
        if config.admission is not None and os.path.lexists(os.path.abspath(path) + SKETCH):
            raise TableExistsError(
                f"{path}{SKETCH} already exists, and the table needs this name for the table of its counts"
            )
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
        table._set_policies()
        if resolved.values is not None:
            table._assign_chunked(np.arange(config.key_limit or 0, dtype=np.int64), resolved.values())
        return table

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], mode: Literal["r", "r+"] = "r", config: TableConfig | None = None
    ) -> Table:
        """Opens a table.

        Args:
          path: The path, `<group directory>/<table>`.
          mode: "r" to read, while any process may write; "r+" to write, as the group's only writer.
          config: The expected configuration. The call fails if the width, key limit, type, optimizer or metadata of the
            table differ. `apply_gradients` uses the optimizer's hyperparameters, the constraint, the admission and the
            eviction; without `config` the table cannot be trained.

        Raises:
          NotFoundError: The group or the table does not exist.
          WriterLockedError: The mode is "r+" and another process, or this process's TensorFlow ops, is the writer.
          StateError: The table differs from `config`.
          DamagedFileError: A file is damaged or of a newer version.
          AccessError: A file belongs to another user, or the path contains a symbolic link.
        """
        if mode not in ("r", "r+"):
            raise InvalidArgumentError(f'mode must be "r" or "r+". Received: {mode!r}')
        folder, name = os.path.split(local_path(path))
        group = groups.open_group(folder)
        index = group.find_table(name)
        if mode == "r+":
            group.open_writer()
        info = group.table_info(index)
        stored = group.stats(index)["optimizer"]
        if config is not None:
            groups.check_same(str(path), info, stored, config)
        resolved_config = TableConfig(
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
            admission=None if config is None else config.admission,
            eviction=None if config is None else config.eviction,
        )
        table = cls(group, index, resolved_config, mode)
        if mode == "r+" and config is not None:
            table._set_policies()
        return table

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Returns the number of live keys."""
        return int(self._group.stats(self._index)["rows"])

    def __repr__(self) -> str:
        shard = "" if self.shard is None else f" shard: {self.shard}"
        return f"<tf_sparse_ps.Table {self.path} dim={self.config.dim} mode={self.mode!r}{shard}>"

    # --- reading ---

    def lookup(self, keys: npt.ArrayLike) -> Rows:
        """Returns the rows of `keys`, all in one step. Absent keys have their initial value. Writes nothing.

        Args:
          keys: The keys, integers of any shape.

        Returns:
          float32[*keys.shape, dim].

        Raises:
          InvalidArgumentError: The keys are not integers, or an unsigned key is greater than 2**63 - 1; or a key
            belongs to another shard.
          KeyRangeError: A key is outside a bounded table.
        """
        ids = self._own_keys(keys)
        rows: Rows = self._group.lookup(self._index, ids.reshape(-1))
        return rows.reshape(*ids.shape, self.config.dim)

    def keys(self) -> Keys:
        """Returns the live keys, int64[len(self)], of one committed state."""
        keys: Keys = self._group.keys(self._index)
        return keys

    def entries(
        self, keys: npt.ArrayLike, *, slots: bool = True
    ) -> tuple[npt.NDArray[np.bool_], Rows, tuple[Rows, ...]]:
        """Returns the stored rows and slots of `keys`, all in one step.

        Args:
          keys: The keys, int64[n].
          slots: Whether to read the optimizer's slots too.

        Returns:
          Whether each key is present, bool[n]; the rows, float32[n, dim]; and the slots, a tuple of float32[n, dim], or
          of float32[n, 1] if the rule keeps one float per row. Absent keys have zeros.
        """
        present, rows, values = self._group.entries(self._index, as_keys(keys), slots)
        return present, rows, tuple(values)

    def scan(self, *, slots: bool = True, max_bytes: int | None = None, since: str | None = None) -> Scan:
        """Reads the whole table in one committed state, while other processes may train it.

        The writer keeps images of the rows that it writes during the scan. It never waits for the scan.

        Args:
          slots: Whether to read the optimizer's slots and the metadata planes too.
          max_bytes: The memory that the images may take, in bytes. None: a quarter of the table, and at least 1 GiB.
          since: A mark from `mark_changes`, to read only the rows that were written since then; `Scan.erased` has the
            keys that were erased. If the changes since then are not known, the scan has all rows (see `changes_since`).

        Returns:
          A context manager, which is an iterator over `Block`s of rows.

        Raises:
          UnavailableError: The images need more than `max_bytes`; or the table was bound to another optimizer; or the
            group is on a read-only file system and changed. The call or the next block raises it.

        Example:
          with table.scan(slots=False) as scan:
              for block in scan:
                  index.add(block.keys, block.rows)
        """
        (scan,) = several_tables.scan({self: since}, slots=slots, max_bytes=max_bytes).values()
        return scan

    def metadata(self, keys: npt.ArrayLike) -> dict[str, npt.NDArray[Any]]:
        """Returns the values of `keys` in the table's metadata planes (`config.metadata`), all in one step.

        Args:
          keys: The keys, int64[n].

        Returns:
          An array [n, elements] for each plane, by name. It has the type of the plane; for bfloat16, uint16 with the
          bits of the values. Absent keys have zeros.
        """
        values: dict[str, npt.NDArray[Any]] = self._group.metadata(self._index, as_keys(keys))
        return values

    def changes_since(self, mark: str) -> Changes:
        """Returns the keys that were written or erased since `mark_changes` returned `mark`.

        Args:
          mark: A mark of this table. The changes are not known if the mark is of another table or another life of this
            one, if the optimizer was replaced since, or if very many keys were erased since. Then the result has all
            keys.

        Returns:
          The keys, in one committed state. After a process was killed, there may be more keys than changed, never less.

        Raises:
          InvalidArgumentError: The text is not a mark.
        """
        return Changes(*self._group.changed_since(self._index, self._generation(mark)))

    def core_initializer(self) -> dict[str, Any]:
        """Returns the initializer in the core's form: kind, a, b, seed and salt. It determines rows of absent keys."""
        initializer: dict[str, Any] = self._group_as_it_is.table_info(self._index)["initializer"]
        return initializer

    def stats(self) -> dict[str, Any]:
        """Returns sizes, optimizer and counters: rows, bytes, step, version, writer, and this process's counters.

        `bytes` is the memory of the table. `group_bytes` is the memory of all tables of its group, their undo log and
        the control file. Both count files in memory at the sizes that are reserved for growth, and do not include
        `bytes_on_disk`. `shard` is "node i of n" for a sharded table, whose sizes are those of the shard; else None.
        `device_dirty_since_step` is the step since which a device of another process has newer rows, or None.

        `evicted_unused` and `evicted_excess` count the rows that steps have evicted since the table was made, because
        they were unused, and because there were too many. `oldest_use_age` is the number of steps since the row that
        was trained last the longest ago was trained; None: there is no row, the table does not record the use of
        rows, or it has rows on disk.

        `admitted` counts the keys that got a row because they had occurred often enough, and `gradients_dropped` the
        gradients of keys that had not. If the table was opened with its admission, `sketch_fill` is the share of the
        sketch's cells that are in use, and `sketch_error` the estimated share of keys that would get a row the first
        time they occur; None: there is no sketch yet.
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
            "oldest_use_age": self._oldest_use_age(),
            "device_dirty_since_step": newer_rows.dirty_since(self.path),
            "writer_pid": info["writer_pid"],
            "writer_alive": info["writer_alive"],
            "unfinished": info["unfinished"],
            "group_bytes": info["bytes"],
            "counters": group.counters(),
        }
        if self.config.admission is not None:
            stats["sketch_fill"], stats["sketch_error"] = self.sketch_fill(self.config.admission)
        return stats

    def _oldest_use_age(self) -> int | None:
        found: tuple[int, int] | None = self._group.oldest_use(self._index)
        return None if found is None else max(0, found[0] - found[1])

    def verify(self) -> Report:
        """Checks that index, row numbers and returned rows agree, and that every key can be found.

        The report describes damage; the call does not raise it. Values have no checksums, so a wrong value that is
        finite is not detected.

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
        except (DamagedFileError, NotFoundError) as error:  # NotFoundError: rows on a disk were deleted
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
          keys: The keys, integers [n], which may repeat.
          grads: The gradients, float [n, dim]. Gradients of equal keys are added up.
          counts: The number of ranks whose gradients each row sums up, int [n]. The sum of a key is divided by the
            total of its counts. None: the rows come from one rank, and nothing is divided.

        Returns:
          The group's step after this one.

        Raises:
          InvalidArgumentError: A type or shape is wrong, or a gradient is not finite. Nothing is applied.
          StateError: The mode is "r", or no optimizer is bound.
          NoSpaceError: The new rows do not fit. Nothing is applied.
        """
        return several_tables.step({self: (keys, grads, counts)})

    def assign(
        self,
        keys: npt.ArrayLike,
        rows: npt.ArrayLike,
        slots: Sequence[npt.ArrayLike] = (),
        metadata: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """Sets rows, and adds absent keys. If a key repeats, its last row counts. The group's step does not change.

        Args:
          keys: The keys, integers [n].
          rows: The rows, float [n, dim]. They are rounded to the nearest value of the table's type.
          slots: One float array per slot, with the shapes that `entries` returns. If empty, present keys keep their
            slots, and new keys get initial ones.
          metadata: The values of metadata planes by name, as `metadata()` returns them. In planes that are left out,
            present keys keep their values, and new keys get initial ones.

        Raises:
          InvalidArgumentError: A type or shape is wrong, a finite value is beyond the range of the table's type, or a
            key belongs to another shard. Nothing is changed.
          KeyRangeError: A key is outside a bounded table. Nothing is changed.
          NoSpaceError: The new rows do not fit. Nothing is changed.
          StateError: The mode is "r".
        """
        self._writable_group().assign(
            self._index,
            self._own_keys(keys),
            as_rows(rows, "rows"),
            [as_rows(values, "slots") for values in slots],
            as_planes(metadata),
        )

    def erase(self, keys: npt.ArrayLike) -> int:
        """Removes keys, integers [n], and returns the number of keys that were present."""
        return int(self._writable_group().erase(self._index, as_keys(keys)))

    def mark_changes(self) -> str:
        """Returns a mark of the present state for `changes_since`. A mark costs nothing, so there may be any number.

        Example:
          >>> mark = table.mark_changes()
          >>> table.save(full)
          >>> ...                                    # training continues
          >>> changes = table.changes_since(mark)    # the changes that the saved copy lacks

        Raises:
          StateError: The mode is "r".
        """
        return self.mark(self._writable_group().mark_changes())

    def mark(self, generation: int) -> str:
        """Returns the mark of a change generation that has begun, in the form of `mark_changes`."""
        return f"{self.uuid}:{self._group.life():016x}:{generation}"

    def bind_optimizer(self, optimizer: optimizers.RowOptimizer, *, replace: bool = False) -> None:
        """Gives the table an update rule and its slots.

        Args:
          optimizer: The rule. This object's `apply_gradients` uses its hyperparameters.
          replace: Whether to drop the slots of another rule instead of raising an error.

        Raises:
          StateError: The mode is "r", or another rule is bound and `replace` is False.
        """
        self._writable_group().bind_optimizer(self._index, optimizer.kind, list(optimizer.slot_init), replace)
        self.config = dataclasses.replace(self.config, optimizer=optimizer)

    def _assign_chunked(self, keys: Keys, rows: Rows) -> None:
        for chunk in chunks(len(keys), self.config.dim):
            self.assign(keys[chunk], rows[chunk])
