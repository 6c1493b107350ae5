"""The cost of an all-reduce: a latency, a time per byte, and processors that computing would have had."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps.collectives import Collectives

_REPEATS, _RUNS = 10, 5
_ELEMENTS = 1 << 18  # of float32: 1 MiB


class Cost(NamedTuple):
    """The cost of an all-reduce.

    Attributes:
      latency_s, seconds_per_byte: An all-reduce takes latency_s + bytes * seconds_per_byte.
      processor_share: The share of the node's processors that its ranks use meanwhile, from 0 to 1: nearly all of two
        processors if ranks of one machine copy through the kernel, next to nothing if they wait for a cable. Computing
        takes longer by that share meanwhile.
    """

    latency_s: float
    seconds_per_byte: float
    processor_share: float = 0.0


def measure(collectives: Collectives, name: str) -> Cost:
    """Measures the cost on this rank. Eager, on all ranks.

    The profile's own all-reduce is not used: it includes waiting for the slowest rank of the step. The operations run
    one after another in a graph, so the costs of Python are not a part. Nothing else is computed meanwhile.

    Args:
      collectives: The rank's collectives.
      name: The beginning of the operations' names.
    """
    if collectives.size == 1:
        return Cost(0.0, 0.0)
    small, _ = _seconds(collectives, 1, f"{name}.small")
    large, processors = _seconds(collectives, _ELEMENTS, f"{name}.large")
    share = processors * collectives.local_size / len(os.sched_getaffinity(0))
    return Cost(small, max(0.0, large - small) / (4 * _ELEMENTS), min(1.0, share))


def _seconds(collectives: Collectives, elements: int, name: str) -> tuple[float, float]:
    """Measures an operation in the shortest of some runs, since other work of the machine delays the others.

    Returns:
      Seconds, and the number of processors that this process used meanwhile.
    """

    @tf.function(autograph=False)
    def run(values: tf.Tensor) -> tf.Tensor:
        for _ in range(_REPEATS):  # each needs the result of the one before
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
