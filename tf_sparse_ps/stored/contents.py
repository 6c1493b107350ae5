"""`Content`: one table, which is in a group's folder, a file, a checkpoint or a served version."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table, optimizers
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.errors import AccessError, KeyRangeError
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.serving.version import TableEntry
from tf_sparse_ps.table import stored_policies
from tf_sparse_ps.table.arrays import Keys, Rows, block_rows
from tf_sparse_ps.table.groups import plain_name
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.shards import Shard
from tf_sparse_ps.table.table import Table

_ROW_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Entries(NamedTuple):
    """The values of some keys."""

    present: npt.NDArray[np.bool_]
    """bool[n]: whether a key has a row. The others read their initial value."""
    rows: Rows
    """float32[n, dim]."""
    planes: dict[str, npt.NDArray[Any]]
    """Slots and metadata by name, [n, elements] each. Keys without a row have zeros."""


class Content(abc.ABC):
    """One table.

    Attributes:
      name: The name of the table.
      where: The table and where it is, for messages: "table /dev/shm/...".
      dim: The number of floats in a row.
      slots: The names of the optimizer's slots that are stored.
      shard: The shard that the rows are; None: the whole table.
      step: The step that the rows have.
      at_most: The number of rows, at most.
      header: The configuration, as the header of a sparse-parameter file has it: dim, dtype, key_limit, initializer,
        optimizer, trained_by and step.
      finds_keys: Whether `entries` finds keys without reading all rows.
    """

    name: str
    where: str
    dim: int
    slots: tuple[str, ...] = ()
    shard: Shard | None = None
    step: int
    at_most: int
    header: Mapping[str, Any]
    finds_keys = True

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """Describes the state of the rows, for comparison. Equal descriptions: equal rows."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Describes the table, as `schemas/inspect.json` does."""

    @abc.abstractmethod
    def blocks(self, *, slots: bool) -> Iterator[Block]:
        """Yields all rows, each key once. `slots`: with slots and metadata."""

    @abc.abstractmethod
    def entries(self, keys: Keys, *, slots: bool) -> Entries:
        """Returns the values of keys, int64[n].

        Raises:
          KeyRangeError: A key is outside of a bounded table.
          InvalidArgumentError: A key belongs to another shard.
        """

    def key_parts(self) -> Iterator[Keys]:
        """Yields the keys that have rows, in parts: int64[n] each."""
        for block in self.blocks(slots=False):
            yield block.keys

    @property
    def settings(self) -> dict[str, Any]:
        """The facts that determine what absent keys read: key_limit and initializer."""
        return {"key_limit": self.header["key_limit"] or None, "initializer": dict(self.header["initializer"])}


class LiveTable(Content):
    """A table of a group."""

    def __init__(self, table: Table) -> None:
        """Reads the configuration of a table that is open."""
        self._table = table
        stats = table.stats()
        self._info = table._group.table_info(table._index)
        self.name, self.where = os.path.basename(table.path), f"table {table.path}"
        self.dim, self.shard, self.step = table.config.dim, table.shard, table.step
        self.slots, self.at_most = slots_of(stats["optimizer"]), int(stats["rows"])
        self.header = {
            **self._info,
            "optimizer": stats["optimizer"],
            "trained_by": stats["trained_by"],
            "step": self.step,
        }

    @property
    def identity(self) -> str:
        return f"table {self._table.uuid} in state {self._table.version()}"

    def facts(self) -> dict[str, Any]:
        stats, info = self._table.stats(), self._info
        planes, index_bytes = _plane_bytes(Path(self._table.path))
        tiers = None
        if info["storage_folder"]:
            tiers = {"folder": info["storage_folder"], "memory": info["storage_memory"]}
            tiers |= {name: stats[name] for name in ("rows_on_disk", "bytes_on_disk", "live_bytes_on_disk")}
        return describe(self) | {
            "uuid": self._table.uuid,
            "max_rows": info["max_rows"] or None,
            "rows": stats["rows"],
            "bytes": stats["bytes"],
            "planes": planes,
            "index": {
                "segments": stats["segments"],
                "load": own_groups.index_load(stats),
                "row_capacity": stats["row_capacity"],
                "bytes": index_bytes,
            },
            "tiers": tiers,
            "policies": self._policies(),
            "evicted_unused": stats["evicted_unused"],
            "evicted_excess": stats["evicted_excess"],
            "admitted": stats["admitted"],
            "gradients_dropped": stats["gradients_dropped"],
            "device_dirty_since_step": stats["device_dirty_since_step"],
        }

    def blocks(self, *, slots: bool) -> Iterator[Block]:
        with self._table.scan(slots=slots) as scan:
            self.step = scan.step
            yield from scan

    def entries(self, keys: Keys, *, slots: bool) -> Entries:
        present, rows, values = self._table.entries(keys, slots=slots)
        if not present.all():
            rows[~present] = self._table.lookup(keys[~present])
        planes: dict[str, npt.NDArray[Any]] = dict(zip(self.slots, values, strict=True)) if slots else {}
        if slots:
            planes |= self._table.metadata(keys)
        return Entries(present, rows, planes)

    def verify(self) -> tuple[list[str], int]:
        """Checks the table. Returns the problems, as sentences, and the number of rows."""
        report = self._table.verify()
        return list(report.problems), report.rows

    def _policies(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, AccessError):
            policies = stored_policies.read(self._table.path)
            return None if policies is None else dict(policies)
        return None


