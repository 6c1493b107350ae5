"""`Embedding`: replaces keras.layers.Embedding by a shared table. docs/keras-differences.md lists all differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config import constraints, optional, tiered
from tf_sparse_ps.config import placement as placement_lib
from tf_sparse_ps.config.admission import Admission
from tf_sparse_ps.config.device_cache import DeviceCache
from tf_sparse_ps.config.eviction import Eviction
from tf_sparse_ps.config.placement import Placement
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.config.tiered import Storage
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.layers import cached, row_source, rows
from tf_sparse_ps.layers.ids import dense, dense_ids, padding, refuse_other_types
from tf_sparse_ps.layers.table_layer import TableLayer, table_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

keras = _keras.keras

_REFUSED = {
    "embeddings_regularizer": "a regularizer reads the whole matrix at every step and makes its gradient dense. "
    "Regularize the outputs with activity_regularizer",
    "lora_rank": "LoRA adds a dense matrix of the table's size. "
    "Freeze the table (trainable=False), and add a small trainable layer after it",
    "lora_alpha": "it belongs to lora_rank, which is not supported",
    "quantization_config": "rows change while they are read. Give the table rows of 16 bits: TableConfig(dtype=...)",
    "use_one_hot_matmul": "a one-hot matrix has the width of the vocabulary",
}


class EmbeddingOptions(TypedDict, total=False):
    """The keyword arguments that `Embedding` and `EmbeddingReduce` share with Keras, for type checkers and editors."""

    embeddings_constraint: Any
    mask_zero: bool
    weights: Any
    activity_regularizer: Any
    input_length: int | Sequence[int | None] | None  # Keras 2
    sparse: bool  # Keras 2
    input_shape: Sequence[int | None] | None
    batch_input_shape: Sequence[int | None] | None  # Keras 2
    batch_size: int | None  # Keras 2
    name: str | None
    trainable: bool
    dtype: Any
    dynamic: bool  # Keras 2


@_keras.register("Embedding")
class Embedding(TableLayer):
    """Looks up the rows of ids in a table that all ranks of a machine share.

    The layer replaces `keras.layers.Embedding`: it has the same arguments in the same order (those of the installed
    Keras), with the same defaults.

    Args:
      input_dim: The size of the vocabulary. Ids are 0 .. input_dim - 1; other ids are an error. None: the vocabulary is
        unbounded, every int64 is an id, and a row takes memory when it is first trained.
      output_dim: The width of a row.
      embeddings_initializer: See `tf_sparse_ps.initializers`. An unbounded vocabulary takes zeros, ones, constant,
        uniform, normal and truncated normal.
      embeddings_constraint: NonNeg, MaxNorm(axis=1), UnitNorm(axis=1) or MinMaxNorm(axis=1), applied to the rows that a
        step updates (`tf_sparse_ps.constraints`).
      mask_zero: Whether id 0 or the empty string is padding and is masked.
      weights: The initial matrix, float[input_dim, output_dim].
      table: A `TableConfig`, for options that Keras does not have, such as rows of 16 bits. Its dim and key_limit must
        be those of the layer. Its initializer and constraint replace those of the layer.
      storage: "memory", or a `tsps.Tiered`, for a table larger than memory.
      placement: "replicated", one copy of the table per machine, or a `tsps.Sharded`, for a table larger than a
        machine.
      cache: None, or a `tsps.DeviceCache`, which keeps frequent rows on a device. Only in a job of one process. The
        table can have it instead: TableConfig(cache=...).
      eviction: None, or a `tsps.Eviction`: the rows that training evicts.
      admission: None, or a `tsps.Admission`: how often a key must occur in training before it gets a row.
      **options: `EmbeddingOptions`, which include the arguments of keras.layers.Layer.

    Call arguments:
      inputs: Integers of any type, or strings if the vocabulary is unbounded, of any rank; dense, ragged or sparse. The
        key of a string is its fingerprint (`tsps.keys`). Absent entries of a sparse tensor read id 0 or the empty
        string.

    Returns:
      [*inputs.shape, output_dim], of the policy's compute dtype; ragged for ragged inputs.

    Raises:
      ValueError: An argument has a value that is not allowed, or arguments contradict each other; or the inputs are
        neither integers nor allowed strings.
      UnsupportedError: An argument of Keras is not supported, with the reason.
      InvalidArgumentError (TensorFlow's): An id is out of range.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: None = None,
        *args: Any,
        table: TableConfig | None = None,
        placement: Placement = "replicated",
        storage: Storage = "memory",
        cache: DeviceCache | None = None,
        eviction: Eviction | None = None,
        admission: Admission | None = None,
        **options: Unpack[EmbeddingOptions],
    ) -> None:
        name = type(self).__name__
        kwargs: dict[str, Any] = {**options}
        # The two Keras versions differ in their positional arguments, beginning with the fifth.
        positional = (input_dim, output_dim, embeddings_initializer, embeddings_regularizer, *args)
        arguments = _keras.embedding_arguments(positional, kwargs, name)
        for refused, reason in _REFUSED.items():
            value = arguments.get(refused, kwargs.pop(refused, None))
            if value is not None and value is not False:
                raise UnsupportedError(f"{name}: {refused} is not supported: {reason}. Received: {refused}={value!r}")
        for field, value in (("input_dim", input_dim), ("output_dim", output_dim)):
            if field == "input_dim" and value is None:
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value <= 0:
                raise ValueError(
                    f"`{field}` must be a positive integer{' or None' if field == 'input_dim' else ''}. "
                    f"Received: {field}={value} (of type {type(value).__name__})."
                )
        weights = arguments.get("weights", kwargs.pop("weights", None))
        activity = arguments.get("activity_regularizer", kwargs.pop("activity_regularizer", None))
        input_length = arguments.get("input_length", kwargs.pop("input_length", None))
        if not _keras.IS_KERAS_3 and "input_shape" not in kwargs:
            kwargs["input_shape"] = input_length if isinstance(input_length, list | tuple) else (input_length or None,)
        super().__init__(activity_regularizer=activity, **kwargs)
        self.input_dim: int | None = None if input_dim is None else int(input_dim)
        self.output_dim = int(output_dim)
        self.embeddings_initializer = keras.initializers.get(arguments["embeddings_initializer"])
        self.embeddings_regularizer = None
        self.embeddings_constraint = keras.constraints.get(arguments["embeddings_constraint"])
        self.storage, self.placement = tiered.get(storage), placement_lib.get(placement)
        self.eviction = optional.get(Eviction, "eviction", eviction)
        self.admission = optional.get(Admission, "admission", admission)
        own = (self.storage, self.placement, self.eviction, self.admission) != ("memory", "replicated", None, None)
        if table is not None and own:
            raise ValueError(
                f"{name}: a layer with `table` takes storage, placement, eviction and admission from the table. Give "
                "them to the table, TableConfig(storage=..., placement=..., eviction=..., admission=...), not to the "
                f"layer. Received: storage={storage!r}, placement={placement!r}, eviction={eviction!r}, "
                f"admission={admission!r}, table={table}"
            )
        if table is not None and self.embeddings_constraint is not None:
            raise ValueError(
                f"{name}: a layer with `table` takes the constraint from the table. Give the constraint to the table, "
                "TableConfig(constraint=...), not to the layer. Received: "
                f"embeddings_constraint={arguments['embeddings_constraint']!r}, table={table}"
            )
        self.mask_zero = bool(arguments["mask_zero"])
        self.supports_masking = self.mask_zero
        self.input_length = input_length
        self.sparse = bool(arguments.get("sparse", False))
        if self.sparse and self.mask_zero:
            raise ValueError("`mask_zero` cannot be enabled when the layer returns a `tf.SparseTensor` (sparse=True).")
        self.table = table
        self.cache = optional.get(DeviceCache, "cache", cache)
        if table is not None and table.cache is not None:
            if self.cache is not None:
                raise ValueError(
                    f"{name}: a table has one cache, but both the layer and the table have one. Give it to the layer, "
                    f"or to the table, TableConfig(cache=...). Received: cache={cache!r}, table={table}"
                )
            self.cache = table.cache
        self._first_weights = weights
        self._config = self._table_config()
        cached.refuse(self._config, name)
        if weights is not None and _keras.IS_KERAS_3:
            self.build()

    def _table_config(self) -> TableConfig:
        if self.table is None:
            return TableConfig(
                table_name(self.name),
                self.output_dim,
                key_limit=self.input_dim,
                initializer=self.embeddings_initializer,
                constraint=self.embeddings_constraint,
                storage=self.storage,
                placement=self.placement,
                cache=self.cache,
                eviction=self.eviction,
                admission=self.admission,
            )
        key_limit = self.table.key_limit if self.table.key_limit is not None else self.input_dim
        if self.table.dim != self.output_dim or key_limit != self.input_dim:
            raise ValueError(
                "the shape of `table` differs from that of the layer. Give both the same shape. Received: a table with "
                f"dim={self.table.dim}, key_limit={self.table.key_limit}; a layer with output_dim={self.output_dim}, "
                f"input_dim={self.input_dim}"
            )
        return dataclasses.replace(self.table, key_limit=key_limit, cache=self.cache)

    def table_configs(self) -> list[TableConfig]:
        """See `TableLayer.table_configs`."""
        return [self._config]

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        if self._bound.bindings:
            return
        values = self._first_values()
        self._make_table(self._config, "embeddings", values, user_config=self.table)
        self._first_weights = None
        self.built = True

    def _first_values(self) -> npt.NDArray[np.float32] | None:
        weights = self._first_weights
        if weights is None:
            return None
        if isinstance(weights, list | tuple) and len(weights) == 1:
            weights = weights[0]
        if self.input_dim is None:
            raise UnsupportedError(
                f"layer {self.name!r}: weights= needs an input_dim, because the rows of an unbounded vocabulary are no "
                "matrix. Give the layer an input_dim, or leave weights out"
            )
        matrix = np.asarray(weights)
        if matrix.shape != (self.input_dim, self.output_dim):
            raise ValueError(
                f"Layer {self.name} weight shape {(self.input_dim, self.output_dim)} is not compatible with provided "
                f"weight shape {matrix.shape}."
            )
        return np.ascontiguousarray(matrix, dtype=np.float32)

    @property
    def embeddings(self) -> Any:
        """The matrix of a bounded table, float32[input_dim, output_dim], as a variable.

        `numpy()` and `assign()` read and write the rows. Used as a tensor, in a graph or eagerly, it reads all rows,
        and gradients reach the table. So an output layer can be tied to it, as to the weight of keras.layers.Embedding.

        Raises:
          AttributeError: The layer is not built.
          UnsupportedError: The vocabulary is unbounded.
        """
        if not self._bound.bindings:
            raise AttributeError("You must build the layer before accessing `embeddings`.")
        if self.input_dim is None:
            rows.matrix(self._bound.bindings[0], "embeddings")
        return self._bound.anchors[0]

    def cache_statistics(self) -> dict[str, float]:
        """Returns the statistics of the layer's cache since the layer was built. See `DeviceStore.statistics`.

        Raises:
          ValueError: The layer has no cache, or is not built.
        """
        cache = cache_of(self._bound.bindings[0]) if self._bound.bindings else None
        if cache is None:
            raise ValueError(
                f"layer {self.name!r} has no cache" + ("" if self.cache is None else " before it is built")
            )
        return cache.statistics()

    # --- the call ---

    def call(self, inputs: Any) -> Any:
        """Looks up the rows of the ids. See the class."""
        return self._cast_outputs(self._call_sparse(inputs) if self.sparse else self._look_up(inputs))

    def _look_up(self, inputs: Any) -> Any:
        """Returns the rows of ids, float32[..., output_dim]. Those of ragged ids are ragged."""
        ids = dense_ids(inputs, self.name, bounded=self.input_dim is not None)
        ragged = isinstance(ids, tf.RaggedTensor)
        (rows,) = row_source.look_up(self._row_sources(), [ids.flat_values if ragged else ids], [0])
        return ids.with_flat_values(rows) if ragged else rows

    def _call_sparse(self, inputs: Any) -> tf.SparseTensor:
        """Returns a SparseTensor with output_dim values per id, as Keras 2 does if sparse=True."""
        if not isinstance(inputs, tf.SparseTensor):
            return tf.sparse.from_dense(self._look_up(inputs))
        values = self._look_up(inputs.values)
        n = tf.shape(inputs.indices)[0]
        columns = tf.tile(tf.range(self.output_dim, dtype=tf.int64), [n])[:, tf.newaxis]
        indices = tf.concat([tf.repeat(inputs.indices, self.output_dim, axis=0), columns], 1)
        shape = tf.concat([inputs.dense_shape, [self.output_dim]], 0)
        return tf.SparseTensor(indices, tf.reshape(values, [-1]), shape)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns the mask of the ids that are neither 0 nor the empty string if mask_zero, else None."""
        if not self.mask_zero:
            return None
        if isinstance(inputs, tf.SparseTensor):
            inputs = dense(inputs)
        elif not hasattr(inputs, "dtype"):  # a list, or a number
            inputs = tf.convert_to_tensor(inputs)
        return _keras.not_equal(inputs, padding(inputs))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the ids, followed by output_dim."""
        shape = _keras.shape_tuple(input_shape)
        if _keras.IS_KERAS_3:
            return (*shape, self.output_dim)
        if self.input_length is not None:
            lengths = list(self.input_length) if isinstance(self.input_length, list | tuple) else [self.input_length]
            inner = shape[1:]
            if len(lengths) != len(inner) or any(a != b for a, b in zip(lengths, inner, strict=True) if a and b):
                raise ValueError(f'"input_length" is {self.input_length}, but received input has shape {input_shape}')
            shape = (shape[0], *(a or b for a, b in zip(lengths, inner, strict=True)))
        return tf.TensorShape((*shape, self.output_dim))

    def compute_output_spec(self, inputs: Any) -> Any:
        """Returns the symbolic output (Keras 3)."""
        refuse_other_types(inputs, self.name, bounded=self.input_dim is not None)
        _, dtype = _keras.policy_dtypes(self)
        return _keras.keras_tensor(inputs, self.compute_output_shape(inputs.shape), dtype, ragged=True)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer, serializable."""
        config = {
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": _serialize_initializer(self.embeddings_initializer),
            "embeddings_regularizer": None,
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer)
            if self.activity_regularizer is not None
            else None,
            "embeddings_constraint": constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
            "table": None if self.table is None else self.table.get_config(),
            "placement": placement_lib.serialize(self.placement),
            "storage": tiered.serialize(self.storage),
            "cache": None
            if self.table is not None and self.table.cache is not None
            else optional.serialize(self.cache),
        }
        for policy in ("eviction", "admission"):
            if getattr(self, policy) is not None:  # so that earlier versions read models without it
                config[policy] = optional.serialize(getattr(self, policy))
        if not _keras.IS_KERAS_3:
            config |= {"input_length": self.input_length, "sparse": self.sparse}
        base = super().get_config()
        base.pop("autocast", None)
        return {**base, **config}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        """Makes a layer from what `get_config` returned, or from the configuration of a keras.layers.Embedding."""
        config = dict(config)
        if isinstance(config.get("table"), dict):
            config["table"] = TableConfig.from_config(config["table"])
        for name in ("embeddings_initializer", "activity_regularizer", "embeddings_constraint"):
            if isinstance(config.get(name), dict):
                config[name] = _keras.deserialize(config[name])
        return cls(**config)


Embedding.__init__.__signature__ = _keras.embedding_signature(  # type: ignore[attr-defined]
    table=None, placement="replicated", storage="memory", cache=None, eviction=None, admission=None
)


def _serialize_initializer(initializer: Any) -> Any:
    return None if initializer is None else keras.initializers.serialize(initializer)
