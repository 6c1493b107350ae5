"""What ranks must agree on before a step is made, and a rank's objections to a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib


class Facts(NamedTuple):
    """What `facts` returns."""

    facts: tf.Tensor  # int64[n]: the numbers, the bits of the reals, and a digest of each of the values
    digest: tf.Tensor  # int64: of all facts


def facts(seed: tf.Tensor, numbers: tf.Tensor, reals: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> Facts:
    """What must be equal on all ranks, as numbers that can be compared.

    Args:
        seed: int64, the same on all ranks. It chooses which parts of large values are read.
        numbers: int64[n].
        reals: float32 of any shapes.
        values: tensors of any types and shapes but strings. Of more than 1 KiB a sample is read.
    """
    return Facts(*lib.tsps_facts(seed, numbers, list(reals), list(values), n_values=len(values)))


def statement(path: str, digest: tf.Tensor) -> tf.Tensor:
    """uint8[n]: what this rank says of a step, to be gathered with the nodes' verdicts for `decide_step`.

    Args:
        path: of the group. A look-up of this process that failed in the step is an objection, which this takes.
        digest: int64, of `facts`.
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
    """The verdict that digests differ, with the names of the facts that do. Other verdicts come back as they are.

    Args:
        verdict: uint8[n], the same on all ranks.
        gathered: int64[ranks * n], the `facts` of all ranks, in their order.
        names: n names of facts.
        shown: n characters: "i" a fact is shown as an integer, "f" as a float32, "h" not.
        remedies: texts.
        remedy_of: n positions in remedies.
    """
    return lib.tsps_explain_difference(
        verdict, gathered, names=list(names), shown=shown, remedies=list(remedies), remedy_of=list(remedy_of)
    )


def allow_objections(path: str, *, allowed: bool) -> None:
    """Says whether look-ups of a step that fail leave their error to the step, where all ranks get it.

    Args:
        path: of the group.
        allowed: False: they fail at once.
    """
    lib.tsps_allow_objections(path, int(allowed))


def raise_objection(path: str) -> tf.Operation | None:
    """Raises the error of a look-up that was left to a step: for steps that no exchange of tables belongs to."""
    return lib.tsps_raise_objection(path)
