"""Ranks begin to train with equal dense weights and optimizer variables: compared, and broadcast where they differ.

That happens when an optimizer's first step is traced, which is before it runs, or made eagerly; never when a model is
built or loaded, which one rank may do alone. Tables need none of it: see `binding`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.training.optimizer_options import OptimizerOptions

if TYPE_CHECKING:
    from tf_sparse_ps.reduction.rank_weight import RankWeight

_SHOWN = 5


class InitialSync:
    """Makes the ranks of one optimizer equal, once.

    Attributes:
      root: The rank whose variables all ranks get. All ranks must set the same.
    """

    def __init__(self, owner: OptimizerOptions, collectives: Collectives, weight: RankWeight) -> None:
        """Does nothing yet.

        Args:
          owner: Whose variables, and whose model's, are made equal.
          collectives: The rank's collectives.
          weight: Of this rank.
        """
        self.root = 0
        self._owner, self._collectives, self._weight = owner, collectives, weight
        self._done = collectives.size == 1

    @property
    def pending(self) -> bool:
        """Whether it is still to be done."""
        return not self._done

    def leave_as_they_are(self) -> None:
        """Has the first step begin with each rank's variables as they are. Every rank calls it.

        A checkpoint has set them on all ranks. Statistics of normalization may differ between ranks, as they did when
        it was saved.
        """
        self._done = True

    def make(self, variables: Iterable[Any], *, computed: bool) -> None:
        """Compares, and broadcasts what differs if the optimizer's `broadcast` says so. Eager, on all ranks.

        Variables that a tf.function makes have no values while it is traced for the first time. It is traced once more
        before it runs, so that this is called again.

        Args:
          variables: Beside those that the optimizer knows.
          computed: This rank's gradients of the step are there already, of its own weights: it then has weight 0 in
            the step if these were not the root's.

        Raises:
          ValueError: On all ranks. They have different variables; or they differ, and are not to be broadcast.
        """
        if self._done:
            return
        world, (own, names) = self._collectives, self._collect(variables)
        there = all(bool(one.is_initialized()) for one in own)
        if not all(world.allgather_object(there, "tsps.equal.there")):
            return
        everyone = world.allgather_object([_facts(one) for one in own], "tsps.equal.facts")
        _refuse_other_variables(everyone, names, self.root)
        different = [[i for i, one in enumerate(theirs) if one != everyone[self.root][i]] for theirs in everyone]
        if any(different):
            self._make_equal(own, names, different, computed)
        self._done = True

    def _make_equal(
        self, variables: list[tf.Variable], names: list[str], different: list[list[int]], computed: bool
    ) -> None:
        found = [
            f"rank {rank} in {len(those)} of {len(names)} ({_some([names[i] for i in those])})"
            for rank, those in enumerate(different)
            if those
        ]
        text = f"when training begins, weights are not those of rank {self.root} on {_some(found)}"
        if not self._owner.broadcast:
            raise ValueError(
                f"{text}. Ranks would train apart, and broadcast=False says that they begin alike: load or seed all of "
                "them alike, or leave it out"
            )
        made = self._iterations()
        broadcast_variables(variables, self.root, self._collectives)
        self._weight.shift(self._iterations() - made)
        if computed and different[self._collectives.rank]:
            self._weight.leave_out_next()
        if self._collectives.rank == self.root:
            print(f"tf_sparse_ps: {text}; they were broadcast", file=sys.stderr, flush=True)

    def _iterations(self) -> int:
        return int(tf.convert_to_tensor(self._owner.iterations))

    def _collect(self, variables: Iterable[Any]) -> tuple[list[tf.Variable], list[str]]:
        """All that is to be equal, and its names: weights that are no tables, and the wrapped optimizer's variables."""
        model = _keras.model_in_training(self._owner)
        weights = [*variables, *([] if model is None else model.weights)]
        named = [(one, _keras.variable_name(one)) for one in weights if binding_of(one) is None]
        named += [(one, one.name) for one in _keras.optimizer_variables(self._owner.inner_optimizer)]
        found: dict[Any, str] = {}
        for variable, name in named:
            for one in _keras.local_variables(variable):
                if one.dtype.is_floating or one.dtype.is_integer or one.dtype.is_bool:
                    found.setdefault(one.ref(), name)
        return [reference.deref() for reference in found], list(found.values())


def _facts(variable: tf.Variable) -> tuple[str, tuple[int, ...], str]:
    value = variable.numpy()
    content: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return variable.dtype.name, tuple(value.shape), hashlib.blake2b(content, digest_size=16).hexdigest()


def _refuse_other_variables(everyone: list[list[Any]], names: list[str], root: int) -> None:
    expected = [facts[:2] for facts in everyone[root]]
    for rank, theirs in enumerate(everyone):
        found = [facts[:2] for facts in theirs]
        if found == expected:
            continue
        pairs = zip(names, found, expected, strict=False)
        where = [f"{name}: {one} there, {other} on rank {root}" for name, one, other in pairs if one != other]
        raise ValueError(
            f"the ranks train different weights: rank {rank} has {len(found)}, the wrapped optimizer's variables "
            f"included, rank {root} has {len(expected)}. {_some(where)}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def broadcast_variables(variables: Sequence[Any], root: int, collectives: Collectives) -> None:
    """Sets variables to their values on rank `root`. Anchors of tables are left out. Eager, on all ranks.

    Raises:
      ValueError: Ranks have different variables.
    """
    if collectives.size == 1:
        return
    dense = [_keras.tf_variable(one) for one in variables if binding_of(one) is None]
    # Seed generators and the like are each rank's own business; numbers of all types travel.
    dense = [one for one in dense if one.dtype.is_floating or one.dtype.is_integer or one.dtype.is_bool]
    signature = [(one.dtype.name, tuple(one.shape)) for one in dense]
    for rank, theirs in enumerate(collectives.allgather_object(signature, "tsps.broadcast.signature")):
        if theirs != signature:
            raise ValueError(
                f"rank {rank} has {len(theirs)} variables, rank {collectives.rank} has {len(signature)}, or of other "
                f"shapes: {[pair for pair in zip(theirs, signature, strict=False) if pair[0] != pair[1]][:3]}"
            )
    for dtype in sorted({one.dtype.name for one in dense}):
        same = [one for one in dense if one.dtype.name == dtype]
        values = tf.concat([tf.reshape(tf.convert_to_tensor(one), [-1]) for one in same], axis=0)
        # The collectives' own types: bool is not one of them.
        wire = tf.cast(values, tf.int32) if values.dtype.is_bool else values
        received = tf.cast(collectives.broadcast(wire, root, f"tsps.broadcast.{dtype}"), values.dtype)
        sizes = [one.shape.num_elements() for one in same]
        for one, value in zip(same, tf.split(received, sizes), strict=True):
            one.assign(tf.reshape(value, one.shape))
