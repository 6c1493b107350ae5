"""The dense ring: gradients of replicated weights are averaged over all ranks, each with its weight."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import rank_weight
from tf_sparse_ps.reduction.agreement import TAIL, Agreement

# Smaller tensors travel in one buffer per type, larger ones as they are. Measured on two ranks, with TensorFlow's ops
# in place of the kernels that pack now (with which 120 of 256 KiB take as long either way), all-reduce of many tensors
# as one group and concatenated: 400 of 4 KiB 9.8 and 7.9 ms, 120 of 256 KiB 42.2 and 44.2 ms. Processor time of
# concatenating, by that of sending as they are, copies in and out included: 4 KiB 0.7, 16 KiB 0.8, 32 and 64 KiB 1.0,
# 128 KiB 1.08, 256 KiB 1.13, 1 MiB 1.15.
CONCATENATE_BELOW_BYTES = 64 * 1024
CONCATENATE_ALL = float("inf")


class Packing:
    """Tensors of known shapes as they travel: small ones in one buffer per type, large ones as they are.

    Attributes:
      buffers: What travels.
    """

    def __init__(self, tensors: Sequence[tf.Tensor], concatenate_below: float = CONCATENATE_BELOW_BYTES) -> None:
        """Packs.

        Args:
          tensors: Of fully known shapes.
          concatenate_below: Bytes from which on a tensor travels as it is.
        """
        self.buffers: list[tf.Tensor] = []
        self._shapes = [tensor.shape for tensor in tensors]
        self._placed: list[list[int]] = []  # which tensors are in each buffer
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
        """The tensors in buffers like those that were packed."""
        found: dict[int, tf.Tensor] = {}
        for members, buffer in zip(self._placed, buffers, strict=True):
            sizes = [self._shapes[i].num_elements() for i in members]
            pieces = tf.split(tf.reshape(buffer, [-1]), sizes) if len(members) > 1 else [buffer]
            for i, piece in zip(members, pieces, strict=True):
                found[i] = tf.reshape(piece, self._shapes[i])
        return [found[i] for i in range(len(self._shapes))]


class WeightedPacking:
    """Gradients on their way to their weighted mean, in the buffers that are to be added up over the ranks.

    Small float32 gradients are one buffer, the last; this rank's weight is its last number, and before it is what else
    is to be added up. The others travel as `Packing` has them.

    Attributes:
      buffers: What travels, multiplied by this rank's weight.
    """

    def __init__(
        self,
        gradients: Sequence[tf.Tensor],
        weight: tf.Tensor,
        concatenate_below: float = CONCATENATE_BELOW_BYTES,
        *,
        agreement: Agreement | None = None,
    ) -> None:
        """Packs; `weight` is this rank's. `agreement`: its digest is added up, too."""
        self._agreement = agreement
        self._small = [
            i for i, one in enumerate(gradients) if one.dtype == tf.float32 and _bytes(one) < concatenate_below
        ]
        small = set(self._small)
        self._others = [i for i in range(len(gradients)) if i not in small]
        self._packing = Packing([gradients[i] for i in self._others], concatenate_below)
        self._like = [gradients[i] for i in self._small]
        self.buffers = [rank_weight.weighted(one, weight) for one in self._packing.buffers]
        tail = tf.reshape(weight, [1])
        tail = tail if agreement is None else tf.concat([agreement.tail, tail], 0)
        self.buffers.append(_ops.weighted_concat(self._like, weight, tail))

    def means(self, sums: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The gradients' means, and the sum of weights, from the sums of all ranks' buffers."""
        *others, joined = sums
        weights = joined[-1]
        if self._agreement is not None:
            self._agreement.take(joined[-1 - TAIL : -1])
        unpacked = self._packing.unpack([rank_weight.mean(one, weights) for one in others])
        means = dict(zip(self._others, unpacked, strict=True))
        means |= zip(self._small, _ops.mean_split(self._like, joined, weights), strict=True)
        return [means[i] for i in range(len(means))], weights


def average(
    gradients: Sequence[tf.Tensor],
    collectives: Collectives,
    name: str,
    weight: tf.Tensor,
    agreement: Agreement | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The weighted mean of gradients over all ranks, in one all-reduce.

    Args:
      gradients: Floating tensors of fully known shapes, the same list on all ranks.
      collectives: The rank's collectives.
      name: Of the operation.
      weight: Of this rank, from `rank_weight.allowed`. Products and sums are made in each gradient's own type.
      agreement: What the ranks must agree on, if the step has no other exchange that its digest travels with.

    Returns:
      Tensors of the same shapes and types, bit-identical on all ranks, zeros when all weights are 0; and the sum of
      weights, for `rank_weight.check`, if there was a gradient.
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
