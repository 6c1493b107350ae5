"""The adapter for what differs between Keras 3 and Keras 2, and for private APIs of Keras and TensorFlow.

Checked with Keras 3.15 on TensorFlow 2.21 and Keras 2.15 on TensorFlow 2.15.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util, resource_variable_ops

keras = tf.keras
# TensorFlow 2.15's `tf.keras` has no version.
IS_KERAS_3 = int(getattr(keras, "__version__", "2").split(".")[0]) >= 3
PACKAGE = "tf_sparse_ps"
T = TypeVar("T")


# --- random seeds ---


def random_seed() -> tuple[str | None, Any]:
    """What keras.utils.set_random_seed or tf.random.set_seed was called with last, as text; None: with nothing.

    Returns:
      The seed, and an object that every call makes anew.
    """
    eager = context.context()
    return None if eager._seed is None else str(eager._seed), getattr(eager, "_rng", None)


# --- serialization ---

_saving: Any = keras.utils if IS_KERAS_3 else keras.saving


def register(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: Keras files that hold the class load without `custom_objects`."""
    return _saving.register_keras_serializable(package=PACKAGE, name=name)


def serialize(obj: Any) -> Any:
    """A serializable form of a Keras object."""
    return _saving.serialize_keras_object(obj)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """The inverse of `serialize`."""
    return _saving.deserialize_keras_object(config, custom_objects=custom_objects)


# --- optimizers (training/) ---

Optimizer: Any = keras.optimizers.Optimizer


def optimizer_types() -> tuple[type, ...]:
    """Classes of which every Keras optimizer is an instance."""
    if IS_KERAS_3:
        return (Optimizer,)
    return (Optimizer, keras.optimizers.legacy.Optimizer)


def is_loss_scale_optimizer(optimizer: Any) -> bool:
    """Whether an optimizer is one of Keras's LossScaleOptimizers (Keras 2 has two, one of them private)."""
    return any("LossScaleOptimizer" in cls.__name__ for cls in type(optimizer).__mro__)


def serialize_optimizer(optimizer: Any) -> Any:
    """A serializable form of a Keras optimizer."""
    return keras.optimizers.serialize(optimizer)


