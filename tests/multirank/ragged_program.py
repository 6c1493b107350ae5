"""One rank that gathers another number of rows in each of 500 steps, and counts what is left over.

One more collective of each step only orders what follows: nothing uses its result.

Argument: the folder for results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import tensorflow as tf
import this_rank

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import runtime

STEPS, DIM = 500, 8


def counts() -> dict[str, int]:
    """Returns the counts of resources that may grow."""
    process = psutil.Process()
    return {"threads": process.num_threads(), "resident": process.memory_info().rss, "files": process.num_fds()}


def main() -> None:
    """Gathers in a graph, as steps do, and eagerly in one step of 50."""
    ranks = this_rank.init()

    @tf.function(input_signature=[tf.TensorSpec([None, DIM], tf.float32)], autograph=False)
    def gather(rows: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies(ranks.allreduce([rows[0]], "order")):
            return ranks.allgather([rows], "ragged")[0]

    sizes, counts_by_step = set(), {}
    for step in range(STEPS):
        rows = [1 + 7 * step + rank for rank in range(ranks.size)]
        own_rows = tf.fill([rows[ranks.rank], DIM], float(step))
        gathered = ranks.allgather([own_rows], "ragged.eager")[0] if step % 50 == 0 else gather(own_rows)
        assert gathered.shape == [sum(rows), DIM]
        assert float(tf.reduce_min(gathered)) == float(tf.reduce_max(gathered)) == step
        sizes.add(int(runtime._size_of(tf.constant(4 * DIM * max(rows), tf.int64))[1]))
        if step in (STEPS // 2, STEPS - 1):
            counts_by_step[str(step)] = counts()
    facts = {"sizes": len(sizes), "counts": counts_by_step, "in_flight": _ops.in_flight()}
    (Path(sys.argv[1]) / f"{ranks.rank}.json").write_text(json.dumps(facts))
    ranks.barrier("test.written")


if __name__ == "__main__":
    main()
