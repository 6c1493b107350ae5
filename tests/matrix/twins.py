"""A model with our table on two ranks, and a Keras model on one, whose training is the reference.

Every batch of a rank has every id once. Both ranks therefore have each key, and its gradient is the mean of the two, as
for dense weights: one step is Keras's step on both ranks' batches together. Lazy and dense rules then agree, too.
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
TOLERANCE = 1e-4  # relative to the largest weight, after 18 float32 updates; Adam and RMSprop divide by small roots

_draw = np.random.default_rng(5)
IDS = [np.concatenate([_draw.permutation(ROWS).reshape(BATCH, 3) for _ in range(BATCHES)]) for _ in range(2)]
TARGETS = [_draw.normal(size=(BATCH * BATCHES, 1)).astype(np.float32) for _ in range(2)]


def both(of_ranks: list[np.ndarray]) -> np.ndarray:
    """Returns both ranks' samples, batch by batch."""
    parts = [samples.reshape(BATCHES, BATCH, -1) for samples in of_ranks]
    return np.concatenate(parts, axis=1).reshape(BATCHES * BATCH * 2, -1)


def optimizer(name: str, *args: Any, **options: Any) -> Any:
    """Returns a Keras optimizer by its name. The prefix "legacy." selects Keras 2's legacy optimizers."""
    home = keras.optimizers.legacy if name.startswith("legacy.") else keras.optimizers
    return getattr(home, name.removeprefix("legacy."))(*args, **options)


def wrapped(inner: Any, **options: Any) -> Any:
    """Wraps an optimizer in ours."""
    return tsps.DistributedOptimizer(inner, **options)


class KerasEmbedding(keras.layers.Embedding):
    """Keras's layer with a dense gradient, because Keras 3 does not add up the gradients of repeated ids.

    Its nonlinear rules would therefore be no reference. Here, both ranks' batches have the same ids.
    """

    def call(self, inputs: Any) -> Any:
        """Looks up ids[...]; returns rows [..., output_dim]."""
        rows = tf.cast(tf.convert_to_tensor(self.embeddings), self.compute_dtype)
        return tf.matmul(tf.one_hot(tf.cast(inputs, tf.int64), self.input_dim, dtype=rows.dtype), rows)


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Sets the dtype policy of layers that are made in the block."""
    set_policy = keras.config.set_dtype_policy if KERAS_3 else keras.mixed_precision.set_global_policy
    set_policy(name)
    try:
        yield
    finally:
        set_policy("float32")


def model(layer: Any, *, activation: str = "tanh", dtype: str = "int64") -> Any:
    """Returns a model: ids[batch, 3] -> layer -> one output."""
    ids = keras.layers.Input((3,), dtype=dtype)
    hidden = keras.layers.Dense(4, activation=activation)(keras.layers.Flatten()(layer(ids)))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def pair(kind: Any = KerasEmbedding, **layer_options: Any) -> tuple[Any, Any]:
    """Returns our model and Keras's, with the same weights. `kind`: the class of Keras's layer."""
    reference = model(kind(ROWS, DIM, **layer_options))
    ours = model(tsps.Embedding(ROWS, DIM, **layer_options))
    ours.set_weights(reference.get_weights())
    return ours, reference


def fit(trained_model: Any, rank: int | None, *, epochs: int = 3, **options: Any) -> Any:
    """Trains on a rank's samples, or on both ranks' (None), in their order; returns the history."""
    ids, targets = (both(IDS), both(TARGETS)) if rank is None else (IDS[rank], TARGETS[rank])
    batch = BATCH * 2 if rank is None else BATCH
    return trained_model.fit(ids, targets, batch_size=batch, epochs=epochs, verbose=0, shuffle=False, **options)


def step_of(trained_model: Any, apply: Callable[[list[Any]], Any]) -> Callable[[Any, Any], None]:
    """Returns a training step: it computes gradients of the mean squared error, and calls `apply` with the pairs."""

    def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((trained_model(ids, training=True) - targets) ** 2)
        variables = trained_model.trainable_variables
        apply(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    return step


def loop(step: Callable[[Any, Any], Any], rank: int | None, *, epochs: int = 3) -> None:
    """Calls a step with the batches of `fit`."""
    ids, targets = (both(IDS), both(TARGETS)) if rank is None else (IDS[rank], TARGETS[rank])
    size = BATCH * 2 if rank is None else BATCH
    for _ in range(epochs):
        for start in range(0, len(ids), size):
            step(tf.constant(ids[start : start + size]), tf.constant(targets[start : start + size]))


def difference(ours: Any, reference: Any) -> float:
    """Returns the largest difference of weights, relative to the largest value of each."""
    pairs = zip(ours.get_weights(), reference.get_weights(), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def assert_equal(rank: Any, ours: Any, reference: Any, tolerance: float = TOLERANCE) -> None:
    """Fails unless ours has trained to Keras's weights, with the same bits on both ranks."""
    largest = difference(ours, reference)
    assert largest < tolerance, f"differs from Keras by {largest:.1e} of the largest weight"
    rank.same([weight.tolist() for weight in ours.get_weights()])


def assert_trains_alike(
    rank: Any,
    ours: Any,
    reference: Any,
    make: Callable[[], Any],
    *,
    wrap: dict[str, Any] | None = None,
    callbacks: Callable[[], list[Any]] = list,
    ours_only: tuple[Any, ...] = (),
    tolerance: float = TOLERANCE,
    **compile_options: Any,
) -> None:
    """Fails unless `fit` of ours on two ranks equals `fit` of the reference on both ranks' samples.

    Args:
      rank: The argument of the case.
      ours, reference: The models, which have the same weights.
      make: Makes the optimizer. It is called for both models, and ours is wrapped.
      wrap: Options of the wrapper.
      callbacks: Makes the callbacks of each model.
      ours_only: Additional callbacks of ours.
      tolerance: The largest accepted difference, as `TOLERANCE`.
      compile_options: Options of `compile` for both.
    """
    ours.compile(wrapped(make(), **(wrap or {})), "mse", **compile_options)
    reference.compile(make(), "mse", **compile_options)
    fit(ours, rank.rank, callbacks=[*ours_only, *callbacks()])
    fit(reference, None, callbacks=callbacks())
    assert_equal(rank, ours, reference, tolerance)


def assert_fit(rank: Any, make: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """Runs `assert_trains_alike` on a `pair`, and returns the pair. Fails unless the weights have moved."""
    ours, reference = pair()
    start = [weight.copy() for weight in ours.get_weights()]
    assert_trains_alike(rank, ours, reference, make, **options)
    for name, before, after in zip(("rows", "weights"), start, ours.get_weights(), strict=False):
        assert np.abs(after - before).max() > 1e-3, f"{name} have not moved"
    return ours, reference
