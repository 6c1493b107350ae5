"""Operations on several tables of a group at once: one step, one scan, or one read of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy.typing as npt

from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.table.arrays import Rows, as_counts, as_rows
from tf_sparse_ps.table.open_table import OpenTable
from tf_sparse_ps.table.scan import Scan

# keys and gradients, or keys, gradients and counts
Update = tuple[npt.ArrayLike, npt.ArrayLike] | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike | None]
AnyTable = TypeVar("AnyTable", bound=OpenTable)


def step(updates: Mapping[AnyTable, Update]) -> int:
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
    groups = [table._writable_group() for table in updates]
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
        parts.append((table._index, table._own_keys(keys), as_rows(grads, "gradients"), counts, hyper))
    group.apply_step(number, parts)
    return int(number)


def scan(
    tables: Mapping[AnyTable, str | None], *, slots: bool = True, max_bytes: int | None = None
) -> dict[AnyTable, Scan]:
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


def _common_group(tables: Mapping[AnyTable, Any], call: str) -> Any:
    """Returns the group of the tables.

    Raises:
      InvalidArgumentError: The tables belong to several groups.
    """
    groups = {id(group): group for group in (table._group for table in tables)}
    if len(groups) != 1:
        raise InvalidArgumentError(f"{call} needs tables of one group. Received: {[t.path for t in tables]}")
    (group,) = groups.values()
    return group


def read(reads: Mapping[AnyTable, npt.ArrayLike]) -> tuple[int, dict[AnyTable, Rows]]:
    """Looks keys up in several tables of a group, all of one committed step.

    Args:
      reads: For each table its keys, integers of any shape.

    Returns:
      The step, and for each table float32[*keys.shape, dim].

    Raises:
      InvalidArgumentError: The tables are not of one group; or as `Table.lookup`.
    """
    group = _common_group(reads, "a read")
    ids = [table._own_keys(keys) for table, keys in reads.items()]
    step, rows = group.lookup_tables([(t._index, k.reshape(-1)) for t, k in zip(reads, ids, strict=True)])
    return int(step), {t: values.reshape(*k.shape, t.config.dim) for t, k, values in zip(reads, ids, rows, strict=True)}
