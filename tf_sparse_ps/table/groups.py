"""The groups that are open in this process, and the check that a stored table has the expected configuration."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps.config.metadata import USE, MetadataPlane
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError, StateError
from tf_sparse_ps.folders import Folder, Trust

# The groups that are open in this process, by path. A group stays open as long as one of its tables is.
_groups: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_groups_lock = threading.Lock()


def plain_name(folder: str) -> str:
    """Returns the name of a table without its number: tables of a job are named t0000-words, and words elsewhere."""
    number, _, rest = folder.partition("-")
    return rest if rest and number[:1] == "t" and number[1:].isdecimal() else folder


def table_number(where: str, names: Sequence[str], name: str | None) -> int:
    """Returns the place of a table among those of a group, a checkpoint or a version.

    Args:
      where: What has the tables, for messages.
      names: The names of its tables.
      name: The name of the table, with or without its number, or its place, from "0" on. None: the only table.

    Raises:
      NotFoundError: There is no such table.
      InvalidArgumentError: There are several.
    """
    numbers = [number for number, each in enumerate(names) if name in (None, each, plain_name(each))]
    if not numbers and name is not None and name.isdecimal() and int(name) < len(names):
        return int(name)
    if not numbers:
        raise NotFoundError(f"{where} has no table {'at all' if name is None else repr(name)}. It has {list(names)}")
    if len(numbers) > 1:
        raise InvalidArgumentError(
            f"{where} has the tables {list(names)}. Select one by a name that only it has, or by its place, from 0 on. "
            f"Received: {name!r}"
        )
    return numbers[0]


def open_group(path: str, *, create: bool = False) -> _table.Group:
    """Returns the group in a directory, always the same object within the process.

    Args:
      path: The directory.
      create: Whether to make the group if it does not exist.
    """
    real = os.path.abspath(path)
    with _groups_lock:
        group = _groups.get(real)
        if group is not None and not group.in_place():
            group = None  # it was removed in the meantime, and another group may be in its place
        if group is None:
            with contextlib.suppress(FileNotFoundError):  # the core reports what is missing
                Folder.open(os.path.dirname(real), Trust.OWN).close()  # checks that nobody else can replace the group
            if create and not os.path.lexists(real):
                group = _table.Group.create(real, secrets.token_hex(16))
            else:
                group = _table.Group.open(real)
            _groups[real] = group
        return group


def forget(path: str) -> None:
    """Unmaps a table, `<group directory>/<table>`, if its group is open. Nobody in this process uses the table."""
    folder, name = os.path.split(os.path.abspath(path))
    with _groups_lock:
        group = _groups.get(folder)
    if group is not None:
        group.forget_table(name)


def check_same(path: str, info: dict[str, Any], stored: dict[str, Any], config: TableConfig) -> None:
    """Raises StateError if a stored table differs from a configuration.

    Args:
      path: The path of the table, for messages.
      info: The core's description of the table.
      stored: The core's description of the optimizer that is bound to the table.
      config: The expected configuration.
    """
    expectations = {"dim": config.dim, "key_limit": config.key_limit or 0, "dtype": config.dtype}
    if config.dtype != "float32":
        expectations["rounding"] = config.rounding
    for name, expected in expectations.items():
        if info[name] != expected:
            raise StateError(f"table {path} has {name}={info[name]}; the configuration expected {name}={expected}")
    planes = tuple(map(MetadataPlane.from_core, info["metadata"]))
    # Planes are compared in the core's form, which has rounded initial values.
    if [plane.for_core() for plane in config.metadata if plane != USE] != [
        plane.for_core() for plane in planes if plane != USE
    ]:
        raise StateError(f"table {path} has metadata={planes}; the configuration expected metadata={config.metadata}")
    if config.eviction is not None and USE not in planes:
        raise StateError(
            f"table {path} does not record the use of its rows, so it cannot evict any. Save it, make a table with "
            "this configuration, and load the file"
        )
    rule = config.optimizer
    if rule is not None and stored["kind"] != "none":
        bound = (stored["kind"], tuple(stored["slot_init"]))
        expected_rule = rule.slot_identity
        if bound != expected_rule:
            raise StateError(
                f"table {path} is trained by {bound[0]} with initial slots {bound[1]}; the configuration expected "
                f"{expected_rule[0]} with initial slots {expected_rule[1]}"
            )


def keras_form(initializer: dict[str, Any]) -> Any:
    """Returns the Keras initializer for a stored one."""
    a, b = initializer["a"], initializer["b"]
    return {
        "zeros": "zeros",
        "constant": {"class_name": "Constant", "config": {"value": a}},
        "uniform": {"class_name": "RandomUniform", "config": {"minval": a, "maxval": b}},
        "normal": {"class_name": "RandomNormal", "config": {"mean": a, "stddev": b}},
        "truncated_normal": {"class_name": "TruncatedNormal", "config": {"mean": a, "stddev": b}},
    }[initializer["kind"]]
