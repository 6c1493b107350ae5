"""One rank of the failure tests: trains until something happens to rank 2.

Arguments: what happens ("kill", "stop", "slow", "late", "raise" to rank 2; "nan" to its gradient; "join": it calls
hvd.join; "short": it has no more steps to make; "end": rank 0 works on when the others have ended), with "-dense"
behind it for a model without tables, and "-buckets" or "-delayed" for the schedule; the folder for results.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps.collectives import processes

AT_STEP, LAST_STEP, VICTIM = 20, 40, 2


def happen(what: str) -> None:
    """To this process."""
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raise":
        raise ValueError("no such shard")
    else:
        time.sleep(600 if what == "slow" else 2)


def main() -> None:
    """Trains a table and a dense weight."""
    this_rank.init()
    processes._EXIT_BARRIER_SECONDS = 1.0
    what, *options = sys.argv[1].split("-")
    folder = Path(sys.argv[2])
    rank = this_rank.rank()
    layer = None
    if "dense" not in options:
        layer = tsps.Embedding(None, 8)
        layer.build(None)
    dense = tf.Variable(tf.ones([8]))
    chosen = None
    if "buckets" in options:
        chosen = tsps.schedules.TimedBuckets(profile_steps=4, max_profiles=1)
    elif "delayed" in options:
        chosen = tsps.schedules.DelayedGlobal(staleness=1)
    optimizer = tsps.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), schedule=chosen)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32)])
    def step(ids: tf.Tensor, factor: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense**2)
            if layer is not None:
                loss += tf.reduce_sum(factor * layer(ids) ** 2)
        variables = [*(layer.trainable_variables if layer is not None else []), dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def arguments(factor: float = 1.0) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.range(10 * rank, 10 * rank + 20, dtype=tf.int64), tf.constant(factor)

    # Ranks take their time to trace, which is none to wait for. (Buckets trace anew, which they cannot with this.)
    if "buckets" not in options:
        step.get_concrete_function(*arguments())
    tsps.collectives.current().barrier("test.traced")
    print(f"rank {rank} is pid {os.getpid()}", flush=True)
    for number in range(1, LAST_STEP + 1):
        factor = 1.0
        if number == AT_STEP and "buckets" in options:
            assert optimizer.schedule_report()["plan"] is not None
        if number == AT_STEP and rank == VICTIM and what != "end":
            print(f"rank {rank}: {what}", flush=True)
            if what == "nan":
                factor = float("nan")
            elif what == "join":
                import horovod.tensorflow as hvd  # the test is about it

                hvd.join()
            elif what == "short":
                break
            else:
                happen(what)
        step(*arguments(factor))
    if what == "end" and rank == 0:
        time.sleep(3)
        # In one call for longer than a rank may be when another has died.
        tf.numpy_function(lambda: time.sleep(6) or 0.0, [], tf.float64)
    (folder / f"done-{rank}").touch()


if __name__ == "__main__":
    main()
