"""The job of the suite `tiers`: one rank that trains one table, in memory, tiered or in a mapped file.

The suite starts it, in its own memory cgroup if it has a memory limit. The job fills the table. Then it reads commands,
one line of JSON each: `{"files": [...], "ahead": K, "compute_s": s, "skip": n, "steps": n}`. It trains the batches of
these files, looks K batches ahead (0: it does not look ahead), and answers with a line of JSON: the times of the steps
after the first `skip`.

The model is the table alone. One busy thread stands for the rest of a model: it takes `compute_s` in each step, between
the lookup and the update.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import tf_sparse_ps as tsps
from benchmarks import rules, steps
from tf_sparse_ps import _ops

DIM = 16
_RANDOM = 1  # MADV_RANDOM
_CHUNK = bytes(1 << 16)


def main() -> None:
    """Fills the table, and runs commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", choices=("memory", "tiered", "mapped"), required=True)
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk")
    parser.add_argument("--memory", type=int, default=0, help="bytes of memory for a tiered table")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--empty", action="store_true", help="insert no rows before the first step")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    if options.storage == "mapped":
        os.environ["TFSPS_DIR"] = str(options.folder / "mapped")
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    storage: Any = "memory"
    if options.storage == "tiered":
        storage = tsps.Tiered(options.folder, options.memory)
    layer = tsps.Embedding(options.rows, DIM, storage=storage)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    optimizer = rules.ours()
    began = time.monotonic()
    filled = 0 if options.empty else options.rows
    with tqdm(total=filled, desc="fill", unit=" rows", unit_scale=True, delay=2, disable=None) as bar:
        fill = steps.train_step(layer, optimizer)
        for start in range(0, filled, options.batch // 2):
            keys = np.arange(start, min(start + options.batch // 2, filled))
            fill(tf.constant(keys), tf.zeros([keys.size, DIM]))
            bar.update(keys.size)
    if options.storage == "mapped":
        _advise(options.folder)
    _answer(fill_s=time.monotonic() - began, **_sizes(layer))
    work = _Work(layer, model, optimizer, options.batch)
    for line in sys.stdin:
        _answer(**work(**json.loads(line)), **_sizes(layer))


class _Work:
    """Trains the table."""

    def __init__(self, layer: Any, model: Any, optimizer: Any, batch: int) -> None:
        self._model, self._optimizer, self._batch = model, optimizer, batch
        self._compute_s = 0.0
        gradients = tf.random.normal([batch, DIM], stddev=1e-3, seed=1)

        def step(ids: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                rows = layer(ids)
            with tf.control_dependencies([rows]):
                computed = tf.numpy_function(self._compute, [], tf.bool)
            with tf.control_dependencies([computed]):
                output_gradients = tf.identity(gradients)
            variables = layer.trainable_variables
            table_gradients = tape.gradient(rows, variables, output_gradients=output_gradients)
            optimizer.apply_gradients(list(zip(table_gradients, variables, strict=True)))

        self._step = tf.function(step, input_signature=[tf.TensorSpec([batch], tf.int64)])

    def _compute(self) -> np.bool_:
        ends = time.monotonic() + self._compute_s
        while time.monotonic() < ends:
            hashlib.sha256(_CHUNK)  # it releases the interpreter's lock
        return np.True_

    def __call__(self, files: list[str], ahead: int, compute_s: float, skip: int, steps: int) -> dict[str, Any]:
        """Trains on the first `skip + steps` batches of the files; the first `skip` are not counted.

        Returns:
            The seconds of the steps, and what this process read from the disk meanwhile.
        """
        self._compute_s = compute_s
        dataset = tf.data.FixedLengthRecordDataset(files, self._batch * 4)
        dataset = dataset.map(lambda text: tf.cast(tf.io.decode_raw(text, tf.int32), tf.int64))
        dataset = dataset.map(lambda ids: tf.ensure_shape(ids, [self._batch]))
        dataset = tsps.lookahead(dataset, self._model, batches=ahead) if ahead else dataset.prefetch(2)
        times: list[float] = []
        before, processor = self._counts(), time.process_time()
        last = time.monotonic()
        for number, ids in enumerate(dataset):
            if number == skip:
                before, processor = self._counts(), time.process_time()
            if number == skip + steps:
                break
            self._step(ids)
            now = time.monotonic()
            times.append(now - last)
            last = now
        changed = {name: value - before[name] for name, value in self._counts().items()}
        return {"times": times[skip:], "processor_s": time.process_time() - processor, **changed}

    def _counts(self) -> dict[str, float]:
        disk = {name: float(value) for name, value in _ops.disk_counters()._asdict().items()}
        return {
            "read": disk["records"],
            "late": disk["late"],
            "disk_bytes": disk["bytes"],
            "waited_s": disk["waited_ns"] * 1e-9,
            "staged_s": disk["staging_ns"] * 1e-9,
            "passes": disk["passes"],
        }


def _advise(folder: Path) -> None:
    """Makes the kernel not read ahead in the mapped files of a folder, which are the table's."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, path = line.split(maxsplit=5)
        if path.startswith(str(folder)):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _RANDOM):
                raise OSError(ctypes.get_errno(), f"madvise of {path}")


def _sizes(layer: Any) -> dict[str, float]:
    stats = layer.bindings[0].reader().stats()
    live = stats["live_bytes_on_disk"]
    return {"table_bytes": stats["bytes"], "file_share": stats["bytes_on_disk"] / live if live else 0.0}


def _answer(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
