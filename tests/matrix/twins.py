"""A model with our table on two ranks, and Keras's own on one: what it trains to is the reference.

Every batch of a rank has every id once. So both ranks have each key, whose gradient is then the mean of the two, like
that of dense weights: one step is Keras's step on both ranks' batches together. And lazy and dense rules do the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

keras = _keras.keras
KERAS_3 = _keras.IS_KERAS_3
ROWS, DIM, BATCH, BATCHES = 12, 3, 4, 6
TOLERANCE = 1e-4  # of the largest weight, after 18 updates in float32; Adam and RMSprop divide by small roots

_draw = np.random.default_rng(5)
IDS = [np.concatenate([_draw.permutation(ROWS).reshape(BATCH, 3) for _ in range(BATCHES)]) for _ in range(2)]
TARGETS = [_draw.normal(size=(BATCH * BATCHES, 1)).astype(np.float32) for _ in range(2)]


def both(of_ranks: list[np.ndarray]) -> np.ndarray:
    """Both ranks' samples, batch by batch."""
    parts = [one.reshape(BATCHES, BATCH, -1) for one in of_ranks]
    return np.concatenate(parts, axis=1).reshape(BATCHES * BATCH * 2, -1)


def optimizer(name: str, *args: Any, **options: Any) -> Any:
    """A Keras optimizer by name; "legacy." in front for Keras 2's legacy ones."""
    home = keras.optimizers.legacy if name.startswith("legacy.") else keras.optimizers
    return getattr(home, name.removeprefix("legacy."))(*args, **options)


def wrapped(inner: Any, **options: Any) -> Any:
    """Ours around it."""
    return tsps.DistributedOptimizer(inner, **options)


class KerasEmbedding(keras.layers.Embedding):
    """Keras's own, with a dense gradient: of a sparse one Keras 3 does not add up what ids that repeat have.

    So its rules that are not linear would not be a reference. Here both ranks' batches have the same ids.
    """

    def call(self, inputs: Any) -> Any:
        """Looks ids[...] up: [..., output_dim]."""
        rows = tf.cast(tf.convert_to_tensor(self.embeddings), self.compute_dtype)
        return tf.matmul(tf.one_hot(tf.cast(inputs, tf.int64), self.input_dim, dtype=rows.dtype), rows)


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """The dtype policy of layers that are made within."""
    set_policy = keras.config.set_dtype_policy if KERAS_3 else keras.mixed_precision.set_global_policy
    set_policy(name)
    try:
        yield
    finally:
        set_policy("float32")


def model(layer: Any, *, activation: str = "tanh") -> Any:
    """ids[batch, 3] -> layer -> one output."""
    ids = keras.layers.Input((3,), dtype="int64")
    hidden = keras.layers.Dense(4, activation=activation)(keras.layers.Flatten()(layer(ids)))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def pair(kind: Any = KerasEmbedding, **layer_options: Any) -> tuple[Any, Any]:
    """Ours and Keras's model, of the same weights; `kind`: of its layer."""
    theirs = model(kind(ROWS, DIM, **layer_options))
    ours = model(tsps.Embedding(ROWS, DIM, **layer_options))
    ours.set_weights(theirs.get_weights())
    return ours, theirs


def fit(one: Any, rank: int | None, *, epochs: int = 3, **options: Any) -> Any:
    """Trains on a rank's samples, or on both ranks' (None), in their order; returns the history."""
    ids, targets = (both(IDS), both(TARGETS)) if rank is None else (IDS[rank], TARGETS[rank])
    batch = BATCH * 2 if rank is None else BATCH
    return one.fit(ids, targets, batch_size=batch, epochs=epochs, verbose=0, shuffle=False, **options)


def step_of(one: Any, apply: Callable[[list[Any]], Any]) -> Callable[[Any, Any], None]:
    """A training step: gradients of the mean squared error, and `apply` with pairs of them and their variables."""

    def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((one(ids, training=True) - targets) ** 2)
        variables = one.trainable_variables
        apply(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    return step


def loop(step: Callable[[Any, Any], Any], rank: int | None, *, epochs: int = 3) -> None:
    """Calls a step with the batches that `fit` would have."""
    ids, targets = (both(IDS), both(TARGETS)) if rank is None else (IDS[rank], TARGETS[rank])
    size = BATCH * 2 if rank is None else BATCH
    for _ in range(epochs):
        for start in range(0, len(ids), size):
            step(tf.constant(ids[start : start + size]), tf.constant(targets[start : start + size]))


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of weights, relative to each one's largest."""
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def assert_equal(rank: Any, ours: Any, theirs: Any, tolerance: float = TOLERANCE) -> None:
    """Ours has trained to Keras's weights, and alike on both ranks, bit for bit."""
    found = difference(ours, theirs)
    assert found < tolerance, f"differs from Keras by {found:.1e} of the largest weight"
    rank.same([weight.tolist() for weight in ours.get_weights()])


def assert_trains_alike(
    rank: Any,
    ours: Any,
    theirs: Any,
    make: Callable[[], Any],
    *,
    wrap: dict[str, Any] | None = None,
    callbacks: Callable[[], list[Any]] = list,
    ours_only: tuple[Any, ...] = (),
    tolerance: float = TOLERANCE,
    **compile_options: Any,
) -> None:
    """`fit` of ours on two ranks equals `fit` of theirs, of the same weights, on both ranks' samples.

    Args:
      rank: Of this process.
      ours, theirs: Models.
      make: Makes the optimizer that is wrapped, and Keras's.
      wrap: Options of the wrapper.
      callbacks: Makes those of each.
      ours_only: Callbacks of ours.
      tolerance: See `TOLERANCE`.
      compile_options: Of both.
    """
    ours.compile(wrapped(make(), **(wrap or {})), "mse", **compile_options)
    theirs.compile(make(), "mse", **compile_options)
    fit(ours, rank.rank, callbacks=[*ours_only, *callbacks()])
    fit(theirs, None, callbacks=callbacks())
    assert_equal(rank, ours, theirs, tolerance)


def assert_fit(rank: Any, make: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """`assert_trains_alike`, with its options, of a `pair`, which is returned; and the weights have moved."""
    ours, theirs = pair()
    start = [weight.copy() for weight in ours.get_weights()]
    assert_trains_alike(rank, ours, theirs, make, **options)
    for name, before, after in zip(("rows", "weights"), start, ours.get_weights(), strict=False):
        assert np.abs(after - before).max() > 1e-3, f"{name} have not moved"
    return ours, theirs
