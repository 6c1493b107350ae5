"""Operations on several tables of a group at once: one step, one scan, or one read of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy.typing as npt

from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.table.arrays import Rows, as_counts, as_rows
from tf_sparse_ps.table.open_table import OpenTable
from tf_sparse_ps.table.scan import Scan

# The keys and gradients of a table, or its keys, gradients and counts.
Update = tuple[npt.ArrayLike, npt.ArrayLike] | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike | None]
AnyTable = TypeVar("AnyTable", bound=OpenTable)


def step(updates: Mapping[AnyTable, Update]) -> int:
    """Makes one optimizer step of a group on several of its tables, on all of them or on none.

    Args:
      updates: The keys and gradients, and optionally counts, of each table; see `Table.apply_gradients`. Other tables
        of the group keep their rows.

    Returns:
      The group's step after this one.

    Raises:
      InvalidArgumentError: The tables belong to several groups, or an argument is wrong as in `Table.apply_gradients`.
      StateError: A table is open for reading only, or has no optimizer.
      NoSpaceError: The new rows do not fit. No table is changed.
    """
    if not updates:
        raise InvalidArgumentError("a step needs at least one table. Received: none")
    groups = [table._writable_group() for table in updates]
    if any(group is not groups[0] for group in groups):
        raise InvalidArgumentError(
            f"the tables of a step must belong to one group. Received: {[t.path for t in updates]}"
        )
    group = groups[0]
    number = group.step() + 1
    parts = []
    for table, (keys, grads, *rest) in updates.items():
        optimizer = table.config.optimizer
        if optimizer is None:
            raise StateError(
                f"table {table.path} has no optimizer. Give one to TableConfig(optimizer=...) when you create it, "
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
    """Scans several tables of a group, all in one committed state. See `Table.scan`.

    Args:
      tables: For each table, the mark since which its rows are wanted, or None for all rows.
      slots: The argument `slots` of `Table.scan`.
      max_bytes: The memory that the images of all tables together may take, in bytes.

    Returns:
      A scan for each table. One thread reads them, one scan at a time. Images are kept until all scans are closed.

    Raises:
      InvalidArgumentError: The tables belong to several groups, or a mark is invalid.
      UnavailableError: See `Table.scan`.
    """
    group = _common_group(tables, "a scan")
    marks = [None if mark is None else table._generation(mark) for table, mark in tables.items()]
    cores = group.scans([table._index for table in tables], slots, max_bytes or 0, marks)
    return {table: Scan(core, table.config.dim) for table, core in zip(tables, cores, strict=True)}


def _common_group(tables: Mapping[AnyTable, Any], call: str) -> Any:
    """Returns the group of the tables.

    Raises:
      InvalidArgumentError: The tables belong to several groups, or no table is given.
    """
    groups = {id(group): group for group in (table._group for table in tables)}
    if len(groups) != 1:
        raise InvalidArgumentError(f"{call} needs tables of one group. Received: {[t.path for t in tables]}")
    (group,) = groups.values()
    return group


def read(reads: Mapping[AnyTable, npt.ArrayLike]) -> tuple[int, dict[AnyTable, Rows]]:
    """Looks up keys in several tables of a group, all in one committed step.

    Args:
      reads: The keys for each table, integers of any shape.

    Returns:
      The step, and the rows for each table, float32[*keys.shape, dim].

    Raises:
      InvalidArgumentError: The tables belong to several groups, or keys are wrong as in `Table.lookup`.
      KeyRangeError: A key is outside a bounded table.
    """
    group = _common_group(reads, "a read")
    ids = [table._own_keys(keys) for table, keys in reads.items()]
    step, rows = group.lookup_tables([(t._index, k.reshape(-1)) for t, k in zip(reads, ids, strict=True)])
    return int(step), {t: values.reshape(*k.shape, t.config.dim) for t, k, values in zip(reads, ids, rows, strict=True)}
