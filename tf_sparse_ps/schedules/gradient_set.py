"""One list of gradients under `TimedBuckets`: profiled, planned with the other ranks, and sent in buckets."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import must_agree
from tf_sparse_ps.reduction import dense_mean
from tf_sparse_ps.reduction.agreement import Agreement
from tf_sparse_ps.schedules import bucket_cost, bucket_profile
from tf_sparse_ps.schedules.bucket_options import BucketOptions
from tf_sparse_ps.schedules.bucket_plan import Gradient, Plan
from tf_sparse_ps.schedules.bucket_server import BucketServer


class GradientSet:
    """One list of gradients: first profiled, then sent by its plan.

    Attributes:
      plan: The plan, once there is one.
      server: What this rank does for buckets with owners, once there is a plan with owners, on several ranks.
      name: The beginning of the names of its operations.
      recorder: The name under which ready times are recorded.
      profiled_steps: The number of steps recorded so far.
    """

    def __init__(
        self,
        options: BucketOptions,
        gradients: list[Gradient],
        variables: list[Any],
        collectives: Collectives,
        name: str,
    ) -> None:
        """Takes the plan of the options, if they have one. Eager, on all ranks.

        Args:
          options: The options of the schedule.
          gradients: The description of each gradient.
          variables: The gradients' variables.
          collectives: The rank's collectives.
          name: The beginning of the names of its operations.

        Raises:
          ValueError: The plan is for other gradients, naming them.
        """
        self.plan: Plan | None = None
        self.server: BucketServer | None = None
        self.name, self.recorder, self.profiled_steps = name, name, 0
        self._options, self._gradients, self._variables = options, gradients, variables
        self._collectives = collectives
        self._profile, self._profiles = bucket_profile.Profile(len(gradients)), 0
        self._hook = _keras.CallHook(self._advance)
        self._warned = False
        if options.plan is not None:
            if differences := options.plan.differences(gradients, collectives.size):
                more = f" (and {len(differences) - 5} more)" if len(differences) > 5 else ""
                raise ValueError(
                    f"`plan` of TimedBuckets is for another model or job: {'; '.join(differences[:5])}{more}. Leave it "
                    "out: TimedBuckets then makes a new one in the first steps."
                )
            self._begin(options.plan)

    def plan_of_this_step(self) -> Plan | None:
        """Returns the plan for the step that is made, or traced, now. None: the step is to be recorded."""
        plan = self.plan
        if plan is None and tf.executing_eagerly():
            # `plan` stays None for this step: in a graph, too, the step after this look is one of the old trace.
            self._advance()
        elif plan is None:
            self._hook.attach()
        return plan

    def _advance(self) -> None:
        """Reads the recorded times and, after enough steps, agrees on a plan with the others. Between steps, eager.

        All ranks do the same here: each step is made by all, so they have recorded equally many.
        """
        if self.plan is not None:
            # An old trace runs: of a function that was not seen when it was traced, or of one that TensorFlow never
            # traces again.
            if not self._hook.retrace():
                self._warn_of_an_old_trace()
            return
        self._profile.add(_ops.ready_times(self.recorder))
        self.profiled_steps = self._profile.steps
        if self.profiled_steps < self._options.profile_steps * (self._profiles + 1):
            return
        self._profiles += 1
        world, options, times = self._collectives, self._options, self._profile.times()
        has_unconfirmed = bool(bucket_profile.unconfirmed(times, options.gap_threshold))
        erratic = world.broadcast_object(has_unconfirmed, 0, f"{self.name}.erratic")
        if erratic and self._profiles < options.max_profiles:
            return
        plan = bucket_profile.make_plan(
            self._gradients,
            times,
            world.size,
            bucket_cost.measure(world, f"{self.name}.cost"),
            server=options.server,
            profiles=self._profiles,
            erratic=erratic,
        )
        self._begin(Plan.of(world.broadcast_object(plan.to_dict(), 0, f"{self.name}.plan")))
        self._profile = bucket_profile.Profile(len(self._gradients))  # frees the recorded times
        self._hook.retrace()

    def _begin(self, plan: Plan) -> None:
        """Takes a plan, once all ranks have the same one, for the same gradients."""
        kinds = [(gradient.shape, gradient.dtype) for gradient in self._gradients]
        planned_kinds = [(gradient.shape, gradient.dtype) for gradient in plan.gradients]
        facts = {
            "plan of buckets": repr(plan),
            "its hash": plan.hash,
            "gradients as in the plan": str(kinds == planned_kinds),
        }
        must_agree(self._collectives.allgather_object(facts, f"{self.name}.agreed"))
        if plan.owners and self._collectives.size > 1:
            self.server = BucketServer(plan, self._variables, self._collectives, self.name)
        self.plan = plan

    def _warn_of_an_old_trace(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "a function that was traced before TimedBuckets had its plan is still called. It trains without "
                "buckets, because TensorFlow does not trace it again. Call the tf.function itself, not what its "
                "get_concrete_function() returned",
                stacklevel=2,
            )


def average_in_buckets(
    plan: Plan,
    gradients: Sequence[tf.Tensor],
    collectives: Collectives,
    name: str,
    weight: tf.Tensor,
    agreement: Agreement | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Averages gradients as `dense_mean.average`, with one operation per bucket.

    A bucket waits until those before it are handed over, never until they are sent: it depends on their inputs.
    """
    results: list[tf.Tensor | None] = [None] * len(gradients)
    sums: list[tf.Tensor] = []
    handed_over: list[tf.Tensor] = []
    for number, members in enumerate(plan.buckets):
        first_agreement = agreement if number == 0 else None  # the facts travel with the first bucket
        packing = dense_mean.WeightedPacking([gradients[i] for i in members], weight, agreement=first_agreement)
        with tf.control_dependencies(handed_over):
            handed_over = [tf.identity(buffer) for buffer in packing.buffers]
        label = f"{name}.bucket.{number}"
        means, weights = packing.means(collectives.allreduce(handed_over, label, average=False))
        sums.append(weights)
        for i, mean in zip(members, means, strict=True):
            results[i] = mean
    return [mean for mean in results if mean is not None], sums
