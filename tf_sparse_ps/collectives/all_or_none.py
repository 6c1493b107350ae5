"""`all_or_none`: every rank does the same thing, and if it fails on one rank, it raises on all ranks.

Without this, the ranks on which it succeeded would continue, and wait forever for the rank that raised. Everything
here is eager, and every rank of the job calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tf_sparse_ps.collectives.interface import Collectives
from tf_sparse_ps.errors import CollectivesError, RankError, StateError

Result = TypeVar("Result")

# After one of these errors this rank cannot reach the other ranks any more.
UNREACHABLE = (CollectivesError, RankError)


def all_or_none(
    collectives: Collectives,
    action: Callable[[], Result],
    call: str,
    name: str,
    error_type: type[Exception] = StateError,
) -> list[Result]:
    """Runs `action` on every rank and returns the results of all ranks, or raises on all ranks.

    Args:
      collectives: The collectives of the job.
      action: What this rank does. Its result must be picklable.
      call: What is being done, for the message.
      name: The name of the collective operation.
      error_type: The type of the error on ranks on which `action` did not fail.

    Returns:
      The results, in the order of the ranks.

    Raises:
      Exception: On a rank whose `action` failed, the error of `action`; on the others an error of `error_type`, which
        names the failed ranks and their errors.
    """
    result: Any = None
    error: Exception | None = None
    try:
        result = action()
    except UNREACHABLE:
        raise
    except Exception as caught:
        error = caught
    everyone = collectives.allgather_object((error_text(error), result), name)
    raise_failures([text for text, _ in everyone], error, call, error_type)
    return [result for _, result in everyone]


@contextlib.contextmanager
def raising_on_all(
    collectives: Collectives, call: str, name: str, error_type: type[Exception] = StateError
) -> Iterator[None]:
    """Surrounds what every rank does, as `all_or_none` does; with the same arguments and errors."""
    error: Exception | None = None
    try:
        yield
    except UNREACHABLE:
        raise
    except Exception as caught:
        error = caught
    with tf.init_scope():  # Keras may be tracing a function around it
        texts = collectives.allgather_object(error_text(error), name)
    raise_failures(texts, error, call, error_type)


def error_text(error: BaseException | None) -> str | None:
    """Describes an error for the other ranks; None stands for success."""
    return None if error is None else f"{type(error).__name__}: {error}"


def raise_failures(
    texts: Sequence[str | None],
    own_error: BaseException | None,
    call: str,
    error_type: type[Exception] = StateError,
) -> None:
    """Raises this rank's own error, or one that lists the errors of other ranks. Does nothing if there are none.

    Args:
      texts: `error_text` of each rank.
      own_error: This rank's error, or None.
      call: What failed, for the message.
      error_type: The type of the error if only other ranks failed.
    """
    if own_error is not None:
        raise own_error
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text is not None]
    if failed:
        raise error_type(f"{call} has failed on other ranks: " + "; ".join(failed))


def must_agree(facts: Sequence[Mapping[str, str]], remedy: str = "") -> None:
    """Compares what the ranks have told each other.

    Args:
      facts: The facts of each rank by name, the same list on all ranks. The error is therefore raised on all ranks.
      remedy: The end of the message.

    Raises:
      ValueError: The facts of a rank differ from those of rank 0. The message names the ranks and what differs.
    """
    differences = []
    for rank, theirs in enumerate(facts):
        for name in sorted({*facts[0], *theirs}):
            first, other = facts[0].get(name, "(none)"), theirs.get(name, "(none)")
            if first != other:
                differences.append(f"{name}: rank 0 has {first}, rank {rank} has {other}")
    if differences:
        shown = "; ".join(differences[:10])
        more = f" (and {len(differences) - 10} more)" if len(differences) > 10 else ""
        end = f". {remedy}" if remedy else ""
        raise ValueError(f"the ranks of this job are configured differently. {shown}{more}{end}")