def deserialize_optimizer(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """The inverse of `serialize_optimizer`."""
    if IS_KERAS_3:
        return keras.optimizers.deserialize(config, custom_objects=custom_objects)
    legacy = "legacy" in str(config.get("module", "")) or config.get("config", {}).get("is_legacy_optimizer", True)
    return keras.optimizers.deserialize(config, custom_objects=custom_objects, use_legacy_optimizer=legacy)


def current_learning_rate(optimizer: Any) -> tf.Tensor:
    """The learning rate of the update that the optimizer would make now, as a scalar tensor.

    Read it before the optimizer applies anything: that advances its iterations.
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
    """The patterns of names of variables that are to have no weight decay (`exclude_from_weight_decay`)."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    names = list(getattr(optimizer, "_exclude_from_weight_decay_names", None) or ())
    return names if pattern is None else [*names, pattern.pattern]


def is_legacy_optimizer(optimizer: Any) -> bool:
    """Whether it is one of Keras 2's legacy optimizers."""
    return not IS_KERAS_3 and isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def strategy_of(optimizer: Any) -> Any:
    """The tf.distribute strategy that an optimizer was made under: TensorFlow's default one if under none."""
    return getattr(optimizer, "_distribution_strategy", None)


@contextlib.contextmanager
def _scope_of(optimizer: Any) -> Iterator[None]:
    """Where the optimizer's variables are to be made: eagerly, and as its strategy makes variables."""
    with tf.init_scope():
        strategy = strategy_of(optimizer)
        # Eagerly in a replica this is the strategy's context already; out of a graph it is TensorFlow's default one.
        if strategy is None or strategy is tf.distribute.get_strategy():
            yield
        else:
            with strategy.scope():
                yield


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the optimizer's slots, unless it has them."""
    with _scope_of(optimizer):
        if is_legacy_optimizer(optimizer):
            optimizer._create_all_weights(variables)
        elif not getattr(optimizer, "built", False):
            optimizer.build(variables)


def apply_optimizer(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Lets a Keras optimizer apply gradients as they are, without any aggregation of its own."""
    if IS_KERAS_3:
        # Under tf.distribute it would add them up over the replicas, in a method that no option turns off. Replicas
        # take turns, all up to the same point: the first one to end ends after the last one's call of it.
        if not callable(getattr(optimizer, "_all_reduce_sum_gradients", None)):
            raise RuntimeError(
                f"Keras {keras.__version__} has no Optimizer._all_reduce_sum_gradients: under tf.distribute gradients "
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
    """What a Keras SGD, Adagrad or Adam (no legacy one) keeps for a variable that it was built for.

    Returns:
      SGD: its momentum, if it has some. Adagrad: the accumulator. Adam: first and second moment.
    """
    index = (
        optimizer._get_variable_index(variable) if IS_KERAS_3 else optimizer._index_dict[optimizer._var_key(variable)]
    )
    names = {"SGD": ["momentums"], "Adagrad": ["_accumulators"], "Adam": ["_momentums", "_velocities"]}
    if not getattr(optimizer, "momentum", True):  # Keras 2 has slots for it even so
        return []
    lists = [getattr(optimizer, name) for name in names[type(optimizer).__name__]]
    return [tf_variable(slots[index]) for slots in lists]


def optimizer_options(optimizer: Any) -> dict[str, str]:
    """What an optimizer is configured with, as text, but its name and its learning rate."""
    try:
        config = dict(optimizer.get_config())
    except Exception:  # an optimizer of the user's own may have none
        return {}
    return {name: repr(value) for name, value in config.items() if name not in ("name", "learning_rate", "decay")}


def optimizer_variables(optimizer: Any) -> list[tf.Variable]:
    """The optimizer's variables: iterations, slots, and others."""
    variables = optimizer.variables
    return [tf_variable(one) for one in (variables() if callable(variables) else variables)]


def touched_by_update(optimizer: Any, variables: list[Any]) -> list[tf.Variable]:
    """The optimizer's variables that an update of these variables of a model reads or writes. Nothing is updated."""

    @tf.function(autograph=False)
    def update() -> None:
        apply_optimizer(optimizer, [tf.zeros_like(tf_variable(one)) for one in variables], variables)

    handles = {id(external) for external, _ in update.get_concrete_function().graph.captures}
    return [one for one in optimizer_variables(optimizer) if id(one.handle) in handles]


# Called, it makes a variable of this process: a tf.distribute strategy mirrors what is made through `tf.Variable` only.
ResourceVariable: Any = resource_variable_ops.ResourceVariable


def local_variable(value: Any, dtype: str, name: str) -> tf.Variable:
    """A variable of this process's own, whatever strategy or graph it is made under."""
    with tf.init_scope(), tf.device("/CPU:0"):
        return ResourceVariable(initial_value=value, dtype=tf.as_dtype(dtype), trainable=False, name=name)


def tf_variable(variable: Any) -> tf.Variable:
    """The TensorFlow variable in a Keras 3 variable, or the variable itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def local_variables(variable: Any) -> list[tf.Variable]:
    """This process's TensorFlow variables behind a variable: of a tf.distribute strategy one per replica, else one."""
    variable = tf_variable(variable)
    return list(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else [variable]


def model_in_training(optimizer: Any) -> Any:
    """The model whose `fit` is calling an optimizer that was given to its `compile`, or None."""
    frame = inspect.currentframe()
    while frame is not None:
        one = frame.f_locals.get("self")
        if isinstance(one, keras.Model) and getattr(one, "optimizer", None) is optimizer:
            return one
        frame = frame.f_back
    return None


def variable_name(variable: Any) -> str:
    """A variable's name within its model: Keras 3 calls it its path."""
    return str(getattr(variable, "path", variable.name))


_Variable: Any = keras.Variable if IS_KERAS_3 else object


class VariableMadeHere(_Variable):
    """A Keras 3 variable whose TensorFlow variable a subclass makes."""

    def make_value(self, value: Any) -> Any:
        """The TensorFlow variable.

        Args:
          value: To begin with, or what returns it.
        """
        raise NotImplementedError

    def _initialize(self, value: Any) -> None:
        super()._initialize(self.make_value(value))


def is_deferred(variable: Any) -> bool:
    """Whether a Keras 3 variable has no value yet: it was made while Keras only works out shapes."""
    return not isinstance(variable, tf.Variable) and variable._value is None


# --- tf.functions around a step (schedules/) ---


class CallHook:
    """Runs something on the host before each call of the tf.functions that a step is traced in; lets them trace anew.

    TensorFlow has no public way to say that a trace is out of date. While it traces, its `_create_concrete_function`
    is on Python's stack, once for every function around the step, and holds the cache in which the next call looks for
    its trace; while it calls a function, so does its `call_function`. And a value captured "at call time" is asked for
    on the host before each run.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        """Does nothing yet."""
        self._callback = callback
        self._caches: dict[int, Any] = {}  # until they are cleared: they take no weak references
        self._nothing = local_constant(0)

    def attach(self) -> None:
        """While a step is traced: has the callback run before each call of that trace.

        Raises:
          RuntimeError: This TensorFlow traces in a way that is not known here, or the graph is not a tf.function's.
        """
        found = self._note_caches("_create_concrete_function")
        graph = tf.compat.v1.get_default_graph()
        # The outermost: loops around the step have graphs of their own, which nobody calls.
        while hasattr(getattr(graph, "outer_graph", None), "capture_call_time_value"):
            graph = graph.outer_graph
        if not found or not hasattr(graph, "capture_call_time_value"):
            raise RuntimeError(
                "the step is traced in a graph that cannot be traced anew: not a tf.function's, or one of a TensorFlow "
                f"that is not known here (2.15 and 2.21 are). Received: TensorFlow {tf.__version__}, {graph!r}"
            )
        graph.capture_call_time_value(self._call, tf.TensorSpec([], tf.int32), key=self, default_value=self._nothing)

    def retrace(self) -> bool:
        """Functions seen so far are traced anew at their next call; one that runs ends as it is.

        Returns:
          Whether there was one, since the last time.
        """
        caches, self._caches = self._caches, {}
        for cache in caches.values():
            cache.clear()
        return bool(caches)

    def _call(self) -> tf.Tensor:
        # Not all were seen when they were traced: one may have found what it calls traced before.
        self._note_caches("call_function")
        self._callback()
        return self._nothing

    def _note_caches(self, of: str) -> bool:
        """Looks for the caches of functions in calls of a function of TensorFlow's that are on the stack."""
        frame, found = inspect.currentframe(), False
        while frame is not None:
            options = frame.f_locals.get("tracing_options") if frame.f_code.co_name == of else None
            if (cache := getattr(options, "function_cache", None)) is not None:
                self._caches[id(cache)] = cache
                found = True
            frame = frame.f_back
        return found


def body_of_call(op: tf.Operation) -> Any:
    """The graph of the function that an op of a graph calls, with its `inputs` and `outputs`; None: it calls none."""
    if op.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    function = op.graph._get_function(op.get_attr("f").name)
    return getattr(function, "graph", None)


def local_constant(value: int) -> tf.Tensor:
    """An int32 scalar outside of all graphs."""
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.constant(value, tf.int32)


# --- layers (layers/) ---

# Arguments of keras.layers.Embedding in its order, which Keras 2 and Keras 3 do not share, with their defaults.
EMBEDDING_ARGUMENTS: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(keras.layers.Embedding.__init__).parameters.items()
    if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
}


def embedding_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], cls: str) -> dict[str, Any]:
    """Binds the arguments of keras.layers.Embedding; takes them out of `kwargs`.

    Raises:
      TypeError: Too many, missing or repeated arguments, in Python's words.
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
    """Signature of a layer with keras.layers.Embedding's arguments and some keywords of its own, for help()."""
    kind = inspect.Parameter
    parameters = [kind("self", kind.POSITIONAL_OR_KEYWORD)]
    parameters += [kind(n, kind.POSITIONAL_OR_KEYWORD, default=value) for n, value in EMBEDDING_ARGUMENTS.items()]
    parameters += [kind(n, kind.KEYWORD_ONLY, default=value) for n, value in keywords.items()]
    return inspect.Signature([*parameters, kind("kwargs", kind.VAR_KEYWORD)])


