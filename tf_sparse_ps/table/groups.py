"""The groups this process has open, and what a stored table is, compared with what it should be."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.folders import Folder, Trust

# The groups this process has open by path; a group stays as long as one of its tables does.
_groups: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_groups_lock = threading.Lock()


def open_group(path: str, *, create: bool = False) -> _table.Group:
    """The group in this directory, the same object for everyone in the process.

    Args:
      path: The directory.
      create: Make it if it is not there.
    """
    real = os.path.abspath(path)
    with _groups_lock:
        group = _groups.get(real)
        if group is not None and not group.in_place():
            group = None  # removed behind our back; another one may be there by now
        if group is None:
            with contextlib.suppress(FileNotFoundError):  # the core says what is missing
                Folder.open(os.path.dirname(real), Trust.OWN).close()  # nobody else can replace the group
            if create and not os.path.lexists(real):
                group = _table.Group.create(real, secrets.token_hex(16))
            else:
                group = _table.Group.open(real)
            _groups[real] = group
        return group


def forget(path: str) -> None:
    """Unmaps a table, `<group directory>/<table>`, that nobody in this process needs, if its group is open here."""
    folder, name = os.path.split(os.path.abspath(path))
    with _groups_lock:
        group = _groups.get(folder)
    if group is not None:
        group.forget_table(name)


def check_same(path: str, info: dict[str, Any], stored: dict[str, Any], config: TableConfig) -> None:
    """Raises StateError when a stored table is not what `config` says."""
    expectations = {"dim": config.dim, "key_limit": config.key_limit or 0, "dtype": config.dtype}
    if config.dtype != "float32":
        expectations["rounding"] = config.rounding
    for name, expected in expectations.items():
        if info[name] != expected:
            raise StateError(f"table {path} has {name}={info[name]}, expected {expected}")
    planes = tuple(map(MetadataPlane.from_core, info["metadata"]))
    if [plane.for_core() for plane in config.metadata] != info["metadata"]:
        raise StateError(f"table {path} has metadata={planes}, expected {config.metadata}")
    rule = config.optimizer
    if rule is not None and stored["kind"] != "none":
        bound = (stored["kind"], tuple(stored["slot_init"]))
        wanted = rule.slot_identity
        if bound != wanted:
            raise StateError(
                f"table {path} is trained by {bound[0]} with slots starting at {bound[1]}, "
                f"expected {wanted[0]} with {wanted[1]}"
            )


def keras_form(initializer: dict[str, Any]) -> Any:
    """The Keras initializer that a stored one came from."""
    a, b = initializer["a"], initializer["b"]
    return {
        "zeros": "zeros",
        "constant": {"class_name": "Constant", "config": {"value": a}},
        "uniform": {"class_name": "RandomUniform", "config": {"minval": a, "maxval": b}},
        "normal": {"class_name": "RandomNormal", "config": {"mean": a, "stddev": b}},
        "truncated_normal": {"class_name": "TruncatedNormal", "config": {"mean": a, "stddev": b}},
    }[initializer["kind"]]
