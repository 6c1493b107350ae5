"""The server variant: each bucket goes to its owner rank, is added up and applied there, and new parameters come back.

The owner adds in rank order; the wrapped optimizer's slots of a bucket are current on its owner only, until
`send_slots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import dense_mean, rank_weight
from tf_sparse_ps.reduction.agreement import Agreement
from tf_sparse_ps.schedules.bucket_plan import Plan

# An all-to-all, and a broadcast, take one tensor, so large gradients are concatenated too.
_ALL = dense_mean.CONCATENATE_ALL


class BucketServer:
    """What a rank does for the buckets of a plan that has owners, on several ranks.

    In a step: `reduce`, then `own`, then, when the wrapped optimizer has applied that, `send_back`.

    Attributes:
      exchanged: What came out of this step's all-to-alls on every rank, owners and others.
    """

    def __init__(self, plan: Plan, variables: Sequence[Any], collectives: Collectives, name: str) -> None:
        """Sends nothing yet.

        Args:
          plan: With owners.
          variables: Of the plan's gradients.
          collectives: The rank's collectives.
          name: What its operations' names begin with.
        """
        self._plan, self._variables, self._collectives, self._name = plan, variables, collectives, name
        self._weight: tf.Tensor | None = None  # of this rank, in the step that is being made
        self._agreement: Agreement | None = None  # in that step
        self._sums: dict[int, tf.Tensor] = {}  # of all ranks' weights, by bucket; of own buckets
        self._slots: list[list[tf.Variable]] | None = None  # by owner
        self.exchanged: list[tf.Tensor] = []

    def reduce(
        self, gradients: Sequence[tf.Tensor], weight: tf.Tensor, agreement: Agreement | None = None
    ) -> list[tf.Tensor]:
        """Sends each bucket to its owner. The digest of `agreement` goes with the first one, and comes back with it.

        Returns:
          The weighted means of own buckets' gradients; others as they are, which `own` leaves out.
        """
        results = list(gradients)
        before: list[tf.Tensor] = []
        self._weight, self._agreement = weight, agreement
        self.exchanged = []
        for number, (members, owner) in enumerate(zip(self._plan.buckets, self._plan.owners, strict=True)):
            own = agreement if number == 0 else None
            packing = dense_mean.WeightedPacking([gradients[i] for i in members], weight, _ALL, agreement=own)
            with tf.control_dependencies(before):  # until they are handed over, as without a server
                before = [tf.identity(one) for one in packing.buffers]
            sums = [self._to_owner(one, owner, f"{self._name}.bucket.{number}.{one.dtype.name}") for one in before]
            if owner == self._collectives.rank:
                means, self._sums[number] = packing.means(sums)
                for i, mean in zip(members, means, strict=True):
                    results[i] = mean
        return results

    def own(self, variables: Sequence[Any], gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Those of some variables and their gradients that this rank updates: not what is in others' buckets."""
        others = {
            id(self._variables[i])
            for members, owner in zip(self._plan.buckets, self._plan.owners, strict=True)
            for i in members
            if owner != self._collectives.rank
        }
        kept = [pair for pair in zip(variables, gradients, strict=True) if id(pair[0]) not in others]
        return [variable for variable, _ in kept], [gradient for _, gradient in kept]

    def send_back(self) -> None:
        """Gives all ranks the parameters of each bucket, from its owner, and checks the ranks' weights."""
        checked, agreement = [], self._agreement
        for number, (members, owner) in enumerate(zip(self._plan.buckets, self._plan.owners, strict=True)):
            variables = [_keras.tf_variable(self._variables[i]) for i in members]
            weights = tf.reshape(self._sums.pop(number, tf.zeros([])), [1])
            if number == 0 and agreement is not None:
                weights = tf.concat([weights, agreement.sums], 0)
            label = f"{self._name}.bucket.{number}.back"
            *values, weights = self._from_owner([*(one.read_value() for one in variables), weights], owner, label)
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
        """Gives all ranks the wrapped optimizer's variables, each from who updates it. Eager, on all ranks."""
        if self._slots is None:
            self._slots = self._find_slots(optimizer)
        for owner, variables in enumerate(self._slots):
            label = f"{self._name}.slots.{owner}"
            values = self._from_owner([one.read_value() for one in variables], owner, label)
            if owner != self._collectives.rank:
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)

    def _find_slots(self, optimizer: Any) -> list[list[tf.Variable]]:
        """The optimizer's variables that each rank updates; those that several do are the first one's."""
        found, seen = [], set()
        for rank in range(self._collectives.size):
            owned = [
                self._variables[i]
                for members, owner in zip(self._plan.buckets, self._plan.owners, strict=True)
                for i in members
                if owner == rank
            ]
            touched = _keras.touched_by_update(optimizer, owned) if owned else []
            found.append([one for one in touched if id(one) not in seen])
            seen |= {id(one) for one in touched}
        return found

    def _to_owner(self, buffer: tf.Tensor, owner: int, name: str) -> tf.Tensor:
        """On the owner the sum over the ranks, in their order; on others something without meaning."""
        world, length = self._collectives, buffer.shape.num_elements()
        splits = [length if rank == owner else 0 for rank in range(world.size)]
        received, counts = world.alltoall(buffer, tf.constant(splits, tf.int32), name)
        self.exchanged.append(counts)
        if owner != world.rank:
            return buffer
        first, *others = tf.unstack(tf.reshape(received, [world.size, length]))
        total = first
        for one in others:
            total += one
        return total

    def _from_owner(self, tensors: Sequence[tf.Tensor], owner: int, name: str) -> list[tf.Tensor]:
        packing = dense_mean.Packing(tensors, _ALL)
        buffers = [self._collectives.broadcast(one, owner, f"{name}.{one.dtype.name}") for one in packing.buffers]
        return packing.unpack(buffers)