def policy_dtypes(layer: Any) -> tuple[str, str]:
    """Variable and compute dtype of a layer's policy."""
    policy = layer.dtype_policy if IS_KERAS_3 else layer._dtype_policy
    return policy.variable_dtype, policy.compute_dtype


def not_equal(x: Any, y: Any) -> Any:
    """`x != y`, element by element, also of symbolic, ragged and sparse tensors."""
    return keras.ops.not_equal(x, y) if IS_KERAS_3 else tf.not_equal(x, y)


def shape_tuple(shape: Any) -> tuple[int | None, ...]:
    """A shape in any of Keras's forms as a tuple."""
    return tuple(tf.TensorShape(shape).as_list())


def keras_tensor(like: Any, shape: tuple[int | None, ...], dtype: str, *, ragged: bool = False) -> Any:
    """A symbolic tensor (Keras 3); ragged only where Keras has ragged symbolic tensors and `like` is one."""
    if ragged and getattr(like, "ragged", False):
        return keras.KerasTensor(shape, dtype=dtype, ragged=True)
    return keras.KerasTensor(shape, dtype=dtype)


def traced_with_jit_compile() -> bool:
    """Whether a tf.function(jit_compile=True) is being traced."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and bool(control_flow_util.GraphOrParentsInXlaContext(graph))


# Functions of Keras 3 and 2 that cast what a model is called with to the types of its inputs: a functional model's, and
# a Sequential's whose input's type is its first layer's.
_CAST_INPUTS = ("_convert_inputs_to_tensors", "convert_input", "_conform_to_reference_input")
_FOR_SHAPES = ("compute_output_spec",)
_MOVE_ONLY = (
    "Identity Reshape ExpandDims Squeeze StridedSlice Slice Split SplitV Unpack Pack ConcatV2 Transpose Tile".split()
)


def cast_for_input(tensor: tf.Tensor) -> list[tuple[tf.Tensor, tf.DType]]:
    """What Keras cast to make the values of a tensor in a graph: each with the type that it was cast to.

    Keras casts a model's inputs before any layer sees them, without a look at the values. Casts that somebody else
    asked for are not among them. Eagerly nothing can be seen, and where Keras asks for shapes alone, the values that it
    casts are placeholders: float64 ones for those of several replicas, whatever they are.
    """
    found, pending, seen = [], [] if hasattr(tensor, "numpy") else [tensor], set()
    while pending:
        one = pending.pop()
        if one.ref() in seen or not hasattr(one, "op"):  # an eager tensor, captured
            continue
        seen.add(one.ref())
        if one.op.type == "Cast" and _made_by(one.op, _CAST_INPUTS) and not _made_by(one.op, _FOR_SHAPES):
            found.append((one.op.inputs[0], one.dtype))
        elif one.op.type in _MOVE_ONLY:
            pending.extend(source for source in one.op.inputs if source.dtype == tensor.dtype)
    return found


def _made_by(op: tf.Operation, functions: tuple[str, ...]) -> bool:
    return any(frame.name in functions and "keras" in frame.filename for frame in op.traceback or ())


Layer: Any = keras.layers.Layer


def layers_of(model: Any, kind: type[T]) -> list[T]:
    """The layers of a class in a model, at any depth, built or not."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def is_callback(callback: Any, name: str) -> bool:
    """Whether a callback is of this class of Keras, which not all versions have."""
    cls = getattr(keras.callbacks, name, None)
    return cls is not None and isinstance(callback, cls)


