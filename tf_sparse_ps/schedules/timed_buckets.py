"""The schedule that sends gradients which become ready together in one operation, a bucket.

Synchronous profile steps record when each gradient is ready. Clusters of these times become the buckets. From then on a
bucket is sent as soon as its last gradient is ready, in the order of the plan. docs/schedules.md has the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import clipping
from tf_sparse_ps.reduction.agreement import Agreement
from tf_sparse_ps.schedules.bucket_options import BucketOptions
from tf_sparse_ps.schedules.bucket_plan import Gradient
from tf_sparse_ps.schedules.bucket_server import BucketServer
from tf_sparse_ps.schedules.gradient_set import GradientSet, average_in_buckets
from tf_sparse_ps.schedules.schedule import Schedule, ScheduleState
from tf_sparse_ps.schedules.synchronous import SynchronousState


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedBuckets(BucketOptions, Schedule):
    """Synchronous training whose dense gradients travel in buckets, each as soon as its last gradient is ready.

    Experimental: its options may change in a minor version, and it needs private names of TensorFlow
    (docs/private-names.md).

    The results are those of `Synchronous`: bit for bit on up to two ranks with `HOROVOD_FUSION_THRESHOLD=0`, and within
    1e-6 of the largest weight on four, because a ring adds up in another order. Tests compare them.

    The first steps are synchronous and record when each gradient is ready. The ready times are cut at their widest
    gaps, and a cost model chooses the number of buckets (docs/schedules.md). All ranks take rank 0's plan. Each list of
    gradients that the optimizer gets has a plan of its own.

    Example:
      >>> optimizer = tsps.DistributedOptimizer("adam", schedule=tsps.schedules.TimedBuckets(profile_steps=8))
      >>> model.compile(optimizer, "mse")
      >>> model.fit(data)
      >>> optimizer.schedule_report()["plan"].save("plan.json")

    Args:
      profile_steps: Steps of one profile, at least 1, after one step to warm up. Default: 8.
      gap_threshold: Seconds, more than 0. Default: 1e-3. A wider gap between two gradients that follow each other must
        show in at least 3 of 4 steps; otherwise another profile is made.
      max_profiles: The number of profiles, at least 1, after which the plan is made anyway. Default: 3.
      server: True: one rank, the owner, updates each bucket and sends the new parameters to the others. Slots are
        current on the owner only, until all ranks call `optimizer.drain()`, as `fit` does at its end. Default: False.
      plan: A `Plan` for the same gradients and number of ranks, its `to_dict()`, or the path of a saved one; it is used
        from the first step. None, the default: the first steps are profiled.

    Raises:
      ValueError: An option is out of range; the plan cannot be used, or does not go with `server`. When the optimizer
        is wrapped: `tf.distribute`; `global_clipnorm` with `server=True`; a visible GPU without a plan; a plan for
        another number of ranks. In the first step: a plan for other gradients.
      OSError: The plan's file cannot be read.
    """

    @property
    def refuses_tiered(self) -> str | None:
        """See `Schedule.refuses_tiered`."""
        if not self.server:
            return None
        return "server=True sends new dense weights during the step of the tables, which may wait for a disk."

    @property
    def refuses_sharded(self) -> str | None:
        """See `Schedule.refuses_sharded`."""
        if not self.server:
            return None
        return "server=True sends new dense weights during the step of the tables, which waits for other machines."

    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """See `Schedule.refuse`."""
        if collectives.kind == "tf.distribute":
            raise ValueError(
                "TimedBuckets does not work under a tf.distribute strategy: the replicas' gradients meet in a merge "
                "call, which has all of them at once. Start the ranks without a strategy (Horovod's and TensorFlow's "
                "collectives both work), or use Synchronous()."
            )
        if self.server and clipping.Clipping.of(optimizer).global_norm is not None:
            raise ValueError(
                "TimedBuckets(server=True) cannot clip by global_clipnorm: no rank has all reduced gradients, so none "
                "knows their norm. Use clipnorm, clipvalue, or server=False."
            )
        if self.plan is None and tf.config.get_visible_devices("GPU"):
            raise ValueError(
                "TimedBuckets cannot make a profile if TensorFlow sees a GPU: TensorFlow launches kernels ahead of "
                "time there, so the profile would show when they were launched. Give it a `plan`, hide the GPU "
                "(tf.config.set_visible_devices([], 'GPU')), or use Synchronous()."
            )
        if self.plan is not None and self.plan.world_size != collectives.size:
            raise ValueError(
                f"`plan` is for {self.plan.world_size} ranks, and this job has {collectives.size}. Leave it out: "
                "TimedBuckets then makes a new one in the first steps."
            )

    def for_job(self, collectives: Collectives) -> TimedBuckets:
        """See `Schedule.for_job`. A plan for another number of ranks is left out."""
        if self.plan is None or self.plan.world_size == collectives.size:
            return self
        return dataclasses.replace(self, plan=None)

    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """See `Schedule.start`."""
        return _TimedState(self, optimizer, collectives, name)

    def get_config(self) -> dict[str, Any]:
        """Returns the options; the plan, if there is one, as `Plan.to_dict`."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return options | {"plan": None if self.plan is None else self.plan.to_dict()}


