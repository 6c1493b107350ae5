"""Training that does not wait for the network: local steps at once, global gradients when they arrive."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.schedules import delayed_rules
from tf_sparse_ps.schedules.delayed_options import DelayedOptions
from tf_sparse_ps.schedules.delayed_state import DelayedState
from tf_sparse_ps.schedules.schedule import Schedule, ScheduleState
from tf_sparse_ps.schedules.synchronous import SynchronousState


@dataclasses.dataclass(frozen=True)
class DelayedGlobal(DelayedOptions, Schedule):
    """Every rank steps with its own gradient at once; global gradients replace the local ones as they arrive.

    Experimental: its options may change in a minor version. What a step does is compared with a reference, and tested.

    While iteration i computes, the gradients of iterations before it are on their way. Weights differ between ranks
    until `drain`, which `fit` calls at its end, and `tsps.callbacks.Drain` before whatever looks at them.
    docs/schedules.md has the rules.

    Attributes:
      staleness: S. When iteration i begins, every global gradient of iterations up to i - 1 - S has been applied; a
        rank waits for nothing else.
      cycle: K. After every K iterations what is outstanding is applied, and parameters, slots and statistics of batch
        normalisation are averaged over the ranks, which makes these identical.
      apply: "all": every global gradient is applied, oldest first. "newest", the published rule: of those that have
        arrived, only the newest; the others are discarded, and repaired by the cycle's average.
      sparse: Tables get their gradients late, too, by at most S steps; nothing moves a table at once. False: the step
        of the tables is synchronous, which keeps ranks in step.
      late_after_s: Seconds after the last communication's end after which a rank whose gradient is not there takes part
        in the next without one: the global gradient is then the mean over the ranks that were in time. More than a
        step takes. None: every gradient is waited for.
      reproducible: A global gradient is applied exactly S iterations after its own, not sooner, so that a run can
        be repeated.
    """

    @property
    def refuses_tiered(self) -> str | None:
        """See `Schedule.refuses_tiered`."""
        return "its updates come batches later than the look-ups, and would bring rows from the disk a second time."

    @property
    def refuses_sharded(self) -> str | None:
        """See `Schedule.refuses_sharded`."""
        return "its steps go on while gradients travel, and look-ups of such tables need all ranks at one step."

    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """See `Schedule.refuse`."""
        delayed_rules.kind_of(optimizer)
        if collectives.kind == "tf.distribute":
            raise ValueError(
                "DelayedGlobal needs collectives='horovod': replicas of tf.distribute have no weights of their own, "
                "hence no local step"
            )
        for name in ("clipnorm", "clipvalue", "global_clipnorm"):
            if getattr(optimizer, name, None):
                raise ValueError(
                    f"DelayedGlobal cannot clip ({name}={getattr(optimizer, name)}): a global gradient takes the place "
                    "of a local one, and a clipped mean is not the mean of clipped ones. Use another schedule."
                )
        if getattr(optimizer, "weight_decay", None):
            raise ValueError(
                f"DelayedGlobal has no weight decay, add it to the loss. Received: {type(optimizer).__name__}"
                f"(weight_decay={optimizer.weight_decay})"
            )
        if getattr(optimizer, "loss_scale_factor", None):
            raise ValueError("DelayedGlobal has no loss_scale_factor. Use the policy mixed_bfloat16")

    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """See `Schedule.start`. On one rank there is nothing to wait for, and nothing is delayed."""
        if collectives.size == 1:
            return SynchronousState(optimizer, collectives, name)
        return DelayedState(self, optimizer, collectives, name)

    def get_config(self) -> dict[str, Any]:
        """The options."""
        return dataclasses.asdict(self)
