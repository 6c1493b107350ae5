"""One rank of a job that reduces one huge sparse gradient per rank, and measures the memory that this takes.

The suite `exchange` starts it on two nodes of one machine.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness
from tf_sparse_ps.collectives.horovod_setup import FUSION_BYTES
from tf_sparse_ps.reduction import handshake, node_exchange, sparse_gradient, sparse_reducers

DIM = 64
_RESULT_ROW_BYTES = 8 + 4 + 4 * DIM  # key, count, gradient


class _AnonymousMemory:
    """The largest anonymous memory of this process inside a `with` block, and the memory before it; in bytes."""

    def __enter__(self) -> _AnonymousMemory:
        self.before = self.peak = harness.anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.peak = max(self.peak, harness.anonymous_bytes())


def main() -> None:
    """Reduces a small gradient, to set everything up, and then the huge one. Rank 0 writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, required=True, help="keys of each rank, out of twice as many")
    parser.add_argument("--wire", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    ranks = tsps.init()
    job = tsps.job.current()
    handshake.on_all(ranks, node_exchange.of(job).join, "bench.join")
    ring = sparse_reducers.HierarchicalReducer(job, "frequency", options.wire)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, DIM]), tf.TensorSpec([], tf.int64)]
    )
    def run_rounds(keys: tf.Tensor, rows: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        return ring.run_rounds([sparse_gradient.SparseGradient(keys, rows)], "bench.sparse", step)

    draw = np.random.default_rng(1 + ranks.rank)
    figures = {}
    for step, count in enumerate((100, options.keys), start=1):
        keys = tf.constant(draw.permutation(2 * count)[:count])
        rows = tf.random.normal([count, DIM])
        ranks.barrier("bench.begin")
        with _AnonymousMemory() as memory:
            began = time.perf_counter()
            rounds = int(run_rounds(keys, rows, tf.constant(step, tf.int64)))
            seconds = time.perf_counter() - began
        reduced = tsps._ops.ring_collect(job.group_path, [DIM])
        shared = sum(
            path.stat().st_blocks * 512 for path in Path(job.group.exchange_path).glob(f"rank-{ranks.local_rank:04d}*")
        )
        private = memory.peak - memory.before - int(reduced.keys[0].shape[0]) * _RESULT_ROW_BYTES
        figures = {
            "exchange_mib": (private + shared + FUSION_BYTES) / 2**20,
            "private_mib": private / 2**20,
            "shared_mib": shared / 2**20,
            "seconds": seconds,
            "rounds": rounds,
        }
        del reduced, keys, rows
    everywhere = ranks.allgather_object(figures, "bench.figures")
    if ranks.rank == 0:
        options.out.write_text(json.dumps(everywhere))


if __name__ == "__main__":
    main()