class _TimedState(SynchronousState):
    """Keeps the sets of gradients that its optimizer is given: nearly always one."""

    def __init__(self, options: BucketOptions, optimizer: Any, collectives: Collectives, name: str) -> None:
        super().__init__(optimizer, collectives, name)
        self._options = options
        self._sets: dict[tuple[Any, ...], GradientSet] = {}
        self._servers: list[BucketServer] = []  # of the step that is being made
        self._slots_sent_at: int | None = None  # the number of updates

    def average(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        weight: tf.Tensor,
        agreement: Agreement | None = None,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """See `SynchronousState.average`."""
        self._servers = []
        if not gradients:
            return [], []
        gradient_set = self._set_of(gradients, variables)
        plan = gradient_set.plan_of_this_step()
        if plan is None:
            iterations, recorder = self._optimizer.iterations, gradient_set.recorder
            marked = [_ops.ready(gradient, recorder, i, iterations) for i, gradient in enumerate(gradients)]
            return super().average(marked, variables, weight, agreement)
        if self._collectives.size == 1:
            return super().average(gradients, variables, weight)
        if gradient_set.server is None:
            return average_in_buckets(plan, gradients, self._collectives, gradient_set.name, weight, agreement)
        self._servers = [gradient_set.server]
        return gradient_set.server.reduce(gradients, weight, agreement), []

    def _set_of(self, gradients: Sequence[tf.Tensor], variables: Sequence[Any]) -> GradientSet:
        """Returns the set of these gradients, which it makes when they come for the first time."""
        described = [
            Gradient(_keras.variable_name(variable), tuple(gradient.shape.as_list()), gradient.dtype.name)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        # By the variables themselves: names need not be unique.
        key = tuple((gradient, id(variable)) for gradient, variable in zip(described, variables, strict=True))
        if key not in self._sets:
            number = len(self._sets)
            name = f"{self._name}.set{number}" if number else self._name
            with tf.init_scope():
                self._sets[key] = GradientSet(self._options, described, list(variables), self._collectives, name)
        return self._sets[key]

    def agrees_later(self) -> bool:
        """See `SynchronousState.agrees_later`: with a server, the facts travel with the first bucket and come back."""
        return bool(self._servers)

    def in_flight(self) -> list[tf.Tensor]:
        """See `SynchronousState.in_flight`: with a server, most ranks get nothing of a bucket."""
        return [counts for server in self._servers for counts in server.exchanged]

    def apply(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """See `SynchronousState.apply`."""
        for server in self._servers:
            variables, gradients = server.select_owned(variables, gradients)
        super().apply(variables, gradients)
        for server in self._servers:
            server.send_back()

    def drain(self) -> None:
        """See `ScheduleState.drain`: with a server, the owner of each bucket sends its slots to all ranks."""
        for gradient_set in self._sets.values():
            if gradient_set.server is not None:
                gradient_set.server.send_slots(self._optimizer)
                self._slots_sent_at = int(self._optimizer.iterations)

    def incomplete(self) -> bool:
        """See `ScheduleState.incomplete`: with a server, a rank has the slots of its own buckets only."""
        has_server = any(gradient_set.server is not None for gradient_set in self._sets.values())
        return has_server and int(self._optimizer.iterations) != self._slots_sent_at

    def report(self) -> dict[str, Any]:
        """See `ScheduleState.report`.

        Returns:
          - plan: The plan of the first set of gradients that was trained; None until it is made.
          - plans: The plans of all sets.
          - profiled_steps: The number of steps recorded so far, of all sets.
        """
        sets = list(self._sets.values())
        return {
            "plan": sets[0].plan if sets else None,
            "plans": [gradient_set.plan for gradient_set in sets if gradient_set.plan is not None],
            "profiled_steps": sum(gradient_set.profiled_steps for gradient_set in sets),
        }
