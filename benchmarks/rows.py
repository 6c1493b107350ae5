"""The suite rows: exports of a table to files of rows, and imports of these, against copying as many bytes.

Each export and import is a process of its own, whose memory is watched. Copying is `cp` and `fsync` on the same disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import tf_sparse_ps as tsps
from benchmarks import harness

_DIM = 32
_ENDINGS = ("parquet", "npz")
_CHUNK = 1 << 18


def run(options: harness.Options) -> list[harness.Result]:
    """Measures with 10 million rows of 32 floats without slots: 1.36 GB."""
    rows = 200_000 if options.quick else 10_000_000
    base = Path("build/benchmarks")
    base.mkdir(parents=True, exist_ok=True)
    results: list[harness.Result] = []
    with (
        tempfile.TemporaryDirectory(dir=base, prefix="rows-") as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tsps-rows-") as shared,
    ):
        table = Path(shared) / "group/words"
        config = tsps.TableConfig("words", _DIM)
        with tsps.Table.create(table, config) as words:
            draw = np.random.default_rng(0)
            for start in range(0, rows, _CHUNK):
                keys = np.arange(start, min(start + _CHUNK, rows))
                words.assign(keys, draw.normal(size=(len(keys), _DIM)).astype(np.float32))
        into = Path(shared) / "into/words"
        tsps.Table.create(into, config).close()
        for ending in _ENDINGS:
            file = Path(folder) / f"words.{ending}"
            results += _format(file, table, into, rows, min(options.blocks, 3))
    return results


def _format(file: Path, table: Path, into: Path, rows: int, blocks: int) -> list[harness.Result]:
    rates: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    copied = file.with_name("copy.tfsps")
    for _ in tqdm(range(blocks), desc=file.name, delay=2, disable=None):
        works = {
            "export": ("export", table, file),
            "import into a parameter file": ("import", file, copied),
            "import into a table": ("import", file, into),
        }
        for name, work in works.items():
            done = _job(*work)
            rates.setdefault(name, []).append(file.stat().st_size / 1e6 / done["seconds"])
            memory.setdefault(name, []).append(done["mib"])
        copied.unlink()
        rates.setdefault("cp and fsync", []).append(file.stat().st_size / 1e6 / _copy_s(file))
    case = f"{file.suffix}, {rows:,} rows of {_DIM}"
    return [
        *harness.summarize("rows", case, rates, peer="cp and fsync", unit="MB/s"),
        *harness.summarize("rows", f"{case}, memory", memory, peer=None, unit="MiB"),
    ]


def _job(action: str, first: Path, second: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.rows_job", action, str(first), str(second)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _copy_s(file: Path) -> float:
    target = file.with_name("copy")
    began = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", str(file), str(target)], check=True)
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - began
    target.unlink()
    return seconds
