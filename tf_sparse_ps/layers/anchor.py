"""The anchor: the trainable variable that stands for a table in a Keras model.

An anchor is a variable float32[0, dim]. Its value carries the row width into the lookup's shape inference. The gradient
that arrives at it is the table's sparse gradient, and its attribute `tsps_binding` is the table. To Keras it looks like
the embedding matrix: `numpy()` reads and `assign()` writes the rows of a bounded table, so `get_weights`, `set_weights`
and EarlyStopping work. Used as a tensor, an anchor is a lookup of all rows, whose gradient is the table's. So tied
weights (`tf.matmul(x, layer.embeddings, transpose_b=True)`) train as in Keras.

Only `tsps.DistributedOptimizer`, which removes anchors first, can train a table. Everything that another optimizer does
with an anchor raises: Keras optimizers ask a variable for its key in `build`, before all else; legacy ones ask for its
constraint; and assignments raise for code that asks for neither.

The private names of TensorFlow and Keras that this module needs are in `_compat`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras, _tensorflow
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.layers import row_source, rows, saving
from tf_sparse_ps.layers.table_asset import TableAsset

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding

# The methods of tf.Variable by which optimizers update it.
_ASSIGNMENTS = (
    "assign_add",
    "assign_sub",
    "scatter_add",
    "scatter_sub",
    "scatter_update",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_div",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "batch_scatter_update",
)


def make(binding: TableBinding, *, trainable: bool, name: str) -> Any:
    """Makes the anchor of a table: a Keras variable (Keras 3) or a `tf.Variable` (Keras 2)."""
    if binding.config.key_limit is not None:
        _ops.set_row_limit(binding.uuid, binding.config.key_limit)
        weakref.finalize(binding, _ops.set_row_limit, binding.uuid, None)
    if binding.config.admission is not None:
        _ops.set_counted(binding.uuid, True)
        weakref.finalize(binding, _ops.set_counted, binding.uuid, False)
    variable = _make(binding, trainable, name)
    binding.weight_name = variable.name
    return variable


def _make(binding: TableBinding, trainable: bool, name: str) -> Any:
    if _keras.IS_KERAS_3:
        return _KerasAnchor(binding, trainable, name)
    # With this declared shape, set_weights passes any number of rows to assign().
    with tf.init_scope():
        variable = _keras.ResourceVariable(
            initial_value=tf.zeros([0, binding.config.dim]),
            trainable=trainable,
            name=name,
            shape=[None, binding.config.dim],
        )
    _guard(variable, binding)
    variable.assign = lambda value, *_, **__: _assign(binding, value)
    return variable


def _assign(binding: TableBinding, value: Any) -> None:
    if tf.is_tensor(value) and not hasattr(value, "numpy"):
        _refuse_horovod(binding)
        refuse(binding)
    rows.assign_matrix(binding, np.asarray(value))


def refuse(binding: TableBinding) -> NoReturn:
    """Raises the error of an optimizer that cannot train tables.

    It is a plain ValueError, because AutoGraph keeps the type of an exception in a tf.function only if it is built in.
    """
    raise ValueError(
        f"the table of layer {binding.config.name!r} can only be trained by tsps.DistributedOptimizer. Wrap "
        "your optimizer: model.compile(tsps.DistributedOptimizer(optimizer), ...), or "
        "tsps.DistributedOptimizer(optimizer).apply_gradients(...) in a custom training loop. This wrapper also takes "
        "the place of Horovod's, and nothing else must wrap it"
    )


def _refuse_horovod(binding: TableBinding) -> None:
    """Raises ValueError if Horovod is the caller. Its tape, optimizer and broadcasts ask variables for references."""
    if _tensorflow.called_by("horovod", __name__):
        raise ValueError(
            f"Horovod cannot reduce or broadcast the table of layer {binding.config.name!r}. The ranks of a machine "
            "share the table, and the step reduces its gradients. Horovod would reduce them before the step, and the "
            "number of ranks per key would be lost. Use tsps.DistributedOptimizer in place of "
            "hvd.DistributedOptimizer, tsps.DistributedGradientTape in place of hvd.DistributedGradientTape, and "
            "tsps.callbacks.BroadcastVariables in place of Horovod's broadcasts"
        )


class _GuardedVariable(_tensorflow.ChoosesChildren, _tensorflow.ReadInPython, _keras.ResourceVariable):
    """A `tf.Variable` that has become an anchor."""

    def carrier(self) -> tf.Tensor:
        """Returns the variable's own value, float32[0, dim]."""
        value: tf.Tensor = super().value()
        return value

    def value(self) -> tf.Tensor:
        """Returns all rows of a bounded table, float32[input_dim, dim]. TensorFlow calls it to use the variable.

        Raises:
          UnsupportedError: The table is unbounded.
        """
        if _tensorflow.called_by("keras.src.callbacks", *_SUMMARIES, __name__):
            return rows.on_this_machine(self.tsps_binding)
        limit = _limit(self.tsps_binding)
        return self.sparse_read(tf.range(limit, dtype=tf.int64))

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows by their ids, float32[*indices.shape, dim]. `tf.gather` calls it."""
        ids = tf.cast(indices, tf.int64)
        return row_source.look_up([row_source.of(self.tsps_binding, self)], [ids], [0])[0]

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """See `tf.gather_nd`."""
        return tf.gather_nd(self.value(), indices, name=name)

    def numpy(self) -> Any:
        """Returns the rows of a bounded table, float32[input_dim, dim]."""
        return rows.matrix(self.tsps_binding, "get_weights()")

    def ref(self) -> Any:
        """See `tf.Variable.ref`. Raises ValueError if Horovod calls it."""
        _refuse_horovod(self.tsps_binding)
        return super().ref()

    def saved_children(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """See `_saved_with`."""
        return _saved_with(children, save_type)

    @property
    def constraint(self) -> NoReturn:
        """Raises ValueError: optimizers of TensorFlow 1, and legacy ones of Keras 2, read it before they update."""
        refuse(self.tsps_binding)


# The modules through which TensorBoard reads a weight to draw its histogram.
_SUMMARIES = ("tensorflow.", "tensorboard.", "keras.src.backend.", "keras.src.utils.")


def _limit(binding: TableBinding) -> int:
    limit = binding.config.key_limit
    if limit is None:
        raise UnsupportedError(
            f"the weight of layer {binding.config.name!r} was used as a tensor, but its vocabulary is unbounded, so it "
            "is no matrix. Look rows up by calling the layer, as layer(ids). To regularize them, use its "
            "activity_regularizer or add tf.nn.l2_loss(layer(ids)) to the loss, and leave this weight out of sums over "
            "trainable_variables"
        )
    return limit


def _saved_with(children: dict[str, Any], save_type: str) -> dict[str, Any]:
    """Returns the children that TensorFlow saves with an anchor. A SavedModel has the table as an asset instead."""
    if save_type != "savedmodel":
        return children
    left_out = ("tsps_rows", "tsps_asset") if saving.has_plain_tables() else ("tsps_rows",)
    return {name: child for name, child in children.items() if name not in left_out}


def _guard(variable: tf.Variable, binding: TableBinding) -> None:
    def refuse_optimizer(*_: Any, **__: Any) -> NoReturn:
        refuse(binding)

    _tensorflow.join_strategy(variable)
    _tensorflow.become(variable, _GuardedVariable)
    variable.tsps_binding = binding
    variable.tsps_asset = TableAsset(binding)
    _tensorflow.track(variable, variable.tsps_asset, "tsps_asset")
    _tensorflow.track(variable, rows.CheckpointState(binding), "tsps_rows")
    _tensorflow.on_optimizer_key(variable, refuse_optimizer)
    for name in (*_ASSIGNMENTS, "assign"):
        setattr(variable, name, refuse_optimizer)


if _keras.IS_KERAS_3:

    class _KerasAnchor(_tensorflow.ChoosesChildren, _keras.VariableMadeHere):
        """An anchor for Keras 3. Its `value` is the guarded `tf.Variable`."""

        def __init__(self, binding: TableBinding, trainable: bool, name: str) -> None:
            self.tsps_binding = binding
            super().__init__(
                "zeros", shape=(0, binding.config.dim), dtype="float32", trainable=trainable, autocast=False, name=name
            )

        def make_value(self, value: Any) -> Any:
            """Makes the guarded variable eagerly. In fit's trace, Keras would lift an assignment into the guard."""
            with tf.init_scope():
                initial = value() if callable(value) else value
                variable = _keras.ResourceVariable(initial_value=initial, trainable=self.trainable, name=self.name)
            _guard(variable, self.tsps_binding)
            _tensorflow.track(self, variable.tsps_asset, "tsps_asset")
            _tensorflow.track(self, rows.CheckpointState(self.tsps_binding), "tsps_rows")
            return variable

        def saved_children(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
            """See `_saved_with`."""
            return _saved_with(children, save_type)

        @property
        def value(self) -> Any:
            """The guarded variable. While Keras infers shapes: zeros of the matrix's shape."""
            if _keras.is_deferred(self):
                return tf.zeros(self.shape)
            return super().value

        @property
        def shape(self) -> tf.TensorShape:
            """The shape of the matrix, for summaries and set_weights: [rows, dim]; [0, dim] if unbounded."""
            config = self.tsps_binding.config
            return tf.TensorShape([config.key_limit or 0, config.dim])

        def numpy(self) -> Any:
            """Returns the rows of a bounded table, float32[input_dim, dim]."""
            return rows.matrix(self.tsps_binding, "get_weights()")

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            """See `numpy`."""
            return np.asarray(self.numpy(), dtype=dtype)

        def assign(self, value: Any) -> Any:
            """Writes the rows of a bounded table."""
            _assign(self.tsps_binding, value)
            return value

        def assign_add(self, value: Any) -> Any:
            """Raises ValueError."""
            refuse(self.tsps_binding)

        def assign_sub(self, value: Any) -> Any:
            """Raises ValueError."""
            refuse(self.tsps_binding)

        @property
        def ref(self) -> NoReturn:
            """Raises ValueError if Horovod reads it. Keras variables have no such attribute."""
            _refuse_horovod(self.tsps_binding)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'ref'")

        @property
        def overwrite_with_gradient(self) -> bool:
            """Raises ValueError: an optimizer reads it before it updates a variable."""
            refuse(self.tsps_binding)

        @overwrite_with_gradient.setter
        def overwrite_with_gradient(self, value: bool) -> None:
            pass
