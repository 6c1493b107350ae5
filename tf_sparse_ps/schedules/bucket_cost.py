"""What an all-reduce costs: a latency, a time per byte, and processors that computing would have had."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps.collectives import Collectives

_REPEATS, _RUNS = 10, 5
_ELEMENTS = 1 << 18  # of float32: 1 MiB


class Cost(NamedTuple):
    """Of an all-reduce.

    Attributes:
      latency_s, seconds_per_byte: It takes latency_s + bytes * seconds_per_byte.
      processor_share: Of the node's processors, that its ranks use meanwhile: nearly all of two where ranks of one
        machine copy through the kernel, next to nothing where they wait for a cable. What is computed beside it takes
        longer by that.
    """

    latency_s: float
    seconds_per_byte: float
    processor_share: float = 0.0


def measure(collectives: Collectives, name: str) -> Cost:
    """Measures. Eager, on all ranks; what it returns is of this rank.

    Not taken from the profile's own all-reduce, which includes waiting for the slowest rank of the step. Operations run
    one after another in a graph, so what Python costs is not a part; nothing is computed beside them.
    """
    if collectives.size == 1:
        return Cost(0.0, 0.0)
    small, _ = _seconds(collectives, 1, f"{name}.small")
    large, processors = _seconds(collectives, _ELEMENTS, f"{name}.large")
    share = processors * collectives.local_size / len(os.sched_getaffinity(0))
    return Cost(small, max(0.0, large - small) / (4 * _ELEMENTS), min(1.0, share))


def _seconds(collectives: Collectives, elements: int, name: str) -> tuple[float, float]:
    """Of an operation, in the shortest of some runs, as the others met something else on the machine.

    Returns:
      Seconds; the processors that this process has used.
    """

    @tf.function(autograph=False)
    def run(values: tf.Tensor) -> tf.Tensor:
        for _ in range(_REPEATS):  # each needs what the one before returned
            (values,) = collectives.allreduce([values], name, average=False)
        return values

    zeros, runs = tf.zeros([elements]), []
    run(zeros)
    for _ in range(_RUNS):
        began, used = time.perf_counter(), time.process_time()
        run(zeros)
        seconds = time.perf_counter() - began
        runs.append((seconds / _REPEATS, (time.process_time() - used) / seconds))
    return min(runs)
