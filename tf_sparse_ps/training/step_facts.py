"""The facts of a step on which the ranks of an optimizer must agree: see `reduction/agreement.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.table_binding import TableBinding, number_of
from tf_sparse_ps.reduction.agreement import SAME_PROGRAM, SAME_RATE, SAME_ROWS, SAME_WEIGHTS, Agreement
from tf_sparse_ps.reduction.gradients import DenseGradient

# The number of rows that are compared of a variable with a sparse gradient. TensorFlow would copy the whole variable.
_ROWS = 16
_ON_DEVICE = 256  # the number of elements that are compared of a variable on a GPU


def make(
    collectives: Collectives,
    name: str,
    *,
    updates: Any,
    rate: tf.Tensor,
    options: Mapping[str, str],
    tables: Sequence[TableBinding] = (),
    hyper: Sequence[tf.Tensor] = (),
    dense: Sequence[DenseGradient] = (),
) -> Agreement:
    """Returns the facts of a step. In a graph, or eagerly.

    Args:
      collectives: The collectives of the ranks.
      name: The beginning of the names of the operations, the same on all ranks.
      updates: The number of updates before this one.
      rate: The learning rate of the dense weights.
      options: The options of the wrapped optimizer.
      tables: The tables whose versions are compared.
      hyper: The hyperparameters of each table; empty: they are not compared.
      dense: The gradients of the weights whose values are compared.
    """
    agreement = Agreement(collectives, name, updates)
    names = [f"option `{option}` of the wrapped optimizer" for option in options]
    agreement.numbers(names, [number_of(value) for value in options.values()], SAME_PROGRAM, shown="h")
    for table in tables:
        label = f"table '{table.config.name}' (number {table.ordinal})"
        version = table.version.read_value()
        agreement.numbers([f"writes outside of steps to {label}"], version[:1], SAME_ROWS)
        if table.placement == "replicated":
            agreement.numbers([f"what was written outside of steps to {label}"], version[1:], SAME_ROWS, shown="h")
    agreement.reals(["the learning rate of dense weights"], tf.reshape(rate, [1]), SAME_RATE)
    for table, values in zip(tables, hyper, strict=False):
        n = values.shape[0] or 0
        labels = ["the learning rate", *(f"hyperparameter {i}" for i in range(1, n))][:n]
        agreement.reals([f"{label} of table '{table.config.name}'" for label in labels], values, SAME_RATE)
    for gradient in dense:
        agreement.values(f"variable '{_keras.variable_name(gradient.variable)}'", _sample(gradient), SAME_WEIGHTS)
    agreement.numbers(["the number of updates"], tf.reshape(tf.cast(updates, tf.int64), [1]), SAME_PROGRAM)
    return agreement


def _sample(gradient: DenseGradient) -> tf.Tensor:
    """Returns the values of a gradient's variable, or some of them if reading all of them would be slow."""
    variable = _keras.local_variables(gradient.variable)[0]
    rows = variable.shape[0] if variable.shape.rank else None
    if gradient.sparse and rows is not None and rows > _ROWS:
        return tf.gather(variable, tf.range(_ROWS) * (rows // _ROWS))
    value = variable.read_value()
    if "GPU" in variable.device:
        with tf.device(variable.device):
            value = tf.reshape(value, [-1])[:_ON_DEVICE]
    return value
