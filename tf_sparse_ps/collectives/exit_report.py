"""What a rank says before an end that concerns all; others know no more than that it ended."""

from __future__ import annotations


def joined(rank: int) -> str:
    """That a rank called `hvd.join`."""
    return (
        f"rank {rank} called hvd.join(), which no job of tf_sparse_ps can do: gradients of tables are gathered, and "
        "merged in shared memory, from all ranks or not at all. For ranks with fewer batches there is "
        "tsps.callbacks.EqualSteps; in a custom training loop such a rank makes its steps with "
        "optimizer.rank_weight.assign(0.0)"
    )


def no_more_steps(rank: int, waited_s: float) -> str:
    """That a rank came to its end long before others."""
    return (
        f"rank {rank} had no more steps to make: it came to its end, waited {waited_s:.0f} s for the others, and "
        "ended. All ranks must make the same number of steps; tsps.callbacks.EqualSteps sees to that in fit"
    )


def failed(rank: int, error: BaseException) -> str:
    """That a rank ends with an error of its own."""
    return f"rank {rank} ended with {type(error).__name__}: {error}"
