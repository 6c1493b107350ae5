"""Trains with some batches that are refused and skipped, and without these batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

keras = _keras.keras
STEPS, BAD, KEYS = 20, (3, 4, 12), 40

# Options of the wrapper and of the wrapped optimizer. In "new keys", each batch has keys of its own. Keys that a
# refused step has reserved must not appear in the table.
CASES: dict[str, Callable[[], tuple[dict[str, Any], dict[str, Any]]]] = {
    "synchronous": lambda: ({}, {}),
    "flat": lambda: ({"topology": "flat"}, {}),
    "clipnorm": lambda: ({}, {"clipnorm": 0.05}),
    "global_clipnorm": lambda: ({}, {"global_clipnorm": 0.1}),
    "buckets": lambda: ({"schedule": tsps.schedules.TimedBuckets(profile_steps=2)}, {}),
    "server": lambda: ({"schedule": tsps.schedules.TimedBuckets(profile_steps=2, server=True)}, {}),
}
_names = itertools.count()


def _model() -> tuple[Any, Any]:
    layer = tsps.Embedding(None, 4, embeddings_initializer="ones", name=f"ids_{next(_names)}")
    ids = keras.layers.Input((3,), dtype="int64")
    hidden = keras.layers.Dense(16, activation="tanh")(keras.layers.Flatten()(layer(ids)))
    return keras.Model(ids, keras.layers.Dense(1)(hidden)), layer


def _step_of(mode: str, model: Any, optimizer: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
    if mode == "train_on_batch":
        return model.train_on_batch

    def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids, training=True) - targets) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    run_step = tf.function(step) if mode == "graph" else step
    return lambda ids, targets: run_step(tf.constant(ids), tf.constant(targets))


def train(
    case: str,
    *,
    bad: bool,
    mode: str = "graph",
    rank: int = 0,
    spoil: Callable[[int, np.ndarray, np.ndarray], Any] | None = None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Trains, and continues after every refused batch.

    Args:
      case: One of `CASES`.
      bad: Whether the data contains the bad batches.
      mode: "graph", "eager" or "train_on_batch".
      rank: The rank that the batches are for.
      spoil: Makes batch `i` a bad one, in place. Returns a function that undoes this after the step, or None. By
        default the targets become NaN.

    Returns:
      The trained arrays, and the errors.
    """
    keras.utils.set_random_seed(1)
    wrapper, wrapped = CASES[case]()
    model, layer = _model()
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adam(0.05, **wrapped), **wrapper)
    model.compile(optimizer, "mse")
    step, errors = _step_of(mode, model, optimizer), []
    random = np.random.default_rng(rank)
    for i in range(STEPS + len(BAD)):
        ids, targets = random.integers(0, KEYS, (8, 3)), random.normal(size=(8, 1)).astype(np.float32)
        if i not in BAD:
            step(ids, targets)
            continue
        if not bad:
            continue
        ids[:, 0] += 1000 * (i + 1)  # keys of this batch alone
        undo = None
        if spoil is None:
            targets[0] = np.nan
        else:
            undo = spoil(i, ids, targets)
        try:
            step(ids, targets)
        except tf.errors.OpError as error:
            errors.append(f"{type(error).__name__}: {error}")
        if undo is not None:
            undo()
    assert int(optimizer.iterations) == STEPS
    optimizer.drain()  # a server then has updated the moments of its buckets
    results = {"rows": np.asarray(layer(tf.range(KEYS)))}
    table = tsps.Table.open(layer.trainable_variables[0].tsps_binding.path, "r")
    keys = np.sort(table.keys())
    results["keys"], (_, rows, slots) = keys, table.entries(keys)
    results["all rows"], results["slots"] = rows, np.stack(slots)
    for variable in [*model.trainable_variables, *_keras.optimizer_variables(optimizer.inner_optimizer)]:
        if getattr(variable, "tsps_binding", None) is None:
            results[f"{len(results)} {variable.name}"] = np.asarray(variable)
    assert len(results) > 12, "the results must contain dense weights and moments"
    return results, errors


def differences(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> list[str]:
    """Returns the names of arrays whose bits differ."""
    names = [name.split(" ")[0] for name in actual], [name.split(" ")[0] for name in expected]
    assert names[0] == names[1]
    pairs = zip(actual.items(), expected.values(), strict=True)
    return [name for (name, array), expected_array in pairs if array.tobytes() != expected_array.tobytes()]
