"""One rank of the suite `buckets`, which trains the same model under several schedules in turn, block by block.

All variants run in one process, so that whatever else the machine does affects all of them. Each has its own weights
and optimizer. The variants are:

- "per-tensor": an all-reduce operation for each gradient, as in Horovod's own optimizers. "per-tensor again" is the
  A/A control.
- "synchronous" and "timed".
- "fixed N": buckets of about N bytes, in the reverse order of the variables. This is common practice without a profile.

A plan that an earlier variant has is not trained a second time. The same operations would only show how much two models
of a process differ by chance.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks.harness import Cycle
from benchmarks.operation_counts import operation_counts
from benchmarks.rank_job import interface_counters
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.reduction import rank_weight
from tf_sparse_ps.schedules import Plan, Schedule, ScheduleState, Synchronous, TimedBuckets
from tf_sparse_ps.schedules.bucket_plan import Gradient
from tf_sparse_ps.schedules.synchronous import SynchronousState

_RATE = 1e-3
_BATCHES = 4  # different batches, which take turns
_MOST_WARMUP = 60  # steps within which a plan must exist


@dataclasses.dataclass(frozen=True)
class PerTensor(Schedule):
    """Every gradient has its own operation, and so do the ranks' weights."""

    def refuse(self, optimizer: Any, collectives: Any) -> None:
        """Accepts every optimizer."""

    def start(self, optimizer: Any, collectives: Any, name: str) -> ScheduleState:
        """See `Schedule.start`."""
        return _PerTensorState(optimizer, collectives, name)

    def get_config(self) -> dict[str, Any]:
        """Returns no options."""
        return {}


class _PerTensorState(SynchronousState):
    def average(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[Any], weight: tf.Tensor, agreement: Any = None
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """See `SynchronousState.average`. The ranks compare nothing here, as in Horovod's own optimizers."""
        (weights,) = self._collectives.allreduce([weight], f"{self._name}.weight", average=False)
        sums = [
            self._collectives.allreduce(
                [rank_weight.weighted(gradient, weight)], f"{self._name}.gradient{i}", average=False
            )[0]
            for i, gradient in enumerate(gradients)
        ]
        return [rank_weight.mean(gradient_sum, weights) for gradient_sum in sums], [weights]


@dataclasses.dataclass(frozen=True)
class Model:
    """A chain of layers.

    Attributes:
        shapes: The shapes of the weights, in the order of use.
        batch: The number of rows of the input.
        features: The number of features of a row.
        layer: A function of a layer's input and its weights.
        weights_per_layer: The number of weights that `layer` takes.
    """

    shapes: tuple[tuple[int, ...], ...]
    batch: int
    features: int
    layer: Callable[..., tf.Tensor]
    weights_per_layer: int = 1


MODELS = {
    "400 x 1k floats": Model(((1024,),) * 400, 8, 1024, lambda x, w: tf.tanh(x * w)),
    "60 layers": Model(((96, 96), (96,)) * 60, 128, 96, lambda x, w, b: tf.tanh(x @ w + b), 2),
    "120 x 64k floats": Model(((256, 256),) * 120, 64, 256, lambda x, w: tf.tanh(x @ w)),
}


class Variant:
    """One way to train the model, with its own weights."""

    def __init__(self, model: Model, schedule: Callable[[list[tf.Variable]], Schedule]) -> None:
        """Makes weights, the same on every rank and for every variant."""
        random = np.random.default_rng(1)
        self.weights = [
            tf.Variable(random.normal(size=shape).astype("float32") / shape[0] ** 0.5, name=f"weight{i}")
            for i, shape in enumerate(model.shapes)
        ]
        weights, number = self.weights, model.weights_per_layer
        self.optimizer = tsps.DistributedOptimizer(tf.keras.optimizers.SGD(_RATE), schedule=schedule(self.weights))

        @tf.function(reduce_retracing=True, autograph=False)
        def step(inputs: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                hidden = inputs
                for first in range(0, len(weights), number):
                    hidden = model.layer(hidden, *weights[first : first + number])
                loss = tf.reduce_mean(hidden**2)
            self.optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))

        self.step = step


def fixed_plan(weights: list[tf.Variable], limit: int, world_size: int) -> Plan:
    """Returns a plan with buckets of about `limit` bytes, from the last weight to the first one."""
    gradients = tuple(
        Gradient(_keras.variable_name(weight), tuple(weight.shape.as_list()), weight.dtype.name) for weight in weights
    )
    buckets: list[list[int]] = [[]]
    size = 0
    for i in reversed(range(len(weights))):
        if buckets[-1] and size + gradients[i].bytes > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(i)
        size += gradients[i].bytes
    return Plan(gradients, world_size, tuple(tuple(sorted(bucket)) for bucket in buckets))


def _schedule(name: str, world_size: int) -> Callable[[list[tf.Variable]], Schedule]:
    kind, _, rest = name.partition(" ")
    if kind == "fixed":
        return lambda weights: TimedBuckets(plan=fixed_plan(weights, int(rest), world_size))
    return lambda _: {"per-tensor": PerTensor, "synchronous": Synchronous, "timed": TimedBuckets}[kind]()


