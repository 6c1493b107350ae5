"""One list of gradients under TimedBuckets: profiled, planned with the other ranks, and sent in buckets."""

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
      plan: Once there is one.
      server: Once there is a plan with owners, on several ranks.
      name: Of its operations.
      recorder: Of its ready times.
      profiled_steps: Recorded so far.
    """

    def __init__(
        self,
        options: BucketOptions,
        gradients: list[Gradient],
        variables: list[Any],
        collectives: Collectives,
        name: str,
    ) -> None:
        """Takes the schedule's plan, if it has one. Eager, on all ranks.

        Args:
          options: The schedule's.
          gradients: What is known of each.
          variables: Whose they are.
          collectives: The rank's collectives.
          name: What its operations' names begin with.

        Raises:
          ValueError: The plan is of other gradients, naming them.
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
            if different := options.plan.differences(gradients, collectives.size):
                more = f" (and {len(different) - 5} more)" if len(different) > 5 else ""
                raise ValueError(
                    f"`plan` of TimedBuckets is of another model or job: {'; '.join(different[:5])}{more}. Leave it "
                    "out: a new one is made in the first steps."
                )
            self._begin(options.plan)

    def plan_of_this_step(self) -> Plan | None:
        """The plan by which a step is to be made, or traced, now; None: it is to be recorded."""
        plan = self.plan
        if plan is None and tf.executing_eagerly():
            # Not for this step: in a graph, too, the step after this look is still one of the old trace.
            self._advance()
        elif plan is None:
            self._hook.attach()
        return plan

    def _advance(self) -> None:
        """Looks at what was recorded; with enough steps, agrees on a plan with the others. Between steps, eager.

        All ranks do the same here: each step is made by all, so they have recorded equally many.
        """
        if self.plan is not None:
            # An old trace: of a function that was not seen when it was traced, or of one that TensorFlow never traces
            # anew.
            if not self._hook.retrace():
                self._warn_of_an_old_trace()
            return
        self._profile.add(_ops.ready_times(self.recorder))
        self.profiled_steps = self._profile.steps
        if self.profiled_steps < self._options.profile_steps * (self._profiles + 1):
            return
        self._profiles += 1
        world, options, times = self._collectives, self._options, self._profile.times()
        found = bool(bucket_profile.unconfirmed(times, options.gap_threshold))
        erratic = world.broadcast_object(found, 0, f"{self.name}.erratic")
        if erratic and self._profiles < options.max_profiles:
            return
        made = bucket_profile.make_plan(
            self._gradients,
            times,
            world.size,
            bucket_cost.measure(world, f"{self.name}.cost"),
            server=options.server,
            profiles=self._profiles,
            erratic=erratic,
        )
        self._begin(Plan.of(world.broadcast_object(made.to_dict(), 0, f"{self.name}.plan")))
        self._profile = bucket_profile.Profile(len(self._gradients))  # its steps are no more needed
        self._hook.retrace()

    def _begin(self, plan: Plan) -> None:
        """Takes a plan, once all ranks have the same one, for the same gradients."""
        own = [(one.shape, one.dtype) for one in self._gradients]
        planned = [(one.shape, one.dtype) for one in plan.gradients]
        facts = {"plan of buckets": repr(plan), "its hash": plan.hash, "gradients as in the plan": str(own == planned)}
        must_agree(self._collectives.allgather_object(facts, f"{self.name}.agreed"))
        if plan.owners and self._collectives.size > 1:
            self.server = BucketServer(plan, self._variables, self._collectives, self.name)
        self.plan = plan

    def _warn_of_an_old_trace(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "a function that was traced before TimedBuckets had its plan is still called, and goes on without "
                "buckets: TensorFlow does not trace it anew, as it does not for get_concrete_function()",
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
    """As `dense_mean.average`, one operation per bucket.

    A bucket waits until those before it are handed over, never until they are sent: what it depends on is what goes
    into them.
    """
    results: list[tf.Tensor | None] = [None] * len(gradients)
    sums: list[tf.Tensor] = []
    before: list[tf.Tensor] = []
    for number, members in enumerate(plan.buckets):
        own = agreement if number == 0 else None  # with the first bucket
        packing = dense_mean.WeightedPacking([gradients[i] for i in members], weight, agreement=own)
        with tf.control_dependencies(before):
            before = [tf.identity(one) for one in packing.buffers]
        label = f"{name}.bucket.{number}"
        means, weights = packing.means(collectives.allreduce(before, label, average=False))
        sums.append(weights)
        for i, mean in zip(members, means, strict=True):
            results[i] = mean
    return [one for one in results if one is not None], sums
