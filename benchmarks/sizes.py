"""The sizes suite: how a step grows with rows, with their width and with ids, against copies of random rows.

The copies are TensorFlow's gather of the same number of random rows of a dense matrix, in the same process and on the
same threads. A step moves many more bytes than a copy:

- A lookup reads and writes each id's row.
- The backward pass reads each id's gradient and writes the sum for each key.
- The update reads the sum, the row and its slot, writes both, and saves both for the undo log.

The bytes per second of a step, compared with those of the copies, show how close it is to the speed of memory.

`TFSPS_HUGE_PAGES=0 python -m benchmarks sizes` measures without huge pages.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness, rules, steps

ROWS, DIM, IDS = 1_000_000, 64, 213_000  # in the cases where another size grows
NARROW = 16  # floats per row in the cases where rows grow, so that they fit in memory
STEP_PER_MILLION = "step, per million ids"
_CALLS = 5
# Rows, dim, ids.
_CASES = (
    *((rows, NARROW, IDS) for rows in (1_000_000, 5_000_000, 20_000_000, 50_000_000)),
    *((ROWS, dim, IDS) for dim in (32, DIM, 128, 256)),
    *((ROWS, DIM, ids) for ids in (100_000, 500_000, 1_000_000, 2_000_000)),
)


def run(options: harness.Options) -> list[harness.Result]:
    """Measures all cases, one after another."""
    cases = [(10_000, 16, 2_000), (10_000, 32, 4_000)] if options.quick else _CASES
    results = []
    for case in cases:
        results += _case(options, *case)
        gc.collect()  # removes the layer, and its table with it
    return results


def _case(options: harness.Options, rows: int, dim: int, count: int) -> list[harness.Result]:
    ids = harness.zipf_ids(rows, count, batches=4)
    distinct = float(np.mean([np.unique(batch).size for batch in ids]))
    next_ids = harness.Cycle([tf.constant(batch) for batch in ids])
    next_gradients = harness.Cycle([tf.constant(gradient) for gradient in harness.normal_gradients(count, dim)])
    layer = tsps.Embedding(None, dim)
    layer.build(None)
    look, step = steps.lookup(layer), steps.train_step(layer, rules.ours())
    steps.fill(step, rows, dim)
    huge = _settled_huge_bytes(layer.bindings[0].path)

    dense = tf.Variable(tf.zeros([min(rows, ROWS), dim]))
    draw = np.random.default_rng(2)
    next_rows = harness.Cycle([tf.constant(draw.integers(0, dense.shape[0], count)) for _ in range(4)])
    copy = tf.function(lambda numbers: tf.gather(dense, numbers))
    sizes = f"{rows:,} x {dim}, {count:,} ids ({distinct:,.0f} distinct), {huge / 2**20:,.0f} MiB in huge pages"
    results = harness.compare(
        "sizes",
        sizes,
        {
            "copies": lambda: copy(next_rows()),
            "lookup": lambda: look(next_ids()),
            "step": lambda: step(next_ids(), next_gradients()),
        },
        peer="copies",
        options=options,
        calls=_CALLS,
    )
    quartiles = {timed.variant: harness.quartile(timed.blocks, timed.unit) for timed in results}
    row = 4 * dim
    moved = {"copies": 2 * count * row, "step": (3 * count + 8 * distinct) * row}
    rates = {name: size / quartiles[name] / 1e6 for name, size in moved.items()}  # GB/s
    parameters = {"rows": rows, "dim": dim, "ids": count, "distinct": distinct, "huge_bytes": huge}

    def result(variant: str, value: float, unit: str, ratio: float | None = None) -> harness.Result:
        return harness.Result("sizes", sizes, variant, value, value, value, unit, ratio, parameters)

    return [
        *results,
        result("lookup, per million ids", quartiles["lookup"] * 1e6 / count, "ms"),
        result(STEP_PER_MILLION, quartiles["step"] * 1e6 / count, "ms"),
        result("copies, bytes moved", rates["copies"], "GB/s"),
        result("step, bytes moved", rates["step"], "GB/s", rates["step"] / rates["copies"]),
    ]


def _settled_huge_bytes(path: str) -> int:
    """Returns the bytes of a table's files in huge pages, when the writer's helper has stopped to make them."""
    before = -1
    while (now := _huge_bytes(path)) != before:
        before = now
        time.sleep(0.5)
    return now


def _huge_bytes(path: str) -> int:
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = path in line
        elif inside and words[0] == "ShmemPmdMapped:":
            size += int(words[1]) * 1024
    return size