# What models were first called with: of each argument of tensors its `tf.TypeSpec`s, of any batch size.
_inputs: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def inputs_of(model: Any) -> list[Any] | None:
    """The types of the tensors that a model with a layer of ids was first called with, argument by argument.

    Keras 3 keeps the shapes of a subclassed model's inputs, and takes their type for the model's compute dtype.

    Returns:
      Structures of `tf.TypeSpec` with a batch dimension of None; None: it was not called.
    """
    return _inputs.get(model)


def _note_inputs() -> None:
    """Notes what the models whose calls are on the stack were called with."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "__call__" and "call_spec" in frame.f_code.co_varnames:
            model, call = frame.f_locals.get("self"), frame.f_locals.get("call_spec")
            if isinstance(model, keras.Model) and model not in _inputs and call is not None:
                tensors = list(call.tensor_arguments_dict.values())
                _inputs[model] = [tf.nest.map_structure(_any_batch, one) for one in tensors]
        frame = frame.f_back


def _any_batch(tensor: Any) -> Any:
    shape = [None, *list(tensor.shape)[1:]] if len(tensor.shape) else []
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, tensor.row_splits.dtype)
    if isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


class _Called(threading.local):
    """The layers whose calls this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.layers: list[Any] = []


_called = _Called()


class IntegerInput:
    """Mixin of layers whose inputs are ids: a Sequential that starts with one gets an integer input.

    Keras takes the type of a Sequential's input from its first layer's compute dtype (Keras 3) or dtype (Keras 2), and
    casts the ids to it. As float32, ids from 2**24 on would be merged with their neighbours.
    """

    if IS_KERAS_3:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Calls the layer; inside, the compute dtype is the policy's, which Keras compares with the variables'."""
            _note_inputs()
            _called.layers.append(self)
            try:
                return super().__call__(*args, **kwargs)  # type: ignore[misc]
            finally:
                _called.layers.pop()

        @property
        def compute_dtype(self) -> str:
            """Of the inputs, for whoever makes an input for the layer; the outputs have the policy's compute dtype."""
            return policy_dtypes(self)[1] if any(one is self for one in _called.layers) else "int64"

    else:

        @property
        def dtype(self) -> str:
            """Of the inputs; the outputs have the policy's compute dtype."""
            return "int64"


