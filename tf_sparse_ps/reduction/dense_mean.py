"""Averages the gradients of replicated weights over all ranks by an all-reduce. Each rank has a weight."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import rank_weight
from tf_sparse_ps.reduction.agreement import TAIL, Agreement

# Smaller tensors are concatenated to one buffer per type, larger ones are sent as they are. Measured on two ranks with
# TensorFlow's ops, an all-reduce of a group of tensors and of their concatenation took 9.8 and 7.9 ms for 400 tensors
# of 4 KiB, and 42.2 and 44.2 ms for 120 tensors of 256 KiB. (With the kernels that pack now, both take equally long for
# 120 tensors of 256 KiB.) The processor time of concatenating, divided by that of sending the tensors as they are, with
# all copies: 0.7 for 4 KiB, 0.8 for 16 KiB, 1.0 for 32 and 64 KiB, 1.08 for 128 KiB, 1.13 for 256 KiB, 1.15 for 1 MiB.
CONCATENATE_BELOW_BYTES = 64 * 1024
CONCATENATE_ALL = float("inf")


class Packing:
    """Tensors of known shapes, packed for an all-reduce: small ones in one buffer per type, large ones as they are.

    Attributes:
      buffers: The buffers to send.
    """

    def __init__(self, tensors: Sequence[tf.Tensor], concatenate_below: float = CONCATENATE_BELOW_BYTES) -> None:
        """Packs tensors.

        Args:
          tensors: The tensors, of fully known shapes.
          concatenate_below: The number of bytes below which a tensor is concatenated with others.
        """
        self.buffers: list[tf.Tensor] = []
        self._shapes = [tensor.shape for tensor in tensors]
        self._placed: list[list[int]] = []  # the tensors in each buffer
        fused: dict[str, list[int]] = {}
        for i, tensor in enumerate(tensors):
            if _bytes(tensor) < concatenate_below:
                fused.setdefault(tensor.dtype.name, []).append(i)
            else:
                self._placed.append([i])
                self.buffers.append(tensor)
        for members in fused.values():
            self._placed.append(members)
            self.buffers.append(tf.concat([tf.reshape(tensors[i], [-1]) for i in members], axis=0))

    def unpack(self, buffers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors that are in reduced buffers."""
        tensors: dict[int, tf.Tensor] = {}
        for members, buffer in zip(self._placed, buffers, strict=True):
            sizes = [self._shapes[i].num_elements() for i in members]
            pieces = tf.split(tf.reshape(buffer, [-1]), sizes) if len(members) > 1 else [buffer]
            for i, piece in zip(members, pieces, strict=True):
                tensors[i] = tf.reshape(piece, self._shapes[i])
        return [tensors[i] for i in range(len(self._shapes))]


class WeightedPacking:
    """Gradients packed for a weighted mean: the all-reduce adds up the buffers of all ranks.

    The last buffer contains all small float32 gradients, then the tail of an agreement, then this rank's weight as its
    last number. A `Packing` contains all other gradients.

    Attributes:
      buffers: The buffers to send, multiplied by this rank's weight.
    """

    def __init__(
        self,
        gradients: Sequence[tf.Tensor],
        weight: tf.Tensor,
        concatenate_below: float = CONCATENATE_BELOW_BYTES,
        *,
        agreement: Agreement | None = None,
    ) -> None:
        """Packs gradients.

        Args:
          gradients: Tensors of fully known shapes.
          weight: This rank's weight, a float32 scalar.
          concatenate_below: See `Packing`.
          agreement: What the ranks must agree on. Its tail is also added up.
        """
        self._agreement = agreement
        self._small = [
            i for i, grad in enumerate(gradients) if grad.dtype == tf.float32 and _bytes(grad) < concatenate_below
        ]
        small = set(self._small)
        self._remaining = [i for i in range(len(gradients)) if i not in small]
        self._packing = Packing([gradients[i] for i in self._remaining], concatenate_below)
        self._like = [gradients[i] for i in self._small]
        self.buffers = [rank_weight.weighted(buffer, weight) for buffer in self._packing.buffers]
        tail = tf.reshape(weight, [1])
        tail = tail if agreement is None else tf.concat([agreement.tail, tail], 0)
        self.buffers.append(_ops.weighted_concat(self._like, weight, tail))

    def means(self, sums: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the means of the gradients and the sum of weights. `sums`: the sums of all ranks' buffers."""
        *packed, joined = sums
        weights = joined[-1]
        if self._agreement is not None:
            self._agreement.take(joined[-1 - TAIL : -1])
        unpacked = self._packing.unpack([rank_weight.mean(buffer, weights) for buffer in packed])
        means = dict(zip(self._remaining, unpacked, strict=True))
        means |= zip(self._small, _ops.mean_split(self._like, joined, weights), strict=True)
        return [means[i] for i in range(len(means))], weights


def average(
    gradients: Sequence[tf.Tensor],
    collectives: Collectives,
    name: str,
    weight: tf.Tensor,
    agreement: Agreement | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the weighted mean of gradients over all ranks. It makes one all-reduce.

    Args:
      gradients: Floating tensors of fully known shapes, the same list on all ranks.
      collectives: The rank's collectives.
      name: The name of the operation.
      weight: This rank's weight, from `rank_weight.allowed`. Products and sums have the type of each gradient.
      agreement: What the ranks must agree on, if the step has no other exchange for its digest.

    Returns:
      Tensors of the same shapes and types, bit-identical on all ranks, zeros if all weights are 0; and the sum of
      weights, for `rank_weight.check`, unless `gradients` is empty.
    """
    if not gradients:
        return [], []
    if collectives.size == 1:
        factor = rank_weight.mean(weight, weight)  # 1 or 0
        return [rank_weight.weighted(gradient, factor) for gradient in gradients], [weight]
    packing = WeightedPacking(gradients, weight, agreement=agreement)
    means, weights = packing.means(collectives.allreduce(packing.buffers, name, average=False))
    return means, [weights]


def _bytes(tensor: tf.Tensor) -> int:
    return tensor.shape.num_elements() * tensor.dtype.size
