"""What an all-reduce costs: a latency, and a time per byte."""

from __future__ import annotations

import time

import tensorflow as tf

from tf_sparse_ps.collectives import Collectives

_REPEATS, _RUNS = 10, 5
_ELEMENTS = 1 << 18  # of float32: 1 MiB


def measure(collectives: Collectives, name: str) -> tuple[float, float]:
    """Seconds per operation and per byte. Eager, on all ranks; what it returns is of this rank.

    Not taken from the profile's own all-reduce, which includes waiting for the slowest rank of the step. Operations run
    one after another in a graph, so what Python costs is not a part; nothing is computed beside them.
    """
    if collectives.size == 1:
        return 0.0, 0.0
    small = _seconds(collectives, 1, f"{name}.small")
    large = _seconds(collectives, _ELEMENTS, f"{name}.large")
    return small, max(0.0, large - small) / (4 * _ELEMENTS)


def _seconds(collectives: Collectives, elements: int, name: str) -> float:
    """The shortest of some runs: the others met something else on the machine."""

    @tf.function(autograph=False)
    def run(values: tf.Tensor) -> tf.Tensor:
        for _ in range(_REPEATS):  # each needs what the one before returned
            (values,) = collectives.allreduce([values], name, average=False)
        return values

    zeros, times = tf.zeros([elements]), []
    run(zeros)
    for _ in range(_RUNS):
        began = time.perf_counter()
        run(zeros)
        times.append(time.perf_counter() - began)
    return min(times) / _REPEATS
