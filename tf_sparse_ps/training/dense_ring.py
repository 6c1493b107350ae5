"""The dense ring: gradients of replicated weights are averaged over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_ps.collectives import Collectives

# Smaller tensors travel in one buffer per type, larger ones as they are. Measured on two ranks, all-reduce of many
# tensors as one group and concatenated: 400 of 4 KiB 9.8 and 7.9 ms, 120 of 256 KiB 42.2 and 44.2 ms.
_CONCATENATE_BELOW_BYTES = 64 * 1024


def average(gradients: Sequence[tf.Tensor], collectives: Collectives, name: str) -> list[tf.Tensor]:
    """Averages gradients over all ranks.

    Args:
      gradients: Floating tensors of fully known shapes, the same list on all ranks.
      collectives: Of this process.
      name: Of the operation.

    Returns:
      Tensors of the same shapes and types, bit-identical on all ranks.
    """
    if collectives.size == 1 or not gradients:
        return list(gradients)
    sent: list[tf.Tensor] = []
    placed: list[tuple[list[int], int]] = []  # gradients in it, position in sent
    fused: dict[str, list[int]] = {}
    for i, gradient in enumerate(gradients):
        if gradient.shape.num_elements() * gradient.dtype.size < _CONCATENATE_BELOW_BYTES:
            fused.setdefault(gradient.dtype.name, []).append(i)
        else:
            placed.append(([i], len(sent)))
            sent.append(gradient)
    for members in fused.values():
        placed.append((members, len(sent)))
        sent.append(tf.concat([tf.reshape(gradients[i], [-1]) for i in members], axis=0))
    received = collectives.allreduce(sent, name)
    results: list[tf.Tensor | None] = [None] * len(gradients)
    for members, position in placed:
        sizes = [gradients[i].shape.num_elements() for i in members]
        pieces = tf.split(tf.reshape(received[position], [-1]), sizes) if len(members) > 1 else [received[position]]
        for i, piece in zip(members, pieces, strict=True):
            results[i] = tf.reshape(piece, gradients[i].shape)
    return [result for result in results if result is not None]
