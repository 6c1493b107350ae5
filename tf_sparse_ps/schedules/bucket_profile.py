"""Makes a plan of buckets from the times at which gradients became ready.

Ready times are clustered in one dimension by gaps, which is single linkage. Sending a bucket is worthwhile if the wire
would be idle until the next gradients come, and that time is the gap. (Jenks' natural breaks minimize the variance
within clusters: they cut long runs of evenly spaced gradients in the middle, where nothing is idle.) Cutting the k - 1
widest gaps gives nested candidates for k = 1, 2, 3, ... buckets. A small cost model says which of them ends first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tf_sparse_ps.schedules.bucket_cost import Cost
from tf_sparse_ps.schedules.bucket_plan import Gradient, Plan, sending

MOST_BUCKETS = 64
_WARM_UP = 1  # steps: the first step of a trace also makes executors, buffers and slots
# A candidate within 5 % of the best is as good, and fewer buckets are better: costs are measured on an idle machine.
_AS_GOOD = 1.05
_CONFIRMING_SHARE = 0.75  # of the steps must show a gap


class Profile:
    """The ready times of gradients in the recorded steps."""

    def __init__(self, gradients: int) -> None:
        """Makes an empty profile of so many gradients."""
        self._times: list[list[int]] = [[] for _ in range(gradients)]

    def add(self, recorded: Sequence[tuple[int, int]]) -> None:
        """Adds pairs of a gradient's number and nanoseconds; each gradient comes once per step."""
        for gradient, nanoseconds in recorded:
            self._times[gradient].append(nanoseconds)

    @property
    def steps(self) -> int:
        """The number of steps in which all gradients are recorded, without those to warm up."""
        return max(0, min(map(len, self._times)) - _WARM_UP)

    def times(self) -> NDArray[np.float64]:
        """Returns float64[steps, gradients]: seconds from the first ready gradient of each step."""
        count = self.steps + _WARM_UP
        times = np.array([recorded[_WARM_UP:count] for recorded in self._times], np.int64).T
        return (times - times.min(axis=1, keepdims=True)) * 1e-9


def unconfirmed(times: NDArray[np.float64], gap_threshold: float) -> list[float]:
    """Returns the gaps, in seconds, that are above the threshold and that the steps do not confirm.

    A gap lies between two gradients that follow each other by their median times. It belongs to the model, such as a
    slow layer, if nearly all steps have it. Else it belongs to the machine (another process, a garbage collection), or
    to the medians alone: if a delay hits another gradient in each step, the medians jump, and no step has the jump. A
    gap is confirmed if in 3 of 4 steps the same two gradients are more than half of it apart.

    Args:
      times: float64[steps, gradients], in seconds.
      gap_threshold: Seconds.
    """
    order, medians = _in_order(times)
    gaps = []
    for (first, second), gap in zip(itertools.pairwise(order), np.diff(medians), strict=True):
        share = np.mean(times[:, second] - times[:, first] > gap / 2)
        if gap > gap_threshold and share < _CONFIRMING_SHARE:
            gaps.append(float(gap))
    return gaps


def make_plan(
    gradients: Sequence[Gradient],
    times: NDArray[np.float64],
    world_size: int,
    cost: Cost,
    *,
    server: bool = False,
    profiles: int = 1,
    erratic: bool = False,
) -> Plan:
    """Returns the plan that the cost model prefers.

    Args:
      gradients: The model's gradients.
      times: float64[steps, gradients], in seconds.
      world_size: The number of ranks.
      cost: The cost of an all-reduce.
      server: Whether buckets get owners.
      profiles, erratic: As in `Plan`.
    """
    order, medians = _in_order(times)
    ready = np.empty(len(gradients))
    ready[order] = medians
    candidates = [_buckets(order, cuts) for cuts in _nested_cuts(np.diff(medians))]
    sizes = [[sum(gradients[i].bytes for i in bucket) for bucket in buckets] for buckets in candidates]
    ends = [_end(ready, bucket_bytes, buckets, cost) for buckets, bucket_bytes in zip(candidates, sizes, strict=True)]
    chosen = next(k for k, end in enumerate(ends) if end <= _AS_GOOD * min(ends))
    cuts = np.cumsum([len(bucket) for bucket in candidates[chosen]])[:-1]
    return Plan(
        gradients=tuple(gradients),
        world_size=world_size,
        buckets=candidates[chosen],
        points_s=tuple(float(medians[cut - 1] + medians[cut]) / 2 for cut in cuts),
        owners=_owners(sizes[chosen], world_size) if server else (),
        ready_s=tuple(ready.tolist()),
        latency_s=cost.latency_s,
        seconds_per_byte=cost.seconds_per_byte,
        processor_share=cost.processor_share,
        candidates_s=tuple(ends),
        steps=len(times),
        profiles=profiles,
        erratic=erratic,
    )


def _end(
    ready: NDArray[np.float64], bucket_bytes: Sequence[int], buckets: Sequence[Sequence[int]], cost: Cost
) -> float:
    """Returns when all buckets have been sent, in seconds. Sending during computing delays computing by its share."""
    spans = sending(ready.tolist(), bucket_bytes, buckets, cost.latency_s, cost.seconds_per_byte)
    computed = ready.max()
    overlap = sum(max(0.0, min(end, computed) - begin) for begin, end in spans)
    return float(spans[-1][1] + cost.processor_share * overlap)


def _in_order(times: NDArray[np.float64]) -> tuple[list[int], NDArray[np.float64]]:
    """Returns the gradients in the order of their median times, and these times, counted from the first one."""
    medians = np.median(times, axis=0)
    order = np.argsort(medians, kind="stable")
    return order.tolist(), medians[order] - medians[order[0]]


def _nested_cuts(gaps: NDArray[np.float64]) -> list[list[int]]:
    """Returns for 1, 2, 3, ... clusters the gradients before which to cut, ascending. The widest gaps come first."""
    widest = [int(i) for i in np.argsort(-gaps, kind="stable") if gaps[i] > 0][: MOST_BUCKETS - 1]
    return [sorted(i + 1 for i in widest[:count]) for count in range(len(widest) + 1)]


def _buckets(order: Sequence[int], cuts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    bounds = [0, *cuts, len(order)]
    return tuple(tuple(sorted(order[begin:end])) for begin, end in itertools.pairwise(bounds))


def _owners(sizes: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Returns the owner of each bucket. The largest buckets come first, each goes to the rank with the least bytes."""
    load, owners = [0] * world_size, [0] * len(sizes)
    for bucket in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        owners[bucket] = load.index(min(load))
        load[owners[bucket]] += sizes[bucket]
    return tuple(owners)