class _Files(Content):
    """Rows in sparse-parameter files, which can be read from the beginning only."""

    finds_keys = False

    def __init__(self, name: str, where: str, header: Mapping[str, Any], at_most: int) -> None:
        self.name, self.where, self.header, self.at_most = name, where, header, at_most
        self.dim, self.step, self.shard = int(header["dim"]), int(header["step"]), Shard.of(header)
        self.slots = slots_of(header["optimizer"])

    def facts(self) -> dict[str, Any]:
        widths = _table.slot_widths(self.header["optimizer"]["kind"], self.dim)
        planes = {"embedding": self.dim * _ROW_BYTES[self.header["dtype"]]}
        planes |= {slot: width * 4 for slot, width in zip(self.slots, widths, strict=True)}
        for plane in map(MetadataPlane.from_core, self.header["metadata"]):
            planes[plane.name] = plane.elements * plane.dtype.itemsize
        return describe(self) | {
            "rows": self.at_most,
            "planes": [{"name": name, "bytes": width * self.at_most} for name, width in {"key": 8, **planes}.items()],
        }

    def entries(self, keys: Keys, *, slots: bool) -> Entries:
        limit = self.header["key_limit"]
        for key in keys[(keys < 0) | (keys >= limit)] if limit else ():
            raise KeyRangeError(f"key {key} is outside of table {self.name!r}, whose keys are 0 to {limit - 1}")
        if self.shard is not None:
            self.shard.check(keys, self.name)
        wanted, places = np.unique(keys, return_inverse=True)
        present = np.zeros(len(wanted), np.bool_)
        rows = _table.initial_rows(self.header["initializer"], wanted, self.dim)
        planes: dict[str, npt.NDArray[Any]] = {}
        for block in self.blocks(slots=slots) if len(wanted) else ():
            values = dict(zip(self.slots, block.slots, strict=False)) | block.metadata
            for name, plane in values.items():
                planes.setdefault(name, np.zeros((len(wanted), *plane.shape[1:]), plane.dtype))
            at = np.minimum(np.searchsorted(wanted, block.keys), len(wanted) - 1)
            here = wanted[at] == block.keys
            at = at[here]
            present[at], rows[at] = True, block.rows[here]
            for name, plane in values.items():
                planes[name][at] = plane[here]
            if present.all():
                break
        places = places.reshape(-1)
        return Entries(present[places], rows[places], {name: plane[places] for name, plane in planes.items()})


class FileTable(_Files):
    """A sparse-parameter file."""

    def __init__(self, path: Path) -> None:
        """Reads the header."""
        self.path, self._reader = path, _table.ParameterFileReader(os.fspath(path))
        header = self._reader.info()
        super().__init__(path.stem, f"file {path}", header, int(header["n_rows"]))

    @property
    def identity(self) -> str:
        n_blocks = self._reader.blocks()
        ends = [self._reader.block_checksum(number) for number in {0, n_blocks - 1} if n_blocks]
        return f"a file with the header {self.header}, and checksums of blocks {ends}"

    def blocks(self, *, slots: bool) -> Iterator[Block]:
        for number in range(self._reader.blocks()):
            keys, rows, values, metadata = self._reader.read_block(number, slots)
            yield Block(keys, rows, tuple(values), metadata)


