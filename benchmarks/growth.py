"""The growth suite: training adds millions of keys to an unbounded table, while another process reads it.

The core counts the cost of growth for readers: the time for which a read waited for splits of the index, or repeated
work because of a split.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import tf_sparse_ps as tsps
from benchmarks import harness, rules, steps
from tf_sparse_ps import _ops, job

_DIM = 16
# Reads until its standard input has something, then prints its counters.
_READER = """
import json, select, sys
import numpy as np
from tf_sparse_ps.table import Table
table = Table.open(sys.argv[1])
rng = np.random.default_rng(7)
reads = 0
while not select.select([0], [], [], 0)[0]:
    table.lookup(rng.integers(-2**63, 2**63, 4096, dtype=np.int64))
    reads += 1
print(json.dumps({"reads": reads, **table.stats()["counters"]}))
"""


def run(options: harness.Options) -> list[harness.Result]:
    """Inserts 5 million keys from all of int64, including the extremes."""
    keys, batch = (100_000, 10_000) if options.quick else (5_000_000, 50_000)
    layer = tsps.Embedding(None, _DIM)
    layer(tf.constant([0]))
    table = layer.bindings[0].reader()
    step = steps.train_step(layer, rules.ours())
    rng = np.random.default_rng(0)
    gradients = tf.random.normal([batch, _DIM], seed=1)
    reader = subprocess.Popen(
        [sys.executable, "-c", _READER, table.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    times = []
    with tqdm(total=keys, desc="growth", unit=" keys", unit_scale=True, delay=2, disable=None) as bar:
        while len(table) < keys:
            ids = rng.integers(-(2**63), 2**63, batch, dtype=np.int64)
            ids[:4] = (np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0, -1)
            before = len(table)
            began = time.perf_counter()
            step(tf.constant(ids), gradients)
            times.append((time.perf_counter() - began) * 1e3)
            bar.update(len(table) - before)
    counters = json.loads(reader.communicate("x", timeout=60)[0])
    trainer_counters = dict(
        zip(_ops.COUNTERS, _ops.group_info(job.current().group_path).counters.numpy().tolist(), strict=True)
    )
    report = table.verify()
    if not report.ok:
        raise RuntimeError(f"the table is damaged: {report.problems}")

    case = f"{len(table):,} keys inserted, {batch:,} per step, dim {_DIM}"
    stats = table.stats()

    def result(variant: str, value: float, unit: str) -> harness.Result:
        return harness.Result("growth", case, variant, value, value, value, unit, None)

    return [
        harness.Result("growth", case, "step", float(np.median(times)), min(times), max(times), "ms", None),
        result(
            f"longest that growth held up a read, of {counters['reads']:,} reads in another process",
            counters["growth_blocked_ns_max"] / 1e6,
            "ms",
        ),
        result("longest that anything held up a read there", counters["read_blocked_ns_max"] / 1e6, "ms"),
        result(
            "longest that growth held up a lookup of the trainer", trainer_counters["growth_blocked_ns_max"] / 1e6, "ms"
        ),
        result(
            f"longest burst of splits, of {trainer_counters['growth_splits']:,} splits",
            trainer_counters["growth_ns_max"] / 1e6,
            "ms",
        ),
        result("bytes per row, all files", stats["bytes"] / len(table), "bytes"),
    ]
