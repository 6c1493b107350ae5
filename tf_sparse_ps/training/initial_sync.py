"""`InitialSync`: ranks compare their dense weights and optimizer variables, and broadcast those that differ.

They compare them when the optimizer's first step is traced, before it runs, or made eagerly. They do not compare them
when a model is built or loaded, because one rank may do that alone. `reduction/handshake.py` compares tables.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction.rank_weight import RankWeight
from tf_sparse_ps.training.optimizer_options import OptimizerOptions

_SHOWN = 5


class InitialSync:
    """Makes the ranks of one optimizer equal, once.

    Attributes:
      root: The rank whose variables all ranks get. All ranks must set the same.
    """

    def __init__(self, owner: OptimizerOptions, collectives: Collectives, weight: RankWeight) -> None:
        """Makes an initial sync that is pending if there are several ranks.

        Args:
          owner: The optimizer. Its variables, and its model's, are made equal.
          collectives: The rank's collectives.
          weight: The weight of this rank's steps.
        """
        self.root = 0
        self._owner, self._collectives, self._weight = owner, collectives, weight
        self._done = collectives.size == 1

    @property
    def pending(self) -> bool:
        """Whether the ranks are still to be made equal."""
        return not self._done

    def leave_as_they_are(self, initialized: Sequence[tf.Variable] = ()) -> None:
        """Makes the first step begin with each rank's variables as they are. Every rank calls it.

        A checkpoint has set them on all ranks. Statistics of normalization may differ between ranks, as they did when
        it was saved.

        Args:
          initialized: Variables that the checkpoint does not have. They are compared, and broadcast if they differ.

        Raises:
          ValueError: On all ranks: as `make`.
        """
        if self._collectives.size > 1 and initialized:
            self._compare(list(initialized), [variable.name for variable in initialized], computed=False)
        self._done = True

    def make(self, variables: Iterable[Any], *, computed: bool) -> None:
        """Compares the ranks' variables, and broadcasts those that differ if the optimizer's `broadcast` says so.

        All ranks call it eagerly. Variables that a tf.function makes have no values while it is traced for the first
        time. It is traced once more before it runs, so that this is called again.

        Args:
          variables: Variables in addition to those that the optimizer knows.
          computed: Whether this rank has already computed the gradients of the step, from its own weights. If its
            weights differed from the root's, the rank has weight 0 in the step.

        Raises:
          ValueError: On all ranks: their variables differ in number, type or shape; or the values differ, and
            `broadcast` is False.
        """
        if self._done:
            return
        collectives, (synced, names) = self._collectives, self._collect(variables)
        initialized = all(bool(variable.is_initialized()) for variable in synced)
        if not all(collectives.allgather_object(initialized, "tsps.equal.there")):
            return
        self._compare(synced, names, computed)
        self._done = True

    def _compare(self, variables: list[tf.Variable], names: list[str], computed: bool) -> None:
        """Compares variables, and broadcasts those that differ."""
        facts_of_variables = [_facts(variable) for variable in variables]
        all_facts = self._collectives.allgather_object(facts_of_variables, "tsps.equal.facts")
        _refuse_other_variables(all_facts, names, self.root)
        root_facts = all_facts[self.root]
        differing = [[i for i, fact in enumerate(facts) if fact != root_facts[i]] for facts in all_facts]
        if any(differing):
            self._make_equal(variables, names, differing, computed)

    def _make_equal(
        self, variables: list[tf.Variable], names: list[str], differing: list[list[int]], computed: bool
    ) -> None:
        ranks = [
            f"rank {rank} in {len(numbers)} of {len(names)} ({_some([names[i] for i in numbers])})"
            for rank, numbers in enumerate(differing)
            if numbers
        ]
        text = f"when training begins, weights are not those of rank {self.root} on {_some(ranks)}"
        if not self._owner.broadcast:
            raise ValueError(
                f"{text}. The ranks would train apart, and broadcast=False requires equal weights. Load or seed all "
                "ranks alike, or leave broadcast=False out"
            )
        updates = self._iterations()
        broadcast_variables(variables, self.root, self._collectives)
        self._weight.shift(self._iterations() - updates)
        if computed and differing[self._collectives.rank]:
            self._weight.leave_out_next()
        if self._collectives.rank == self.root:
            print(f"tf_sparse_ps: {text}; they were broadcast", file=sys.stderr, flush=True)

    def _iterations(self) -> int:
        return int(tf.convert_to_tensor(self._owner.iterations))

    def _collect(self, variables: Iterable[Any]) -> tuple[list[tf.Variable], list[str]]:
        """Returns dense weights and the wrapped optimizer's variables, and their names."""
        model = _keras.model_in_training(self._owner)
        weights = [*variables, *([] if model is None else model.weights)]
        named = [(weight, _keras.variable_name(weight)) for weight in weights if binding_of(weight) is None]
        named += [(slot, slot.name) for slot in _keras.optimizer_variables(self._owner.inner_optimizer)]
        names: dict[Any, str] = {}
        for variable, name in named:
            for local in _keras.local_variables(variable):
                if _is_number(local):
                    names.setdefault(local.ref(), name)
        return [reference.deref() for reference in names], list(names.values())