class CheckpointTable(_Files):
    """A table of a checkpoint, with what it builds on."""

    def __init__(self, checkpoint: StoredCheckpoint, number: int) -> None:
        """Reads the headers of the files. `number`: the place of the table in the checkpoint."""
        self._stored = StoredRows(checkpoint, number)
        facts = checkpoint.manifest.tables[number]
        name = str(facts["name"])
        if "sketch_of" in facts:
            name = f"{checkpoint.manifest.tables[facts['sketch_of']]['name']} (counts)"
        where = f"table {name!r} of checkpoint {checkpoint.path}"
        super().__init__(name, where, self._stored.info, self._stored.at_most)
        self.shard = self._stored.shard
        self._identity = f"table {number} of the checkpoint with id {checkpoint.manifest.id}"
        self._parts = len(checkpoint.manifest.parts(number))
        self._is_exact = not checkpoint.builds_on

    @property
    def identity(self) -> str:
        return self._identity

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"rows_are_exact": self._is_exact, "parts": self._parts}

    def blocks(self, *, slots: bool) -> Iterator[Block]:
        return self._stored.blocks(slots)


class ServedTable(Content):
    """A table of a served version."""

    def __init__(self, table: ServingTable, entry: TableEntry | None = None) -> None:
        """Reads the headers of the files. `entry`: what the version's manifest says of the table."""
        self._table, self._entry = table, entry
        self._files = list(table.files())
        self.name = plain_name(Path(table.path).stem) if entry is None else entry.name
        self.where = f"served table {table.path}"
        self.dim, self.step = table.dim, table.step
        self.at_most = sum(int(file["n_rows"]) for file in self._files)
        rule = {"kind": "none", "slot_init": ()}
        self.header = {**self._files[0], "optimizer": rule, "trained_by": (0, 0), "step": table.step}

    @property
    def identity(self) -> str:
        return f"served files {[(file['bytes'], file['crc']) for file in self._files]}"

    def facts(self) -> dict[str, Any]:
        return describe(self) | {
            "uuid": None if self._entry is None else self._entry.uuid,
            "rows": self.at_most,
            "rows_are_exact": len(self._files) == 1,
            "bytes": sum(file["bytes"] for file in self._files),
            "planes": [{"name": "embedding", "bytes": sum(file["n_rows"] * file["row_bytes"] for file in self._files)}],
            "stored_as": self._table.rows,
            "absent": None if self._entry is None else self._entry.absent,
            "files": [
                {
                    "name": os.path.basename(file["path"]),
                    "layer": file["layer"],
                    "keys": file["n_keys"],
                    "rows": file["n_rows"],
                    "bytes": file["bytes"],
                    "step": file["step"],
                }
                for file in self._files
            ],
        }

    def key_parts(self) -> Iterator[Keys]:
        return self._table.key_parts()

    def blocks(self, *, slots: bool) -> Iterator[Block]:
        step = block_rows(self.dim)
        for part in self.key_parts():
            for begin in range(0, len(part), step):
                keys = part[begin : begin + step]
                yield Block(keys, self._table.lookup(keys), (), {})

    def entries(self, keys: Keys, *, slots: bool) -> Entries:
        return Entries(self._table.contains(keys), self._table.lookup(keys), {})


def slots_of(rule: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the slots of a stored update rule."""
    return () if rule["kind"] == "none" else optimizers.of_kind(rule["kind"], rule["slot_init"]).slots


def describe(content: Content) -> dict[str, Any]:
    """Returns the facts about a table that all kinds of storage have; facts that only some have are None."""
    info, rule = content.header, content.header["optimizer"]
    widths = _table.slot_widths(rule["kind"], content.dim)
    slots = zip(content.slots, widths, rule["slot_init"], strict=True)
    return {
        "name": content.name,
        "uuid": None,
        "dim": content.dim,
        "dtype": info["dtype"],
        "key_limit": info["key_limit"] or None,
        "max_rows": None,
        "rows": 0,
        "rows_are_exact": True,
        "bytes": None,
        "initializer": dict(info["initializer"]),
        "optimizer": {
            "kind": rule["kind"],
            "slots": [{"name": name, "width": width, "initial": initial} for name, width, initial in slots],
        },
        "metadata": [
            {"name": plane["name"], "type": plane["type"], "elements": plane["elements"]}
            for plane in info.get("metadata", ())
        ],
        "shard": None if content.shard is None else {"node": content.shard.node, "nodes": content.shard.nodes},
        "planes": [],
        "index": None,
        "tiers": None,
        "policies": None,
    }


def _plane_bytes(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the bytes in memory of each plane of a live table, and those of its other files."""
    planes: dict[str, int] = {}
    others = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # the writer has replaced the plane
                taken = entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.name.startswith("plane."):
                    name = entry.name.split(".")[1]
                    planes[name] = planes.get(name, 0) + taken
                else:
                    others += taken
    return [{"name": name, "bytes": taken} for name, taken in sorted(planes.items())], others
