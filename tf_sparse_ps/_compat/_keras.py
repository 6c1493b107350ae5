"""Hides the differences between Keras 3 and Keras 2, and private names of Keras and TensorFlow.

Checked with Keras 3.15 on TensorFlow 2.21 and Keras 2.15 on TensorFlow 2.15.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from tf_sparse_ps._version import __version__

keras = tf.keras
# TensorFlow 2.15's `tf.keras` has no version.
IS_KERAS_3 = int(getattr(keras, "__version__", "2").split(".")[0]) >= 3
PACKAGE = "tf_sparse_ps"
T = TypeVar("T")


def software_versions() -> dict[str, str]:
    """Returns the versions of this library and of what it runs on, by name, for manifests."""
    return {
        "tf_sparse_ps": __version__,
        "tensorflow": tf.__version__,
        "keras": str(getattr(keras, "__version__", "2")),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


# --- random seeds ---


def random_seed() -> tuple[str | None, Any]:
    """Returns the last argument of keras.utils.set_random_seed or tf.random.set_seed.

    Returns:
      The seed as text, or None if no seed is set; and an object that differs after every call that sets a seed.
    """
    eager = context.context()
    return None if eager._seed is None else str(eager._seed), getattr(eager, "_rng", None)


# --- serialization ---

_saving: Any = keras.utils if IS_KERAS_3 else keras.saving


def register(name: str) -> Callable[[type[T]], type[T]]:
    """Returns a class decorator with which Keras files that contain the class load without `custom_objects`."""
    return _saving.register_keras_serializable(package=PACKAGE, name=name)


def serialize(obj: Any) -> Any:
    """Returns a serializable form of a Keras object."""
    return _saving.serialize_keras_object(obj)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Makes a Keras object from the result of `serialize`."""
    return _saving.deserialize_keras_object(config, custom_objects=custom_objects)


# --- optimizers (training/) ---

Optimizer: Any = keras.optimizers.Optimizer


def optimizer_types() -> tuple[type, ...]:
    """Returns the base classes of Keras optimizers."""
    if IS_KERAS_3:
        return (Optimizer,)
    return (Optimizer, keras.optimizers.legacy.Optimizer)


def is_loss_scale_optimizer(optimizer: Any) -> bool:
    """Whether an optimizer is a LossScaleOptimizer of Keras. Keras 2 has two, one of which is private."""
    return any("LossScaleOptimizer" in cls.__name__ for cls in type(optimizer).__mro__)


def serialize_optimizer(optimizer: Any) -> Any:
    """Returns a serializable form of a Keras optimizer."""
    return keras.optimizers.serialize(optimizer)


