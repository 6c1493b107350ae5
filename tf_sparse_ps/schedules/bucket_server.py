"""The server variant of `TimedBuckets`: an owner rank adds up and applies each bucket, and sends new parameters back.

The owner adds in the order of the ranks. The wrapped optimizer's slots of a bucket are current on its owner only, until
`send_slots`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import dense_mean, rank_weight
from tf_sparse_ps.reduction.agreement import Agreement
from tf_sparse_ps.schedules.bucket_plan import Plan

# An all-to-all and a broadcast take one tensor, so large gradients are concatenated, too.
_ALL = dense_mean.CONCATENATE_ALL


class BucketServer:
    """This rank's part in a plan with owners, on several ranks.

    A step calls `reduce`, `select_owned` and, when the wrapped optimizer has applied these, `send_back`.

    Attributes:
      exchanged: The results of this step's all-to-alls that every rank has, owner or not.
    """

    def __init__(self, plan: Plan, variables: Sequence[Any], collectives: Collectives, name: str) -> None:
        """Sends nothing yet.

        Args:
          plan: A plan with owners.
          variables: The variables of the plan's gradients.
          collectives: The rank's collectives.
          name: The beginning of its operations' names.
        """
        self._plan, self._variables, self._collectives, self._name = plan, variables, collectives, name
        self._weight: tf.Tensor | None = None  # of this rank, in the step that is being made
        self._agreement: Agreement | None = None  # in that step
        self._sums: dict[int, tf.Tensor] = {}  # of all ranks' weights, by bucket; for buckets of this rank
        self._slots: list[list[tf.Variable]] | None = None  # by owner
        self.exchanged: list[tf.Tensor] = []

    def reduce(
        self, gradients: Sequence[tf.Tensor], weight: tf.Tensor, agreement: Agreement | None = None
    ) -> list[tf.Tensor]:
        """Sends each bucket to its owner. The digest of `agreement` travels with the first one, and comes back with it.

        Returns:
          The weighted means of the gradients in this rank's buckets. Other gradients are returned as they are;
          `select_owned` leaves them out.
        """
        results = list(gradients)
        handed_over: list[tf.Tensor] = []
        self._weight, self._agreement = weight, agreement
        self.exchanged = []
        for number, members, owner in self._buckets():
            first_agreement = agreement if number == 0 else None
            bucket = [gradients[i] for i in members]
            packing = dense_mean.WeightedPacking(bucket, weight, _ALL, agreement=first_agreement)
            with tf.control_dependencies(handed_over):  # until they are handed over, as without a server
                handed_over = [tf.identity(buffer) for buffer in packing.buffers]
            sums = [
                self._to_owner(buffer, owner, f"{self._name}.bucket.{number}.{buffer.dtype.name}")
                for buffer in handed_over
            ]
            if owner == self._collectives.rank:
                means, self._sums[number] = packing.means(sums)
                for i, mean in zip(members, means, strict=True):
                    results[i] = mean
        return results

    def select_owned(self, variables: Sequence[Any], gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the variables, and their gradients, that this rank updates: all but those in others' buckets."""
        rank = self._collectives.rank
        others = {id(self._variables[i]) for _, members, owner in self._buckets() if owner != rank for i in members}
        kept = [pair for pair in zip(variables, gradients, strict=True) if id(pair[0]) not in others]
        return [variable for variable, _ in kept], [gradient for _, gradient in kept]

    def send_back(self) -> None:
        """Sends the parameters of each bucket from its owner to all ranks, and checks the ranks' weights."""
        checked, agreement = [], self._agreement
        for number, members, owner in self._buckets():
            variables = [_keras.tf_variable(self._variables[i]) for i in members]
            weights = tf.reshape(self._sums.pop(number, tf.zeros([])), [1])
            if number == 0 and agreement is not None:
                weights = tf.concat([weights, agreement.sums], 0)
            label = f"{self._name}.bucket.{number}.back"
            *values, weights = self._from_owner([*_values_of(variables), weights], owner, label)
            checked.append(weights[0])
            if number == 0 and agreement is not None:
                agreement.take(weights[1:])
            if owner != self._collectives.rank:
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)
        rank_weight.check(checked, self._weight, None)
        if agreement is not None:
            agreement.check(checked)
        self._weight = self._agreement = None

    def send_slots(self, optimizer: Any) -> None:
        """Sends the wrapped optimizer's variables, each from the rank that updates it, to all. Eager, on all ranks."""
        if self._slots is None:
            self._slots = self._find_slots(optimizer)
        for owner, variables in enumerate(self._slots):
            values = self._from_owner(_values_of(variables), owner, f"{self._name}.slots.{owner}")
            if owner != self._collectives.rank:
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)

    def _find_slots(self, optimizer: Any) -> list[list[tf.Variable]]:
        """Returns the optimizer's variables that each rank updates. If several ranks do, the first one counts."""
        slots, seen = [], set()
        for rank in range(self._collectives.size):
            owned = [self._variables[i] for _, members, owner in self._buckets() if owner == rank for i in members]
            touched = _keras.touched_by_update(optimizer, owned) if owned else []
            slots.append([variable for variable in touched if id(variable) not in seen])
            seen |= {id(variable) for variable in touched}
        return slots

    def _buckets(self) -> Iterator[tuple[int, tuple[int, ...], int]]:
        """Yields the number, the members and the owner of each bucket."""
        for number, (members, owner) in enumerate(zip(self._plan.buckets, self._plan.owners, strict=True)):
            yield number, members, owner

    def _to_owner(self, buffer: tf.Tensor, owner: int, name: str) -> tf.Tensor:
        """Returns on the owner the sum over the ranks, in their order; on other ranks a meaningless tensor."""
        world, length = self._collectives, buffer.shape.num_elements()
        splits = [length if rank == owner else 0 for rank in range(world.size)]
        received, counts = world.alltoall(buffer, tf.constant(splits, tf.int32), name)
        self.exchanged.append(counts)
        if owner != world.rank:
            return buffer
        total, *others = tf.unstack(tf.reshape(received, [world.size, length]))
        for other in others:
            total += other
        return total

    def _from_owner(self, tensors: Sequence[tf.Tensor], owner: int, name: str) -> list[tf.Tensor]:
        packing = dense_mean.Packing(tensors, _ALL)
        buffers = [
            self._collectives.broadcast(buffer, owner, f"{name}.{buffer.dtype.name}") for buffer in packing.buffers
        ]
        return packing.unpack(buffers)


def _values_of(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return [variable.read_value() for variable in variables]
