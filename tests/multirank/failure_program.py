"""One rank of the failure tests, which trains until something happens to rank 2.

Arguments: an event, and the folder for results. The events of rank 2 are "kill", "stop", "slow", "late" and "raise";
"pause": it is stopped for 15 s; "back": it is late until the others have reported it; "nan": its gradient is not
finite; "join": it calls hvd.join; "short": it has no steps left. In "end", rank 0 works on when the others have ended.
A suffix changes the job: "-dense" has no tables, "-buckets" and "-delayed" choose a schedule.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps.collectives import processes
from tf_sparse_ps.failures import ending
from tf_sparse_ps.node import activity

AT_STEP, LAST_STEP, VICTIM = 20, 40, 2


def happen(event: str) -> None:
    """Makes an event happen to this process."""
    if event == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif event == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif event == "pause":
        subprocess.Popen(["sh", "-c", f"sleep 15; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif event == "back":
        while not tsps.collectives.current().key_values.reason():
            time.sleep(0.1)
        time.sleep(1.0)  # all ranks see the report within this time
    elif event == "raise":
        raise ValueError("no such shard")
    else:
        time.sleep(600 if event == "slow" else 2)


def report_progress(end: threading.Event) -> None:
    """Reports progress until the event begins. On a busy machine, a rank may trace longer than the others may wait."""
    while not end.wait(0.5):
        activity.progress()


def main() -> None:
    """Trains a table and a dense weight."""
    this_rank.init()
    processes._EXIT_BARRIER_SECONDS = 1.0
    event, *options = sys.argv[1].split("-")
    begins = threading.Event()
    threading.Thread(target=report_progress, args=(begins,), daemon=True).start()
    if event in ("join", "short"):
        # The others fail when the process of rank 2 has ended. Python's end takes 2 s of computing time: long, if the
        # machine has other work. They shall raise their error then, and not end before.
        ending._GRACE_S = 60.0
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

    # The ranks trace before they begin, so that no rank waits for another's tracing. (Buckets trace again later.)
    step.get_concrete_function(*arguments())
    tsps.collectives.current().barrier("test.traced")
    print(f"rank {rank} is pid {os.getpid()}", flush=True)
    for number in range(1, LAST_STEP + 1):
        factor = 1.0
        if number == AT_STEP and "buckets" in options:
            assert optimizer.schedule_report()["plan"] is not None
        if number == AT_STEP:
            begins.set()
        if number == AT_STEP and rank == VICTIM and event != "end":
            print(f"rank {rank}: {event}", flush=True)
            if event == "nan":
                factor = float("nan")
            elif event == "join":
                import horovod.tensorflow as hvd  # the test is about hvd.join

                hvd.join()
            elif event == "short":
                break
            else:
                happen(event)
        step(*arguments(factor))
    if event == "end" and rank == 0:
        time.sleep(3)
        # A single call takes longer than ranks may take after another rank has died.
        tf.numpy_function(lambda: time.sleep(6) or 0.0, [], tf.float64)
    (folder / f"done-{rank}").touch()


if __name__ == "__main__":
    main()
