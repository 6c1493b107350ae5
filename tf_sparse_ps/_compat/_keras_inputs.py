"""The inputs of Keras models and layers: integers that Keras casts, and the types that a model was called with."""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras

# Functions of Keras 3 and 2 that cast the arguments of a model's call to the types of its inputs. They exist for
# functional models, and for Sequential models, whose input has the type of the first layer.
_CAST_INPUTS = ("_convert_inputs_to_tensors", "convert_input", "_conform_to_reference_input")
_FOR_SHAPES = ("compute_output_spec",)
_MOVE_ONLY = (
    "Identity Reshape ExpandDims Squeeze StridedSlice Slice Split SplitV Unpack Pack ConcatV2 Transpose Tile".split()
)


def cast_for_input(tensor: tf.Tensor) -> list[tuple[tf.Tensor, tf.DType]]:
    """Returns the tensors that Keras cast to make a tensor in a graph, each with the type that it was cast to.

    Keras casts a model's inputs before a layer gets them, and does not look at the values. The result does not include
    casts of the user's program. Casts of eager tensors cannot be found. If Keras only computes shapes, it casts
    placeholders, which are float64 for several replicas, whatever the real type is; these casts are left out.
    """
    casts, pending, seen = [], [] if hasattr(tensor, "numpy") else [tensor], set()
    while pending:
        source = pending.pop()
        if source.ref() in seen or not hasattr(source, "op"):  # a captured eager tensor has no op
            continue
        seen.add(source.ref())
        if source.op.type == "Cast" and _made_by(source.op, _CAST_INPUTS) and not _made_by(source.op, _FOR_SHAPES):
            casts.append((source.op.inputs[0], source.dtype))
        elif source.op.type in _MOVE_ONLY:
            pending.extend(value for value in source.op.inputs if value.dtype == tensor.dtype)
    return casts


def _made_by(op: tf.Operation, functions: tuple[str, ...]) -> bool:
    return any(frame.name in functions and "keras" in frame.filename for frame in op.traceback or ())


# The types of the tensors that models were first called with: `tf.TypeSpec`s of any batch size for each argument.
_inputs: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def inputs_of(model: Any) -> list[Any] | None:
    """Returns the types of the tensors that a model with a layer of ids was first called with, argument by argument.

    Keras 3 keeps only the shapes of a subclassed model's inputs, and assumes the model's compute dtype as their type.

    Returns:
      Structures of `tf.TypeSpec` with a batch dimension of None; or None if the model was not called.
    """
    return _inputs.get(model)


def _record_inputs() -> None:
    """Records the types of the inputs of all models whose calls are on the stack."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "__call__" and "call_spec" in frame.f_code.co_varnames:
            model, call = frame.f_locals.get("self"), frame.f_locals.get("call_spec")
            if isinstance(model, _keras.keras.Model) and model not in _inputs and call is not None:
                tensors = list(call.tensor_arguments_dict.values())
                _inputs[model] = [tf.nest.map_structure(_any_batch, argument) for argument in tensors]
        frame = frame.f_back


def _any_batch(tensor: Any) -> Any:
    shape = [None, *list(tensor.shape)[1:]] if len(tensor.shape) else []
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, tensor.row_splits.dtype)
    if isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


class _RunningCalls(threading.local):
    """The layers whose `__call__` is running in this thread, the innermost last."""

    def __init__(self) -> None:
        self.layers: list[Any] = []


_running_calls = _RunningCalls()


class IntegerInput:
    """A mixin of layers whose inputs are ids, so that a Sequential that starts with such a layer has an integer input.

    The type of a Sequential's input is its first layer's compute dtype (Keras 3) or dtype (Keras 2). Keras casts the
    ids to this type. As float32, different ids from 2**24 on would become equal.
    """

    if _keras.IS_KERAS_3:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Calls the layer. During the call, `compute_dtype` is the policy's, as Keras expects of the variables."""
            _record_inputs()
            _running_calls.layers.append(self)
            try:
                return super().__call__(*args, **kwargs)  # type: ignore[misc]
            finally:
                _running_calls.layers.pop()

        @property
        def compute_dtype(self) -> str:
            """The type of the inputs. During a call, and for the outputs, it is the policy's compute dtype."""
            return _keras.policy_dtypes(self)[1] if any(layer is self for layer in _running_calls.layers) else "int64"

    else:

        @property
        def dtype(self) -> str:
            """The type of the inputs. The outputs have the policy's compute dtype."""
            return "int64"
