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

# Of a variable whose gradient is sparse so many rows are compared: TensorFlow would copy it to read it in whole.
_ROWS = 16
_ON_DEVICE = 256  # elements of a variable on a GPU


def make(
    collectives: Collectives,
    name: str,
    *,
    made: Any,
    rate: tf.Tensor,
    options: Mapping[str, str],
    tables: Sequence[TableBinding] = (),
    hyper: Sequence[tf.Tensor] = (),
    dense: Sequence[DenseGradient] = (),
) -> Agreement:
    """The facts of a step. In a graph, or eagerly.

    Args:
      collectives: Of the ranks.
      name: What operations' names begin with, the same on all ranks.
      made: Number of updates before this one.
      rate: Learning rate of the dense weights.
      options: Of the wrapped optimizer.
      tables: Whose versions are compared.
      hyper: Hyperparameters of each, if there are some.
      dense: Gradients of the weights whose values are compared.
    """
    agreement = Agreement(collectives, name, made)
    names = [f"option `{one}` of the wrapped optimizer" for one in options]
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
        others = [f"hyperparameter {i} of table '{table.config.name}'" for i in range(1, n)]
        agreement.reals([f"the learning rate of table '{table.config.name}'", *others][:n], values, SAME_RATE)
    for one in dense:
        agreement.values(f"variable '{_keras.variable_name(one.variable)}'", _sample(one), SAME_WEIGHTS)
    agreement.numbers(["the number of updates"], tf.reshape(tf.cast(made, tf.int64), [1]), SAME_PROGRAM)
    return agreement


def _sample(one: DenseGradient) -> tf.Tensor:
    """A variable's values, or some of them where it costs something to read them all."""
    variable = _keras.local_variables(one.variable)[0]
    rows = variable.shape[0] if variable.shape.rank else None
    if one.sparse and rows is not None and rows > _ROWS:
        return tf.gather(variable, tf.range(_ROWS) * (rows // _ROWS))
    value = variable.read_value()
    if "GPU" in variable.device:
        with tf.device(variable.device):
            value = tf.reshape(value, [-1])[:_ON_DEVICE]
    return value
