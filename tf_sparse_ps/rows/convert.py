"""`tsps.convert`: replaces the `keras.layers.Embedding` layers of a model."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

import tensorflow as tf

from tf_sparse_ps._compat import _keras, _keras_graphs, _keras_state
from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError
from tf_sparse_ps.layers.embedding import Embedding
from tf_sparse_ps.layers.table_layer import TableLayer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tf_sparse_ps.config.admission import Admission
    from tf_sparse_ps.config.device_cache import DeviceCache
    from tf_sparse_ps.config.eviction import Eviction
    from tf_sparse_ps.config.placement import Placement
    from tf_sparse_ps.config.tiered import Storage

keras = _keras.keras


class TableOptions(TypedDict, total=False):
    """The options that `convert` gives to each layer; see `tsps.Embedding`."""

    storage: Storage
    placement: Placement
    cache: DeviceCache | None
    eviction: Eviction | None
    admission: Admission | None


def convert(model: Any, **table_options: Unpack[TableOptions]) -> Any:
    """Returns a copy of a Keras model whose `keras.layers.Embedding` layers are `tsps.Embedding`.

    The copy has the same weights, layer names and outputs, to the bit. A layer that the model uses several times is one
    layer of the copy. Other layers are copied as `keras.models.clone_model` copies them, with their weights. A float
    input of the model whose values are only ids of embeddings becomes an int64 input. In a job, every rank calls it.

    In a named job that is started again, the tables keep their rows of the run before.

    The copy is not compiled, and the state of the model's optimizer is not copied. Compile the copy with a
    `tsps.DistributedOptimizer`.

    Args:
      model: A functional or sequential model. Models inside of it are copied as well.
      **table_options: storage, placement, cache, eviction and admission of all tables; see `tsps.Embedding`.

    Returns:
      The new model. If `model` is not built, no table is made before the copy is built.

    Raises:
      UnsupportedError: The model, or a model inside of it, is subclassed; an Embedding layer has an argument or a state
        that tables do not support; or it is part of another layer. The message names it. No table is made.
      InvalidArgumentError: `model` is not a Keras model, or has no Embedding layer.
      ValueError: `table_options` has a wrong value.

    Example:
      >>> model = tsps.convert(keras.models.load_model("trained.keras"))
      >>> model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    """
    unknown = sorted(set(table_options) - set(TableOptions.__annotations__))
    if unknown:
        raise InvalidArgumentError(
            f"convert() takes the table options {sorted(TableOptions.__annotations__)}. Received: {unknown}"
        )
    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(f"`model` must be a Keras model. Received: {type(model).__name__}")
    if not _embeddings_of(model):
        raise InvalidArgumentError(f"model {model.name!r} has no keras.layers.Embedding layer that could be converted")
    if tables := _keras.layers_of(model, TableLayer):
        raise UnsupportedError(
            f"model {model.name!r} has the layer {tables[0].name!r} of tf_sparse_ps already, whose table cannot be "
            "copied. Convert the model before you add such layers"
        )
    _check(model, dict(table_options))
    return _Conversion(dict(table_options)).convert(model)


def _embeddings_of(layer: Any) -> list[Any]:
    return _keras.layers_of(layer, keras.layers.Embedding)


def _check(model: Any, options: dict[str, Any]) -> None:
    """Raises UnsupportedError or ValueError if an Embedding layer at any depth of a model cannot be converted."""
    if not _keras_graphs.is_plain_model(model):
        _refuse_subclassed(model)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Embedding):
            _check_embedding(layer, options)
        elif _embeddings_of(layer):
            if isinstance(layer, keras.Model):
                _check(layer, options)
                continue
            raise UnsupportedError(
                f"layer {layer.name!r} ({type(layer).__name__}) of model {model.name!r} contains the embedding layer "
                f"{_embeddings_of(layer)[0].name!r}, which cannot be replaced inside of it. Use the embedding as a "
                "layer of the model. It takes ids of any shape, so TimeDistributed is not needed around it"
            )


def _refuse_subclassed(model: Any) -> NoReturn:
    layer = _embeddings_of(model)[0]
    raise UnsupportedError(
        f"model {model.name!r} cannot be converted, because it is of a class of its own, {type(model).__name__}, whose "
        "code makes its layers. Change the class, and copy the weights after both models are built:\n"
        f"    self.embedding = tsps.Embedding({layer.input_dim}, {layer.output_dim})"
        f"  # was keras.layers.Embedding({layer.input_dim}, {layer.output_dim})\n"
        "    new.embedding.set_weights(old.embedding.get_weights())\n"
        "    new.dense.set_weights(old.dense.get_weights())  # likewise for each other layer"
    )


def _check_embedding(layer: Any, options: dict[str, Any]) -> None:
    reason = None
    if type(layer) is not keras.layers.Embedding:
        reason = f"its class {type(layer).__name__} derives from keras.layers.Embedding and may change what it does"
    elif (mode := getattr(layer, "quantization_mode", None)) is not None:
        reason = f"its weights are quantized (quantization_mode={mode!r}). Convert the model before it is quantized"
    elif getattr(layer, "lora_enabled", False):
        reason = f"LoRA is enabled (lora_rank={layer.lora_rank!r}), which tables do not support"
    if reason is not None:
        raise UnsupportedError(f"layer {layer.name!r} cannot be converted: {reason}")
    try:
        Embedding.from_config({**layer.get_config(), **options})
    except UnsupportedError as error:
        raise UnsupportedError(f"layer {layer.name!r} cannot be converted: {error}") from error
    except ValueError as error:
        raise InvalidArgumentError(f"layer {layer.name!r} cannot be converted: {error}") from error


class _Conversion:
    """A conversion of one model, which remembers the copy of each layer so that shared layers stay shared."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._copies: dict[int, tuple[Any, Any]] = {}  # by the id of a layer: the layer, and its copy

    def convert(self, model: Any) -> Any:
        """Copies a whole model with its state."""
        copy = self._copy(model)
        for layer, layer_copy in list(self._copies.values()):
            is_done = layer_copy is layer or isinstance(layer_copy, Embedding) or _keras_graphs.is_plain_model(layer)
            if not is_done:
                _copy_state(layer, layer_copy)
        if _keras.IS_KERAS_3:
            seeds = (_keras_state.seed_variables(model), _keras_state.seed_variables(copy))
            for old, new in zip(*seeds, strict=True):
                new.assign(old)
        return copy

    def _copy(self, layer: Any) -> Any:
        """Returns the copy of a layer or a model."""
        if not isinstance(layer, _keras.Layer):  # an operation of Keras 3, which has no state
            return layer
        if id(layer) not in self._copies:
            self._copies[id(layer)] = (layer, self._make_copy(layer))
        return self._copies[id(layer)][1]

    def _make_copy(self, layer: Any) -> Any:
        if isinstance(layer, keras.layers.Embedding):
            config = {**layer.get_config(), **self._options}
            if layer.built:
                config["weights"] = layer.get_weights()[0]
            return Embedding.from_config(config)
        if not _keras_graphs.is_plain_model(layer):
            return _copy_layer(layer)
        copy = self._copy_sequential(layer) if isinstance(layer, keras.Sequential) else self._copy_functional(layer)
        if not layer.trainable:
            copy.trainable = False
        return copy

    def _copy_sequential(self, model: Any) -> Any:
        inputs = [_new_input(tensor) for tensor in _keras_graphs.inputs_of(model)]
        copies = [self._copy(layer) for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
        return keras.Sequential([*map(_keras_graphs.input_layer_of, inputs), *copies], name=model.name)

    def _copy_functional(self, model: Any) -> Any:
        inputs = tf.nest.map_structure(_new_input, model.input)
        with _keras_graphs.not_compiled(model):
            return keras.models.clone_model(model, input_tensors=inputs, clone_function=self._copy)


def _copy_layer(layer: Any) -> Any:
    if _keras.IS_KERAS_3 and isinstance(layer, keras.layers.Lambda) and not layer.variables:
        return layer  # Keras 3 refuses to copy functions; without variables, two models can use one layer
    try:
        return type(layer).from_config(layer.get_config())
    except Exception as error:
        raise UnsupportedError(
            f"layer {layer.name!r} ({type(layer).__name__}) cannot be copied: {error}. Its class needs "
            "get_config() and from_config(), as for keras.models.clone_model"
        ) from error


def _new_input(tensor: Any) -> Any:
    """Returns a new symbolic input like one of a model. It is int64 instead of a float if it has ids only."""
    layer = _keras_graphs.input_layer_of(tensor)
    config = layer.get_config()
    if tf.as_dtype(tensor.dtype).is_floating and _has_ids(layer):
        config["dtype"] = "int64"
    return keras.layers.InputLayer.from_config(config).output


def _has_ids(input_layer: Any) -> bool:
    """Whether all layers that take an input are embeddings, or models that have embeddings at their only input."""
    users = _keras_graphs.users_of(input_layer)
    return bool(users) and all(map(_takes_ids, users))


def _takes_ids(layer: Any) -> bool:
    if isinstance(layer, keras.layers.Embedding):
        return True
    if not isinstance(layer, keras.Model) or not _keras_graphs.is_plain_model(layer):
        return False
    inputs = _keras_graphs.inputs_of(layer)
    return len(inputs) == 1 and _has_ids(_keras_graphs.input_layer_of(inputs[0]))


def _copy_state(layer: Any, copy: Any) -> None:
    """Copies the weights of a layer, and vocabularies of preprocessing layers."""
    parts = zip(_keras.layers_of(layer, _keras.Layer), _keras.layers_of(copy, _keras.Layer), strict=True)
    for part, part_copy in parts:
        if not part.built:
            continue
        store: dict[str, Any] = {}
        part.save_own_variables(store)
        if store:
            part_copy.load_own_variables(store)
        if hasattr(part, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                part.save_assets(folder)
                part_copy.load_assets(folder)