def deserialize_optimizer(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Makes a Keras optimizer from the result of `serialize_optimizer`."""
    if IS_KERAS_3:
        return keras.optimizers.deserialize(config, custom_objects=custom_objects)
    legacy = "legacy" in str(config.get("module", "")) or config.get("config", {}).get("is_legacy_optimizer", True)
    return keras.optimizers.deserialize(config, custom_objects=custom_objects, use_legacy_optimizer=legacy)


def current_learning_rate(optimizer: Any) -> tf.Tensor:
    """Returns the learning rate of the optimizer's next update, as a scalar tensor.

    Call it before the optimizer applies gradients, because that advances its iterations.
    """
    if IS_KERAS_3:
        return tf.convert_to_tensor(optimizer.learning_rate)
    if is_legacy_optimizer(optimizer):
        return optimizer._decayed_lr(tf.float32)
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        # `learning_rate` is the rate of the previous update.
        return tf.convert_to_tensor(rate(optimizer.iterations))
    return tf.convert_to_tensor(rate)


def names_without_weight_decay(optimizer: Any) -> list[str]:
    """Returns the patterns of names of variables without weight decay (`exclude_from_weight_decay`)."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    names = list(getattr(optimizer, "_exclude_from_weight_decay_names", None) or ())
    return names if pattern is None else [*names, pattern.pattern]


def is_legacy_optimizer(optimizer: Any) -> bool:
    """Whether an optimizer is one of Keras 2's legacy optimizers."""
    return not IS_KERAS_3 and isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def strategy_of(optimizer: Any) -> Any:
    """Returns the tf.distribute strategy in whose scope an optimizer was made, or TensorFlow's default strategy."""
    return getattr(optimizer, "_distribution_strategy", None)


@contextlib.contextmanager
def _scope_of(optimizer: Any) -> Iterator[None]:
    """Surrounds the creation of the optimizer's variables: outside of graphs, and in the scope of its strategy."""
    with tf.init_scope():
        strategy = strategy_of(optimizer)
        # In an eager replica, the current strategy is the optimizer's. Outside of a graph, it is TensorFlow's default.
        if strategy is None or strategy is tf.distribute.get_strategy():
            yield
        else:
            with strategy.scope():
                yield


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the optimizer's slots, if it does not have them."""
    with _scope_of(optimizer):
        if is_legacy_optimizer(optimizer):
            optimizer._create_all_weights(variables)
        elif not getattr(optimizer, "built", False):
            optimizer.build(variables)


def apply_optimizer(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Has a Keras optimizer apply gradients as they are, without aggregation."""
    if IS_KERAS_3:
        # Under tf.distribute, Keras 3 adds up the gradients over the replicas in a method that no option turns off. The
        # replicas run one after another, up to the same point. The first replica ends after the last one has called
        # the method, so the method may be restored then.
        if not callable(getattr(optimizer, "_all_reduce_sum_gradients", None)):
            raise RuntimeError(
                f"Keras {keras.__version__} has no Optimizer._all_reduce_sum_gradients. Under tf.distribute, gradients "
                "would be added up twice. Use Keras 3.15, or report this version"
            )
        optimizer.__dict__["_all_reduce_sum_gradients"] = lambda grads_and_vars: grads_and_vars
        try:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        finally:
            optimizer.__dict__.pop("_all_reduce_sum_gradients", None)
        return
    options = {} if is_legacy_optimizer(optimizer) else {"skip_gradients_aggregation": True}
    optimizer.apply_gradients(zip(gradients, variables, strict=True), **options)


def slots_of(optimizer: Any, variable: Any) -> list[tf.Variable]:
    """Returns the slots of a variable in a Keras SGD, Adagrad or Adam (not a legacy one) that was built for it.

    Returns:
      The momentum of SGD, if it has momentum; the accumulator of Adagrad; the first and second moment of Adam.
    """
    index = (
        optimizer._get_variable_index(variable) if IS_KERAS_3 else optimizer._index_dict[optimizer._var_key(variable)]
    )
    names = {"SGD": ["momentums"], "Adagrad": ["_accumulators"], "Adam": ["_momentums", "_velocities"]}
    if not getattr(optimizer, "momentum", True):  # Keras 2 has momentum slots even without momentum
        return []
    lists = [getattr(optimizer, name) for name in names[type(optimizer).__name__]]
    return [tf_variable(slots[index]) for slots in lists]


def optimizer_options(optimizer: Any) -> dict[str, str]:
    """Returns an optimizer's configuration without its name and its learning rate, with the values as text."""
    try:
        config = dict(optimizer.get_config())
    except Exception:  # a user's own optimizer may have no configuration
        return {}
    return {name: repr(value) for name, value in config.items() if name not in ("name", "learning_rate", "decay")}


def optimizer_variables(optimizer: Any) -> list[tf.Variable]:
    """Returns the optimizer's variables: iterations, slots, and others."""
    variables = optimizer.variables
    return [tf_variable(variable) for variable in (variables() if callable(variables) else variables)]


def touched_by_update(optimizer: Any, variables: list[Any]) -> list[tf.Variable]:
    """Returns the optimizer's variables that an update of a model's variables reads or writes. Updates nothing."""

    @tf.function(autograph=False)
    def update() -> None:
        apply_optimizer(optimizer, [tf.zeros_like(tf_variable(variable)) for variable in variables], variables)

    handles = {id(external) for external, _ in update.get_concrete_function().graph.captures}
    return [variable for variable in optimizer_variables(optimizer) if id(variable.handle) in handles]


# This class makes a variable of this process alone. A tf.distribute strategy mirrors only variables of `tf.Variable`.
ResourceVariable: Any = resource_variable_ops.ResourceVariable


def local_variable(value: Any, dtype: str, name: str) -> tf.Variable:
    """Makes a variable of this process alone, independent of the current strategy and graph."""
    with tf.init_scope(), tf.device("/CPU:0"):
        return ResourceVariable(initial_value=value, dtype=tf.as_dtype(dtype), trainable=False, name=name)


def tf_variable(variable: Any) -> tf.Variable:
    """Returns the TensorFlow variable in a Keras 3 variable, or the variable itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def local_variables(variable: Any) -> list[tf.Variable]:
    """Returns this process's TensorFlow variables of a variable: one per replica of its strategy, otherwise one."""
    variable = tf_variable(variable)
    return list(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else [variable]


def model_in_training(optimizer: Any) -> Any:
    """Returns the model whose `fit` is calling the optimizer that was given to its `compile`, or None."""
    frame = inspect.currentframe()
    while frame is not None:
        model = frame.f_locals.get("self")
        if isinstance(model, keras.Model) and getattr(model, "optimizer", None) is optimizer:
            return model
        frame = frame.f_back
    return None


def variable_name(variable: Any) -> str:
    """Returns a variable's name within its model, which Keras 3 calls its path."""
    return str(getattr(variable, "path", variable.name))


_Variable: Any = keras.Variable if IS_KERAS_3 else object


class VariableMadeHere(_Variable):
    """The base class of Keras 3 variables whose TensorFlow variable a subclass makes."""

    def make_value(self, value: Any) -> Any:
        """Makes the TensorFlow variable.

        Args:
          value: The initial value, or a function that returns it.
        """
        raise NotImplementedError

    def _initialize(self, value: Any) -> None:
        super()._initialize(self.make_value(value))


def is_deferred(variable: Any) -> bool:
    """Whether a Keras 3 variable has no value yet, because it was made while Keras computes shapes only."""
    return not isinstance(variable, tf.Variable) and variable._value is None


# --- tf.functions around a step (schedules/) ---


class CallHook:
    """Calls a function on the host before each run of a traced step, and can make TensorFlow trace the step again.

    TensorFlow has no public way to mark a trace as out of date. While it traces, its `_create_concrete_function` is on
    Python's stack, once for every function around the step. This frame refers to the cache in which the next call looks
    for its trace. While TensorFlow calls a traced function, its `call_function` refers to the cache. A value that is
    captured "at call time" is computed on the host before each run, which calls the hook.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        """Takes the callback. Nothing is hooked before `attach`."""
        self._callback = callback
        self._caches: dict[int, Any] = {}  # kept until they are cleared, because caches allow no weak references
        self._unused_value = local_constant(0)

    def attach(self) -> None:
        """Has the callback run before each call of the trace that is being made. Called while a step is traced.

        Raises:
          RuntimeError: This version of TensorFlow is not supported, or the graph is not one of a tf.function.
        """
        is_traced = self._record_caches("_create_concrete_function")
        graph = tf.compat.v1.get_default_graph()
        # Loops around the step have their own graphs, which are not called. The hook needs the outermost graph.
        while hasattr(getattr(graph, "outer_graph", None), "capture_call_time_value"):
            graph = graph.outer_graph
        if not is_traced or not hasattr(graph, "capture_call_time_value"):
            raise RuntimeError(
                "the step cannot be traced again, because its graph is not that of a tf.function, or this version of "
                "TensorFlow is not supported. Run the step in a tf.function, with TensorFlow 2.15 or 2.21. Received: "
                f"TensorFlow {tf.__version__}, {graph!r}"
            )
        graph.capture_call_time_value(
            self._call, tf.TensorSpec([], tf.int32), key=self, default_value=self._unused_value
        )

    def retrace(self) -> bool:
        """Makes TensorFlow trace the recorded functions again at their next call. A running call ends unchanged.

        Returns:
          Whether a function was recorded since the last call of this method.
        """
        caches, self._caches = self._caches, {}
        for cache in caches.values():
            cache.clear()
        return bool(caches)

    def _call(self) -> tf.Tensor:
        # `attach` misses a function that calls a function which was traced before.
        self._record_caches("call_function")
        self._callback()
        return self._unused_value

    def _record_caches(self, function_name: str) -> bool:
        """Records the caches in the frames of a function of TensorFlow on the stack. Returns whether it found any."""
        frame, has_cache = inspect.currentframe(), False
        while frame is not None:
            options = frame.f_locals.get("tracing_options") if frame.f_code.co_name == function_name else None
            if (cache := getattr(options, "function_cache", None)) is not None:
                self._caches[id(cache)] = cache
                has_cache = True
            frame = frame.f_back
        return has_cache


def body_of_call(op: tf.Operation) -> Any:
    """Returns the graph of the function that an op calls, with its `inputs` and `outputs`; None: it calls none."""
    if op.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    function = op.graph._get_function(op.get_attr("f").name)
    return getattr(function, "graph", None)


def local_constant(value: int) -> tf.Tensor:
    """Returns an int32 scalar outside of all graphs."""
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.constant(value, tf.int32)


# --- layers (layers/) ---

# The arguments of keras.layers.Embedding with their defaults, in Keras's order, which differs between Keras 2 and 3.
EMBEDDING_ARGUMENTS: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(keras.layers.Embedding.__init__).parameters.items()
    if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
}


def embedding_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], cls: str) -> dict[str, Any]:
    """Binds the arguments of keras.layers.Embedding, and removes them from `kwargs`.

    Args:
      args: The positional arguments.
      kwargs: The keyword arguments. Arguments of other names stay.
      cls: The name of the layer's class, for messages.

    Raises:
      TypeError: There are too many arguments, or one is missing or repeated. The messages are those of Python.
    """
    names = list(EMBEDDING_ARGUMENTS)
    if len(args) > len(names):
        raise TypeError(f"{cls}.__init__() takes at most {len(names)} positional arguments. Received: {len(args)}")
    bound = dict(zip(names, args, strict=False))
    for name in names:
        if name in kwargs:
            if name in bound:
                raise TypeError(f"{cls}.__init__() got multiple values for argument {name!r}")
            bound[name] = kwargs.pop(name)
    missing = [name for name in names if name not in bound and EMBEDDING_ARGUMENTS[name] is inspect.Parameter.empty]
    if missing:
        raise TypeError(f"{cls}.__init__() missing required arguments: {', '.join(map(repr, missing))}")
    return EMBEDDING_ARGUMENTS | bound


def embedding_signature(**keywords: Any) -> inspect.Signature:
    """Returns the signature of a layer, for help(): the arguments of keras.layers.Embedding, then `keywords`."""
    kind = inspect.Parameter
    parameters = [kind("self", kind.POSITIONAL_OR_KEYWORD)]
    parameters += [kind(n, kind.POSITIONAL_OR_KEYWORD, default=value) for n, value in EMBEDDING_ARGUMENTS.items()]
    parameters += [kind(n, kind.KEYWORD_ONLY, default=value) for n, value in keywords.items()]
    return inspect.Signature([*parameters, kind("kwargs", kind.VAR_KEYWORD)])


def policy_dtypes(layer: Any) -> tuple[str, str]:
    """Returns the variable dtype and the compute dtype of a layer's policy."""
    policy = layer.dtype_policy if IS_KERAS_3 else layer._dtype_policy
    return policy.variable_dtype, policy.compute_dtype


def not_equal(x: Any, y: Any) -> Any:
    """Returns `x != y`, element by element, also for symbolic, ragged and sparse tensors."""
    return keras.ops.not_equal(x, y) if IS_KERAS_3 else tf.not_equal(x, y)


def shape_tuple(shape: Any) -> tuple[int | None, ...]:
    """Returns a shape, given in any of Keras's forms, as a tuple."""
    return tuple(tf.TensorShape(shape).as_list())


def keras_tensor(like: Any, shape: tuple[int | None, ...], dtype: str, *, ragged: bool = False) -> Any:
    """Returns a symbolic tensor of Keras 3. With `ragged`, it is ragged if `like` is."""
    if ragged and getattr(like, "ragged", False):
        return keras.KerasTensor(shape, dtype=dtype, ragged=True)
    return keras.KerasTensor(shape, dtype=dtype)


def traced_with_jit_compile() -> bool:
    """Whether TensorFlow is tracing a tf.function(jit_compile=True)."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and bool(control_flow_util.GraphOrParentsInXlaContext(graph))


Layer: Any = keras.layers.Layer


def layers_of(model: Any, kind: type[T]) -> list[T]:
    """Returns the layers of a class in a model, at any depth, built or not."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def all_layers(model: Any) -> list[Any]:
    """Returns a model or layer and all layers in it, at any depth, built or not."""
    return list(model._flatten_layers(include_self=True, recursive=True))


def is_callback(callback: Any, name: str) -> bool:
    """Whether a callback is an instance of the Keras class of this name, which some versions of Keras lack."""
    cls = getattr(keras.callbacks, name, None)
    return cls is not None and isinstance(callback, cls)
