"""`tf-sparse-ps get`: prints the rows of keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from tf_sparse_ps import keys as string_keys
from tf_sparse_ps.cli.command import PATH, Command, json_option, mistake, table_option
from tf_sparse_ps.cli.display import print_json, print_table
from tf_sparse_ps.cli.objects import open_object
from tf_sparse_ps.stored.contents import Content, Entries
from tf_sparse_ps.table.arrays import Keys

_SHOWN = 8  # the numbers of a plane that people see


# Unknown options are keys: negative numbers begin like options.
@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("path", type=PATH)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@table_option
@click.option("--strings", is_flag=True, help="The keys are strings; their fingerprints are looked up.")
@click.option("--slots", is_flag=True, help="Print the optimizer's slots and metadata, too.")
@json_option
def command(path: Path, keys: tuple[str, ...], table: str | None, strings: bool, slots: bool, as_json: bool) -> int:
    """Prints the rows of keys in PATH.

    PATH is as for `inspect`. A key without a row reads its initial value. People see the first 8 numbers of a row, and
    JSON has all. Numbers that are not finite are null in JSON.
    """
    numbers = string_keys.fingerprint(list(keys)) if strings else _integers(keys)
    stored = open_object(path)
    content = stored.table(table)
    entries = _widened(content, content.entries(numbers, slots=slots))
    if as_json:
        rows = [_facts(entries, at, int(key), slots=slots) for at, key in enumerate(numbers)]
        if strings:
            rows = [{"string": string, **row} for string, row in zip(keys, rows, strict=True)]
        print_json({"path": os.fspath(stored.path), "table": content.name, "step": stored.step, "rows": rows})
        return 0
    print_table(("KEY", "PLANE", "VALUES"), _lines(content, entries, keys if strings else numbers.tolist()))
    return 0


def _widened(content: Content, entries: Entries) -> Entries:
    """Returns the entries with bfloat16 metadata, which NumPy has no type for, as float32."""
    planes = dict(entries.planes)
    for plane in content.facts()["metadata"] if planes else ():
        if plane["type"] == "bfloat16" and plane["name"] in planes:
            planes[plane["name"]] = (planes[plane["name"]].astype(np.uint32) << np.uint32(16)).view(np.float32)
    return entries._replace(planes=planes)


def _integers(keys: tuple[str, ...]) -> Keys:
    try:
        return np.array([int(key) for key in keys], np.int64)
    except (ValueError, OverflowError):
        wrong = next(key for key in keys if not _is_int64(key))
        mistake(f"a key must be an integer of 64 bits; --strings looks up strings. Received: {wrong!r}")


def _is_int64(text: str) -> bool:
    try:
        return -(2**63) <= int(text) < 2**63
    except ValueError:
        return False


def _facts(entries: Entries, at: int, key: int, *, slots: bool) -> dict[str, Any]:
    facts = {"key": key, "present": bool(entries.present[at]), "row": _numbers(entries.rows[at])}
    if slots:
        facts["planes"] = {name: _numbers(plane[at]) for name, plane in entries.planes.items()}
    return facts


def _numbers(values: npt.NDArray[Any]) -> list[float | int | None]:
    finite = np.isfinite(values)
    return [value if ok else None for value, ok in zip(values.tolist(), finite.tolist(), strict=True)]


def _lines(content: Content, entries: Entries, names: Any) -> Iterator[tuple[str, str, str]]:
    for at, name in enumerate(names):
        yield str(name), "row" if entries.present[at] else "initial", _text(entries.rows[at])
        if entries.present[at]:
            for plane, values in entries.planes.items():
                yield "", plane, _text(values[at])


def _text(values: npt.NDArray[Any]) -> str:
    rest = f"  ... {len(values)} in all" if len(values) > _SHOWN else ""
    return "  ".join(f"{value:g}" if values.dtype.kind == "f" else str(value) for value in values[:_SHOWN]) + rest
