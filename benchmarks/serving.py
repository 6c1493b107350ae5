"""The serving suite: lookups in served tables against a gather of a dense matrix, opening, and memory of processes."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import harness
from tf_sparse_ps import _ops, _table
from tf_sparse_ps.serving import ServingTable
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import VersionManifest
from tf_sparse_ps.serving.version_builder import VersionBuilder
from tf_sparse_ps.table.scan import Block

_BLOCK = 1 << 16
_INITIALIZER = {"kind": "uniform", "a": -0.05, "b": 0.05, "seed": 1, "salt": 0}
_READERS = 8
_READ_ALL = """
import sys
import numpy as np
from tf_sparse_ps.serving import ServingTable
table = ServingTable.open(sys.argv[1])
for keys in table.key_parts():
    table.lookup(keys)
print("ready", flush=True)
sys.stdin.read()
"""


class _Rows:
    """Rows of keys, made as they are read."""

    step = 1
    erased = np.empty(0, np.int64)

    def __init__(self, keys: Any, dim: int) -> None:
        self._keys, self._dim = keys, dim

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Block]:
        draw = np.random.default_rng(0)
        for start in range(0, len(self._keys), _BLOCK):
            keys = self._keys[start : start + _BLOCK]
            yield Block(keys, draw.normal(0, 0.1, [len(keys), self._dim]).astype(np.float32), (), {})


def run(options: harness.Options) -> list[harness.Result]:
    """Compares lookups on one thread, then opening and the memory of eight processes."""
    results = []
    with tempfile.TemporaryDirectory(prefix="tsps-serving-", dir="/var/tmp") as folder:
        cases = [(20_000, 64)] if options.quick else [(1_000_000, 64), (1_000_000, 16)]
        for rows, dim in cases:
            for count in (213, 2130) if options.quick else (13_000, 213_000):
                results += _lookups(options, Path(folder), rows, dim, count)
        results += _processes(options, Path(folder))
    return results


def _write(path: Path, rows: int, dim: int, stored: str, layers: int = 0) -> str:
    """Writes a version, unless it is there. Returns the file of its table in `assets`."""
    if not path.exists():
        facts = TableFacts("t", "a" * 32, dim, "float32", 0, _INITIALIZER, stored, hash_seed=7)
        with VersionBuilder(path, "benchmark") as builder:
            files = builder.new_table("t")
            files.add_base(facts, _Rows(np.arange(rows), dim))
            for layer in range(layers):
                keys = np.random.default_rng(layer).choice(rows, rows // 100, replace=False)
                content = _Rows(keys, dim)
                files.add_layer(facts, content)
            entry = files.finish("t", facts, step=1, marks=[], absent="initial")
            builder.finish(VersionManifest(id="0", step=1, tables=(entry,), variables=(), versions={}))
    asset = os.fspath(path / "assets/t")
    ServingTable.open(asset).verify()  # brings it into the page cache
    return asset


def _write_older(path: Path, rows: int, dim: int) -> str:
    """Writes a table as older exports had it."""
    if not path.exists():
        writer = _table.ParameterFileWriter(
            path=os.fspath(path),
            dim=dim,
            n_rows=rows,
            key_limit=0,
            step=1,
            optimizer="none",
            slot_init=[],
            initializer=_INITIALIZER,
        )
        for block in _Rows(np.arange(rows), dim):
            writer.append(block.keys, block.rows, [])
        writer.finish()
    return os.fspath(path)


def _lookups(options: harness.Options, folder: Path, rows: int, dim: int, count: int) -> list[harness.Result]:
    dense = tf.Variable(np.random.default_rng(0).normal(0, 0.1, [rows, dim]).astype(np.float32))
    carrier = tf.zeros([0, dim])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def gather(ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(dense, ids)

    def lookup_in(path: str) -> Callable[[Any], Any]:
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def look_up(ids: tf.Tensor) -> tf.Tensor:
            return _ops.read_rows([ids], [tf.constant(path)], [tf.constant("")], [carrier], [0])[0]

        return look_up

    prefix = f"{rows}x{dim}"
    tables = {
        stored: lookup_in(_write(folder / f"{prefix}-{stored}", rows, dim, stored))
        for stored in ("float32", "bfloat16", "int8")
    }
    layered = lookup_in(_write(folder / f"{prefix}-layers", rows, dim, "float32", layers=4))
    older = lookup_in(_write_older(folder / f"{prefix}.tfsps", rows, dim))
    results = []
    for kind in ("Zipf", "uniform"):
        if kind == "Zipf":
            batches = harness.zipf_ids(rows, count, batches=8)
        else:
            draw = np.random.default_rng(1)
            batches = [draw.integers(0, rows, count) for _ in range(8)]
        ids = [tf.constant(batch) for batch in batches]
        absent = [tf.constant(-1 - batch) for batch in batches]

        def call(function: Any, batches: harness.Cycle[Any]) -> None:
            function(batches())

        variants = {
            "tf.gather": functools.partial(call, gather, harness.Cycle(ids)),
            **{name: functools.partial(call, table, harness.Cycle(ids)) for name, table in tables.items()},
            "4 layers of 1 %": functools.partial(call, layered, harness.Cycle(ids)),
            "absent keys": functools.partial(call, tables["float32"], harness.Cycle(absent)),
            "older export": functools.partial(call, older, harness.Cycle(ids)),
        }
        case = f"lookup, {count:,} {kind} ids of {rows:,} x {dim}"
        results += harness.compare("serving", case, variants, peer="tf.gather", options=options)
    return results


def _processes(options: harness.Options, folder: Path) -> list[harness.Result]:
    rows, dim = (50_000, 64) if options.quick else (8_000_000, 64)  # 2 GB
    asset = _write(folder / "large", rows, dim, "float32")
    size = ServingTable.open(asset).files()[0]["bytes"]
    times = []
    for _ in range(9):
        began = time.perf_counter()
        ServingTable.open(asset)
        times.append((time.perf_counter() - began) * 1e3)
    results = harness.summarize("serving", f"open {size / 1e9:.1f} GB", {"ServingTable": times}, peer=None, unit="ms")
    readers = [
        subprocess.Popen([sys.executable, "-c", _READ_ALL, asset], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(_READERS)
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"ready\n"
        copies = sum(_pss(reader.pid) for reader in readers) / size
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    case = f"PSS of the table's pages in {_READERS} processes"
    return results + harness.summarize("serving", case, {"ServingTable": [copies]}, peer=None, unit="copies")


def _pss(pid: int) -> int:
    """Returns the proportional share of a process in the pages of serving files, in bytes."""
    total, in_file = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            in_file = line.endswith(".serving")
        elif in_file and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total