def _is_number(variable: tf.Variable) -> bool:
    """Whether a variable holds numbers of a type that the collectives send."""
    dtype = variable.dtype
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def _facts(variable: tf.Variable) -> tuple[str, tuple[int, ...], str]:
    value = variable.numpy()
    content: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return variable.dtype.name, tuple(value.shape), hashlib.blake2b(content, digest_size=16).hexdigest()


def _refuse_other_variables(all_facts: list[list[Any]], names: list[str], root: int) -> None:
    expected = [facts[:2] for facts in all_facts[root]]
    for rank, rank_facts in enumerate(all_facts):
        signature = [facts[:2] for facts in rank_facts]
        if signature == expected:
            continue
        pairs = zip(names, signature, expected, strict=False)
        where = [
            f"{name}: {there} on rank {rank}, {here} on rank {root}" for name, there, here in pairs if there != here
        ]
        raise ValueError(
            f"the ranks train different weights: rank {rank} has {len(signature)}, the wrapped optimizer's variables "
            f"included, rank {root} has {len(expected)}. {_some(where)}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def broadcast_variables(variables: Sequence[Any], root: int, collectives: Collectives) -> None:
    """Sets variables to their values on rank `root`, except for anchors of tables. All ranks call it eagerly.

    Raises:
      ValueError: The ranks have different variables.
    """
    if collectives.size == 1:
        return
    dense = [_keras.tf_variable(variable) for variable in variables if binding_of(variable) is None]
    # Other variables, such as resources of seed generators, belong to one rank.
    dense = [variable for variable in dense if _is_number(variable)]
    signature = [(variable.dtype.name, tuple(variable.shape)) for variable in dense]
    for rank, rank_signature in enumerate(collectives.allgather_object(signature, "tsps.broadcast.signature")):
        if rank_signature != signature:
            pairs = zip(rank_signature, signature, strict=False)
            raise ValueError(
                "the ranks have different variables, or variables of different types or shapes: "
                f"rank {rank} has {len(rank_signature)}, rank {collectives.rank} has {len(signature)}. The first that "
                f"differ are {[pair for pair in pairs if pair[0] != pair[1]][:3]}"
            )
    for dtype in sorted({variable.dtype.name for variable in dense}):
        same = [variable for variable in dense if variable.dtype.name == dtype]
        values = tf.concat([tf.reshape(tf.convert_to_tensor(variable), [-1]) for variable in same], axis=0)
        # The collectives do not send bool.
        wire = tf.cast(values, tf.int32) if values.dtype.is_bool else values
        received = tf.cast(collectives.broadcast(wire, root, f"tsps.broadcast.{dtype}"), values.dtype)
        sizes = [variable.shape.num_elements() for variable in same]
        for variable, value in zip(same, tf.split(received, sizes), strict=True):
            variable.assign(tf.reshape(value, variable.shape))