# --- what a checkpoint of a model has (checkpoints/) ---


def all_variables(model: Any) -> list[Any]:
    """All variables of a built model: weights, and of Keras 3 seeds and metrics, each once.

    Raises:
      ValueError: It is not built.
    """
    if not model.built:
        raise ValueError(f"model {model.name!r} is not built: it has no variables yet. Call it on a batch first")
    variables = model.variables if IS_KERAS_3 else model.weights
    return list({id(one): one for one in variables}.values())


def metric_variables(model: Any) -> list[Any]:
    """The variables of a model's metrics, its loss among them, as far as there are some."""
    if IS_KERAS_3:
        return list(model.metrics_variables)
    return [variable for metric in model.metrics for variable in metric.variables]


def build_metrics(model: Any, batch: Any) -> None:
    """Makes the variables of a compiled model's metrics, where this Keras can before the first batch.

    Args:
      model: A built model.
      batch: `tf.TensorSpec`s: (x, y) or (x, y, sample_weight), as `fit` has them.
    """
    build = getattr(model, "_symbolic_build", None)
    if build is not None:
        with contextlib.suppress(Exception):  # of a model or a batch of which Keras makes no symbolic ones
            build(data_batch=batch)


def seed_variables(model: Any) -> list[Any]:
    """The states of a model's random number generators, where they are variables."""
    if IS_KERAS_3:
        states = [one for layer in model._flatten_layers() for one in getattr(layer, "_seed_generators", ())]
        return list({id(one.state): one.state for one in states}.values())
    generators = [getattr(getattr(layer, "_random_generator", None), "_generator", None) for layer in model.submodules]
    return [one.state for one in generators if one is not None]


def optimizer_state(optimizer: Any) -> list[tf.Variable]:
    """As `optimizer_variables`, and the learning rate, which Keras 2 does not count among them."""
    variables = optimizer_variables(optimizer)
    rate = learning_rate_variable(optimizer)
    if rate is not None and not any(one is rate for one in variables):
        variables.append(rate)
    return variables


def learning_rate_variable(optimizer: Any) -> tf.Variable | None:
    """The learning rate, where it is a variable and no schedule."""
    rate = getattr(optimizer, "_hyper", {}).get("learning_rate", getattr(optimizer, "_learning_rate", None))
    rate = getattr(rate, "value", rate) if IS_KERAS_3 else rate
    return rate if isinstance(rate, tf.Variable) else None
