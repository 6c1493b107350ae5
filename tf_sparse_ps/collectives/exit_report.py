"""The texts in which a rank reports to the other ranks why it ends. Without them, the others only see that it ended."""

from __future__ import annotations

_PREEMPTED = "preempted with status "


def joined(rank: int) -> str:
    """Returns the report of a rank that called `hvd.join`."""
    return (
        f"rank {rank} called hvd.join(), which tf_sparse_ps does not support, because gradients of tables are gathered "
        "and merged in shared memory by all ranks together. For ranks with fewer batches, use "
        "tsps.callbacks.EqualSteps. In a custom training loop, such a rank makes its steps with "
        "optimizer.rank_weight.assign(0.0)"
    )


def no_more_steps(rank: int, waited_s: float) -> str:
    """Returns the report of a rank whose program ended long before those of other ranks."""
    return (
        f"rank {rank} had no more steps to make: its program ended, and it waited {waited_s:.0f} s for the others. All "
        "ranks must make the same number of steps. In fit, use tsps.callbacks.EqualSteps"
    )


def failed(rank: int, error: BaseException) -> str:
    """Returns the report of a rank that ends because of an error that it raised."""
    return f"rank {rank} ended with {type(error).__name__}: {error}"


def preempted(rank: int, name: str, status: int) -> str:
    """Returns the report of ranks that saved and ended after a signal.

    Args:
      rank: The rank that got the signal.
      name: The name of the signal.
      status: The exit status of all ranks.
    """
    return f"{_PREEMPTED}{status}: rank {rank} got {name}"


def preempted_by(report: str, status: int) -> str:
    """Returns which rank got which signal, if a report is of `preempted` with this status; otherwise ""."""
    prefix = f"{_PREEMPTED}{status}: "
    return report.removeprefix(prefix) if report.startswith(prefix) else ""
