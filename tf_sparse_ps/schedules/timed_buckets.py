"""Time-point gradient buckets: gradients that become ready together travel together, in one operation per bucket.

Profile steps, which are synchronous ones, record when each gradient is ready. Their clusters are the buckets. From then
on a bucket is sent as soon as its last gradient is ready, in the order of the plan, and its numbers are those of the
synchronous schedule. docs/schedules.md has the rules.
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
    (docs/private-names.md). Its numbers are those of `Synchronous`, bit for bit, and tested.

    Attributes:
      profile_steps: Synchronous steps that make a profile.
      gap_threshold: Seconds. When two gradients that follow each other are further apart than that, and the steps of
        the profile do not agree on it, another profile is made.
      max_profiles: After so many the plan is made from what there is.
      server: Each bucket is updated on one rank, its owner, which sends the new parameters to the others.
      plan: To begin with, in place of a profile: a `Plan` of the same model and number of ranks, or the path of one
        that was saved. `optimizer.schedule_report()["plan"]` is the one that was made.
    """

    @property
    def refuses_tiered(self) -> str | None:
        """See `Schedule.refuses_tiered`."""
        if not self.server:
            return None
        return "server=True sends new dense weights beside the step of the tables, which may wait for a disk."

    @property
    def refuses_sharded(self) -> str | None:
        """See `Schedule.refuses_sharded`."""
        if not self.server:
            return None
        return "server=True sends new dense weights beside the step of the tables, which waits for other machines."

    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """See `Schedule.refuse`."""
        if collectives.kind == "tf.distribute":
            raise ValueError(
                "TimedBuckets needs Horovod's collectives: under a tf.distribute strategy the replicas' gradients meet "
                "in a merge call, which has all of them at once. Use Synchronous()."
            )
        if self.server and clipping.Clipping.of(optimizer).global_norm is not None:
            raise ValueError(
                "TimedBuckets(server=True) cannot clip by global_clipnorm: no rank has all reduced gradients, so none "
                "knows their norm. Use clipnorm, clipvalue, or server=False."
            )
        if self.plan is None and tf.config.get_visible_devices("GPU"):
            raise ValueError(
                "TimedBuckets cannot make a profile where TensorFlow sees a GPU: kernels are launched there ahead of "
                "time, so what is recorded would be launches. Give it a `plan`, hide the GPU "
                "(tf.config.set_visible_devices([], 'GPU')), or use Synchronous()."
            )
        if self.plan is not None and self.plan.world_size != collectives.size:
            raise ValueError(
                f"`plan` is for {self.plan.world_size} ranks, and this job has {collectives.size}. Leave it out: a new "
                "one is made in the first steps."
            )

    def for_job(self, collectives: Collectives) -> TimedBuckets:
        """See `Schedule.for_job`: a plan is of one number of ranks."""
        if self.plan is None or self.plan.world_size == collectives.size:
            return self
        return dataclasses.replace(self, plan=None)

    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """See `Schedule.start`."""
        return _TimedState(self, optimizer, collectives, name)

    def get_config(self) -> dict[str, Any]:
        """Its options; a plan is a part of them."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return found | {"plan": None if self.plan is None else self.plan.to_dict()}


class _TimedState(SynchronousState):
    """Keeps the sets of gradients that its optimizer is given: nearly always one."""

    def __init__(self, options: BucketOptions, optimizer: Any, collectives: Collectives, name: str) -> None:
        super().__init__(optimizer, collectives, name)
        self._options = options
        self._sets: dict[tuple[Any, ...], GradientSet] = {}
        self._servers: list[BucketServer] = []  # of the step that is being made

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
        described = [
            Gradient(_keras.variable_name(variable), tuple(gradient.shape.as_list()), gradient.dtype.name)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        # By the variables themselves: names need not be unique.
        key = tuple((one, id(variable)) for one, variable in zip(described, variables, strict=True))
        if key not in self._sets:
            number = len(self._sets)
            name = f"{self._name}.set{number}" if number else self._name
            with tf.init_scope():
                self._sets[key] = GradientSet(self._options, described, list(variables), self._collectives, name)
        found = self._sets[key]
        plan = found.plan_of_this_step()
        if plan is None:
            marked = [_ops.ready(one, found.recorder, i, self._optimizer.iterations) for i, one in enumerate(gradients)]
            return super().average(marked, variables, weight, agreement)
        if self._collectives.size == 1:
            return super().average(gradients, variables, weight)
        if found.server is None:
            return average_in_buckets(plan, gradients, self._collectives, found.name, weight, agreement)
        self._servers = [found.server]
        return found.server.reduce(gradients, weight, agreement), []

    def agrees_later(self) -> bool:
        """See `SynchronousState.agrees_later`: with a server, the facts travel with the first bucket and come back."""
        return bool(self._servers)

    def in_flight(self) -> list[tf.Tensor]:
        """See `SynchronousState.in_flight`: with a server, most ranks get nothing of a bucket."""
        return [one for server in self._servers for one in server.exchanged]

    def apply(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """See `SynchronousState.apply`."""
        for server in self._servers:
            variables, gradients = server.own(variables, gradients)
        super().apply(variables, gradients)
        for server in self._servers:
            server.send_back()

    def drain(self) -> None:
        """See `ScheduleState.drain`: with a server, slots are where their bucket is updated."""
        for one in self._sets.values():
            if one.server is not None:
                one.server.send_slots(self._optimizer)

    def report(self) -> dict[str, Any]:
        """See `ScheduleState.report`.

        Returns:
          - plan: of the first set of gradients that was trained; None until it is made.
          - plans: of all sets.
          - profiled_steps: recorded so far, of all sets.
        """
        sets = list(self._sets.values())
        return {
            "plan": sets[0].plan if sets else None,
            "plans": [one.plan for one in sets if one.plan is not None],
            "profiled_steps": sum(one.profiled_steps for one in sets),
        }
