"""Tables to and from sparse-parameter files (docs/format.md). `Table` has these as methods."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from tf_sparse_ps import _table
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.errors import InvalidArgumentError, StateError

if TYPE_CHECKING:
    from tf_sparse_ps.table.table import Table

_PROGRESS_DELAY_S = 2.0


def export(table: Table, path: str | os.PathLike[str], *, slots: bool, progress: bool) -> int:
    """See `Table.export_parameter_file`."""
    with table.scan(slots=slots) as scan:
        rule = scan.optimizer if slots else {"kind": "none", "slot_init": ()}
        writer = _table.ParameterFileWriter(
            path=os.fspath(path),
            dim=table.config.dim,
            n_rows=len(scan),
            key_limit=table.config.key_limit or 0,
            step=scan.step,
            optimizer=rule["kind"],
            slot_init=list(rule["slot_init"]),
            initializer=table.core_initializer(),
            metadata=[plane.for_core() for plane in table.config.metadata] if slots else [],
            dtype=table.config.dtype,
        )
        # Closed, it removes what is not finished, and another one may write to the path: an exception keeps the object.
        with contextlib.closing(writer), _bar(len(scan), f"export {Path(path).name}", progress) as bar:
            for keys, rows, values, metadata in scan:
                writer.append(keys, rows, list(values), metadata)
                bar.update(len(rows))
            writer.finish()
        return len(scan)


def load(table: Table, path: str | os.PathLike[str], *, slots: bool, progress: bool) -> int:
    """See `Table.load_parameter_file`."""
    table.check_writable()
    reader = _table.ParameterFileReader(os.fspath(path))
    info = reader.info()
    if info["dim"] != table.config.dim:
        raise InvalidArgumentError(
            f"{path} has rows of {info['dim']} floats; table {table.path} has {table.config.dim}"
        )
    absent = _planes_without_values(table, path, info["metadata"]) if slots else []
    rule = info["optimizer"]
    if slots and rule["kind"] != "none":
        table.bind_slots(
            rule["kind"], rule["slot_init"], f"{path} has slots of {rule['kind']}; load it with slots=False"
        )
    with _bar(info["n_rows"], f"load {Path(path).name}", progress) as bar:
        for block in range(reader.blocks()):
            keys, rows, values, metadata = reader.read_block(block, slots)
            table.assign(keys, rows, values, metadata | {plane.name: plane.full(len(keys)) for plane in absent})
            bar.update(len(keys))
    return int(info["n_rows"])


def _planes_without_values(
    table: Table, path: str | os.PathLike[str], stored: Sequence[Mapping[str, Any]]
) -> list[MetadataPlane]:
    """The table's metadata planes that a file, whose planes are `stored`, does not have.

    Raises:
      StateError: The file has one that the table does not have, or has with another type or width.
    """
    mine = {plane.name: plane for plane in table.config.metadata}
    for theirs in map(MetadataPlane.from_core, stored):
        own = mine.pop(theirs.name, None)
        if own is None or (own.type, own.elements) != (theirs.type, theirs.elements):
            has = "has no such plane" if own is None else f"has {own}"
            raise StateError(
                f"{path} has a metadata plane {theirs}, table {table.path} {has}; load it with slots=False for the "
                "rows alone"
            )
    return list(mine.values())


def save(table: Table, folder: str | os.PathLike[str]) -> Path:
    """See `Table.save`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{table.config.name}.tfsps"
    export(table, path, slots=True, progress=True)
    return path


def restore(table: Table, folder: str | os.PathLike[str]) -> int:
    """See `Table.restore`."""
    path = Path(folder) / f"{table.config.name}.tfsps"
    reader = _table.ParameterFileReader(os.fspath(path))  # every block is read before anything is erased
    kept = [reader.read_block(block, False)[0] for block in range(reader.blocks())]
    rows = load(table, path, slots=True, progress=True)
    table.erase(np.setdiff1d(table.keys(), np.concatenate([np.empty(0, np.int64), *kept])))
    return rows


def _bar(total: int, what: str, show: bool) -> Any:
    disable = None if show else True  # None: not where there is no terminal
    return tqdm(total=total, desc=what, unit=" rows", unit_scale=True, delay=_PROGRESS_DELAY_S, disable=disable)