def main() -> None:
    """Trains all variants in turn. Rank 0 writes the figures of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--variant", action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True, help="the least number of turns of each variant")
    parser.add_argument("--seconds", type=float, required=True, help="the time in which further turns may start")
    parser.add_argument("--steps", type=int, required=True, help="steps in a block")
    parser.add_argument("--count-bytes", metavar="INTERFACE", help="an interface that only this rank's host uses")
    parser.add_argument("--plot", type=Path, help="a PNG of the plan, which rank 0 writes")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    world = tsps.init()
    tensors = _count_tensors(world)
    model = MODELS[options.model]
    random = np.random.default_rng(world.rank)
    inputs = [random.normal(size=(model.batch, model.features)).astype("float32") for _ in range(_BATCHES)]
    next_batch = Cycle([tf.constant(batch) for batch in inputs])
    variants: dict[str, Variant] = {}
    by_plan: dict[str, str] = {}  # the first variant of each plan, by the plan's hash
    same_plan: dict[str, str] = {}
    for name in options.variant:
        variant = Variant(model, _schedule(name, world.size))
        plan = getattr(variant.optimizer.schedule, "plan", None)
        if plan is not None and plan.hash in by_plan:
            same_plan[name] = by_plan[plan.hash]
            continue
        _warm_up(variant, next_batch)
        variants[name] = variant
        if plan := variant.optimizer.schedule_report().get("plan"):
            by_plan[plan.hash] = name

    blocks: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    order = list(variants)
    for turn in _turns(world, options.blocks, options.seconds):
        for name in order if turn % 2 == 0 else reversed(order):
            blocks[name].append(_block(variants[name], next_batch, options, world, tensors))
    everywhere = world.allgather_object((int(os.environ.get("HOROVOD_LOCAL_RANK", 0)), blocks), "bench.blocks")
    if world.rank == 0:
        plans = {name: variant.optimizer.schedule_report().get("plan") for name, variant in variants.items()}
        figures = {
            "ranks": [{"local_rank": local_rank, "blocks": blocks} for local_rank, blocks in everywhere],
            "plans": {name: None if plan is None else plan.to_dict() for name, plan in plans.items()},
            "same": same_plan,
        }
        options.out.write_text(json.dumps(figures))
        if options.plot and plans.get("timed"):
            plans["timed"].plot(options.plot)


def _warm_up(variant: Variant, next_batch: Cycle[tf.Tensor]) -> None:
    """Trains until the plan exists and the trace that uses it has run several times."""
    planned = isinstance(variant.optimizer.schedule, TimedBuckets)
    for _ in range(_MOST_WARMUP):
        variant.step(next_batch())
        if not planned or variant.optimizer.schedule_report()["plan"] is not None:
            break
    for _ in range(4):
        variant.step(next_batch())


def _turns(world: Any, least: int, seconds: float) -> Iterator[int]:
    """Yields the numbers of turns, until there were `least` and rank 0's time is over."""
    began = time.monotonic()
    for turn in itertools.count():
        more = turn < least or time.monotonic() - began < seconds
        if not world.broadcast_object(more, 0, "bench.more"):
            return
        yield turn


def _block(
    variant: Variant, next_batch: Cycle[tf.Tensor], options: argparse.Namespace, world: Any, tensors: dict[str, int]
) -> dict[str, float]:
    """Returns figures per step, from some steps that all ranks make together."""
    world.barrier("bench.block")
    before, sent = operation_counts(world), _sent(options.count_bytes)
    times, began_cpu = [], time.process_time()
    for _ in range(options.steps):
        began = time.perf_counter()
        variant.step(next_batch())
        times.append(time.perf_counter() - began)
    cpu = time.process_time() - began_cpu
    counts = {name: count - before.get(name, 0) for name, count in operation_counts(world).items()}
    world.barrier("bench.block")  # another rank may still be sending
    return {
        "step_ms": float(np.median(times)) * 1e3,
        "cpu_ms": cpu / options.steps * 1e3,
        "sent_kb": (_sent(options.count_bytes) - sent) / options.steps / 1e3,
        "operations": sum(count for name, count in counts.items() if name in tensors) / options.steps,
        "tensors": sum(count * tensors[name] for name, count in counts.items() if name in tensors) / options.steps,
    }


def _sent(interface: str | None) -> int:
    return interface_counters(interface)[0] if interface else 0


def _count_tensors(world: Any) -> dict[str, int]:
    """Starts to count the tensors that each operation of gradients hands to Horovod; returns counts by its name."""
    tensors: dict[str, int] = {}
    allreduce = world.allreduce

    def counted(values: Sequence[tf.Tensor], name: str, **options: Any) -> list[tf.Tensor]:
        if name.startswith("tsps."):
            for dtype in {value.dtype.name for value in values}:
                tensors[f"{name}.{dtype}"] = sum(value.dtype.name == dtype for value in values)
        return allreduce(values, name, **options)

    world.allreduce = counted
    return tensors


if __name__ == "__main__":
    main()
