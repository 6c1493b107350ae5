"""The serving suite: lookups in served tables against a gather of a dense matrix, opening, and memory of processes."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import harness
from benchmarks.served_tables import dense_gather, look_up_in, write, write_older
from tf_sparse_ps.serving import ServingTable

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


def run(options: harness.Options) -> list[harness.Result]:
    """Compares lookups, then opening and the memory of eight processes. With `long`: lookups in 10M rows alone."""
    results = []
    with tempfile.TemporaryDirectory(prefix="tsps-serving-", dir="/var/tmp") as folder:
        if options.long:
            return _large(options, Path(folder))
        cases = [(20_000, 64)] if options.quick else [(1_000_000, 64), (1_000_000, 16)]
        for rows, dim in cases:
            for count in (213, 2130) if options.quick else (13_000, 213_000):
                results += _lookups(options, Path(folder), rows, dim, count)
        results += _processes(options, Path(folder))
    return results


def _lookups(options: harness.Options, folder: Path, rows: int, dim: int, count: int) -> list[harness.Result]:
    gather = dense_gather(rows, dim)
    prefix = f"{rows}x{dim}"
    tables = {
        stored: look_up_in(write(folder / f"{prefix}-{stored}", rows, dim, stored), dim)
        for stored in ("float32", "bfloat16", "int8")
    }
    layered = look_up_in(write(folder / f"{prefix}-layers", rows, dim, "float32", layers=4), dim)
    older = look_up_in(write_older(folder / f"{prefix}.tfsps", rows, dim), dim)
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


def _large(options: harness.Options, folder: Path) -> list[harness.Result]:
    """Compares lookups in a table of 2.7 GB. Needs 6 GB of memory."""
    rows, dim, count = (50_000, 64, 2130) if options.quick else (10_000_000, 64, 213_000)
    gather = dense_gather(rows, dim)
    tables = {stored: look_up_in(write(folder / stored, rows, dim, stored), dim) for stored in ("float32", "int8")}
    draw = np.random.default_rng(1)
    inputs = {
        "Zipf": harness.zipf_ids(rows, count, batches=8),
        "uniform": [draw.integers(0, rows, count) for _ in range(8)],
    }
    results = []
    for kind, batches in inputs.items():
        ids = [tf.constant(batch) for batch in batches]

        def call(function: Any, batches: harness.Cycle[Any]) -> None:
            function(batches())

        variants = {
            name: functools.partial(call, function, harness.Cycle(ids))
            for name, function in {"tf.gather": gather, **tables}.items()
        }
        case = f"lookup, {count:,} {kind} ids of {rows:,} x {dim}"
        timed = harness.compare("serving", case, variants, peer="tf.gather", options=options)
        results += harness.rates(timed, count, peer="tf.gather", unit="ids/s")
    return results


def _processes(options: harness.Options, folder: Path) -> list[harness.Result]:
    rows, dim = (50_000, 64) if options.quick else (8_000_000, 64)  # 2 GB
    asset = write(folder / "large", rows, dim, "float32")
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
