"""The schedule that does not wait for the network: local steps at once, global gradients when they arrive."""

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
    """Every rank steps with its own gradients at once; global gradients replace them when they arrive.

    Experimental: its options may change in a minor version.

    In iteration i a rank computes a gradient at its current weights, moves the dense weights by it, and sends it. While
    the next iterations compute, an all-reduce makes the mean over all ranks, the global gradient. When that has
    arrived, it takes the place of the local gradient. The dense weights of the ranks differ until the end of the cycle,
    or until `optimizer.drain()`, which `fit` calls at its end and `tsps.callbacks.Drain` before anything looks at the
    model. On one rank nothing is delayed.

    After all corrections, weights and slots are those of synchronous training with the same global gradients. For
    Adagrad and Adam only global gradients change the moments. docs/schedules.md derives the correction of each
    optimizer; tests/reference/mode_c.py implements them in NumPy, and tests compare the two.

    Wraps SGD with a momentum below 1 (also Nesterov's), Adagrad and Adam without `amsgrad`, on float32 variables.

    Example:
      >>> schedule = tsps.schedules.DelayedGlobal(staleness=1, cycle=100)
      >>> optimizer = tsps.DistributedOptimizer(keras.optimizers.Adam(1e-3), schedule=schedule)

    Args:
      staleness: S, in iterations, at least 1. Default: 1. When iteration i begins, all global gradients of iterations
        up to i - 1 - S have been applied; a rank waits for nothing else. Up to S + 1 gradients travel at a time.
      cycle: K, in iterations, at least 1. Default: 100. After every K iterations the ranks apply all outstanding global
        gradients and average parameters, slots and statistics of batch normalization. They are then identical.
      apply: "all", the default, applies every global gradient, oldest first. "newest" applies only the newest of those
        that have arrived, and discards the others; the cycle's average makes up for them.
      sparse: True, the default: the tables get their gradients up to S steps late, too, and no rank moves a table by
        its own gradients. False: the step of the tables is synchronous, so that all ranks wait for it.
      late_after_s: Seconds after the end of the last communication after which a rank whose gradient is not ready takes
        part in the next one without it. The global gradient is then the mean over the ranks that were in time, and the
        late gradient goes into a later one. Choose more than a step takes. None, the default: all gradients are waited
        for.
      reproducible: True applies a global gradient exactly S iterations after its own, not sooner, so that a run can be
        repeated. It does not work with `late_after_s`. Default: False.

    Raises:
      ValueError: An option is out of range. When the optimizer is wrapped: clipping, weight decay, a loss scale,
        another optimizer, or `tf.distribute`. In the first step: a variable that is not float32 or has a constraint.
        In any step: other variables or tables than in the first one, or a gradient that was reduced already.
    """

    @property
    def refuses_tiered(self) -> str | None:
        """See `Schedule.refuses_tiered`."""
        return "its updates come batches later than the lookups, and would read the rows from the disk a second time."

    @property
    def refuses_eviction(self) -> str | None:
        """See `Schedule.refuses_eviction`."""
        return "its updates come batches later than the lookups, when their rows may be evicted."

    @property
    def refuses_admission(self) -> str | None:
        """See `Schedule.refuses_admission`."""
        return "its updates come batches later than the lookups whose ids are counted."

    @property
    def refuses_sharded(self) -> str | None:
        """See `Schedule.refuses_sharded`."""
        return "its ranks may be at different steps, and lookups of such tables need all ranks at one step."

    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """See `Schedule.refuse`."""
        delayed_rules.kind_of(optimizer)
        if collectives.kind == "tf.distribute":
            raise ValueError(
                "DelayedGlobal does not work under a tf.distribute strategy: replicas have no weights of their own, so "
                "they cannot make local steps. Start the ranks without a strategy (collectives='horovod' and "
                "'tensorflow' both work), or use Synchronous()."
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
        """See `Schedule.start`. On one rank the state is that of `Synchronous`."""
        if collectives.size == 1:
            return SynchronousState(optimizer, collectives, name)
        return DelayedState(self, optimizer, collectives, name)

    def get_config(self) -> dict[str, Any]:
        """Returns the options."""
        return dataclasses.asdict(self)
