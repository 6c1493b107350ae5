"""Facts that must be equal on all ranks before they make a step, and a rank's objections to a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib


class Facts(NamedTuple):
    """The result of `facts`."""

    facts: tf.Tensor  # int64[n]: the numbers, the bits of the reals, and a digest of each value
    digest: tf.Tensor  # int64: a digest of all facts


def facts(seed: tf.Tensor, numbers: tf.Tensor, reals: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> Facts:
    """Returns facts that must be equal on all ranks, in a form that ranks can compare.

    Args:
        seed: A seed, int64, the same on all ranks. It chooses the parts of large values that are read.
        numbers: The integers, int64[n].
        reals: The real numbers, float32 of any shapes.
        values: Tensors of any shapes, and of any types but strings. The op reads a sample of a value over 1 KiB.
    """
    return Facts(*lib.tsps_facts(seed, numbers, list(reals), list(values), n_values=len(values)))


def statement(path: str, digest: tf.Tensor) -> tf.Tensor:
    """Returns this rank's statement on a step, uint8[n]. Ranks gather statements and verdicts for `decide_step`.

    If a lookup of this process failed in the step, the statement contains the error as an objection.

    Args:
        path: The path of the group.
        digest: The digest from `facts`, int64.
    """
    return lib.tsps_statement(path, digest)


def explain_difference(
    verdict: tf.Tensor,
    gathered: tf.Tensor,
    names: Sequence[str],
    shown: str,
    remedies: Sequence[str],
    remedy_of: Sequence[int],
) -> tf.Tensor:
    """Adds the names of the facts that differ to the verdict that digests differ. Returns other verdicts as they are.

    Args:
        verdict: The verdict, uint8[n], the same on all ranks.
        gathered: The `facts` of all ranks, in the order of the ranks, int64[ranks * n].
        names: The names of the n facts.
        shown: The form in which each fact is shown, n characters: "i" integer, "f" float32, "h" hidden.
        remedies: The texts that tell the user what to do.
        remedy_of: The position in `remedies` of the remedy for each of the n facts.
    """
    return lib.tsps_explain_difference(
        verdict, gathered, names=list(names), shown=shown, remedies=list(remedies), remedy_of=list(remedy_of)
    )


def allow_objections(path: str, *, allowed: bool) -> None:
    """Sets whether a lookup that fails in a step leaves its error to the step, so that all ranks raise it.

    Args:
        path: The path of the group.
        allowed: Whether to leave the error to the step. Otherwise the lookup fails at once.
    """
    lib.tsps_allow_objections(path, int(allowed))


def raise_objection(path: str) -> tf.Operation | None:
    """Raises the error that a lookup has left to a step. For steps in which ranks exchange no gradients of tables."""
    return lib.tsps_raise_objection(path)
