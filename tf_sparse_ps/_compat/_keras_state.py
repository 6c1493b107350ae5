"""The variables of a model and of its optimizer that a checkpoint or an export contains."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras


def all_variables(model: Any) -> list[Any]:
    """Returns all variables of a built model: the weights and, in Keras 3, seeds and metrics. Each occurs once.

    Raises:
      ValueError: The model is not built.
    """
    if not model.built:
        raise ValueError(f"model {model.name!r} is not built, so it has no variables yet. Call it on a batch first")
    variables = model.variables if _keras.IS_KERAS_3 else model.weights
    return list({id(variable): variable for variable in variables}.values())


def metric_variables(model: Any) -> list[Any]:
    """Returns the variables of a model's metrics, the loss included, as far as they exist."""
    if _keras.IS_KERAS_3:
        return list(model.metrics_variables)
    return [variable for metric in model.metrics for variable in metric.variables]


def build_metrics(model: Any, batch: Any) -> None:
    """Makes the variables of a compiled model's metrics before the first batch, if this version of Keras can do so.

    Args:
      model: A built model.
      batch: The `tf.TensorSpec`s of a batch, as `fit` gets them: (x, y) or (x, y, sample_weight).
    """
    build = getattr(model, "_symbolic_build", None)
    if build is not None:
        with contextlib.suppress(Exception):  # Keras cannot build every model with every batch symbolically
            build(data_batch=batch)


def seed_variables(model: Any) -> list[Any]:
    """Returns the states of a model's random number generators that are variables."""
    if _keras.IS_KERAS_3:
        generators = [seed for layer in model._flatten_layers() for seed in getattr(layer, "_seed_generators", ())]
        return list({id(generator.state): generator.state for generator in generators}.values())
    generators = [getattr(getattr(layer, "_random_generator", None), "_generator", None) for layer in model.submodules]
    return [generator.state for generator in generators if generator is not None]


def optimizer_state(optimizer: Any) -> list[tf.Variable]:
    """Returns the `optimizer_variables` and the learning rate, which is not one of these in Keras 2."""
    variables = _keras.optimizer_variables(optimizer)
    rate = learning_rate_variable(optimizer)
    if rate is not None and not any(variable is rate for variable in variables):
        variables.append(rate)
    return variables


def learning_rate_variable(optimizer: Any) -> tf.Variable | None:
    """Returns the variable of the learning rate, or None if it is a schedule or not a variable."""
    rate = getattr(optimizer, "_hyper", {}).get("learning_rate", getattr(optimizer, "_learning_rate", None))
    rate = getattr(rate, "value", rate) if _keras.IS_KERAS_3 else rate
    return rate if isinstance(rate, tf.Variable) else None
