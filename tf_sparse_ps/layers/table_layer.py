"""`TableLayer`: the base of the three layers. It creates their tables when they are built, saves and loads them."""

from __future__ import annotations

import dataclasses
import re
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras, _keras_inputs, _keras_stores
from tf_sparse_ps.config.eviction import Eviction
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers import anchor, cached, collective_calls, row_source, rows, sharded
from tf_sparse_ps.layers.ids import unique_keys
from tf_sparse_ps.layers.row_source import RowSource
from tf_sparse_ps.node import activity
from tf_sparse_ps.table import evicting


class _Bound:
    """Holds the tables of a layer and their anchors, because Keras would track lists as attributes of the layer."""

    def __init__(self) -> None:
        self.bindings: list[TableBinding] = []
        self.anchors: list[Any] = []


# The TableConfig that the user gave for each table, as long as the layer of the table exists.
_user_configs: weakref.WeakKeyDictionary[TableBinding, TableConfig] = weakref.WeakKeyDictionary()


def _warn_of_shared_config(binding: TableBinding, config: TableConfig) -> None:
    """Warns if another layer has a table of the same TableConfig object: the two tables share no rows."""
    if any(known is config for known in _user_configs.values()):
        warnings.warn(
            f"two layers were given one TableConfig, {config.name!r}, and each has its own rows: layers do not share a "
            "table. To share rows, call one layer twice, or put the features into one EmbeddingCollection, where "
            "FeatureConfigs with one TableConfig share its table. To have two tables, give each layer its own "
            "TableConfig",
            stacklevel=4,
        )
    _user_configs[binding] = config


class TableLayer(_keras_inputs.IntegerInput, _keras.Layer):
    """The base of the layers. Inputs are ids; the tables are in the group of the job.

    Attributes:
      bindings: One `TableBinding` per table. Empty until the layer is built.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_jit = False  # the ops have no XLA kernels
        self._bound = _Bound()
        self._identities: list[dict[str, int]] = []
        variable_dtype, _ = _keras.policy_dtypes(self)
        if variable_dtype == "float64":
            raise UnsupportedError(
                "a layer cannot have rows of float64. Rows of tables are float32, or of 16 bits "
                "(TableConfig(dtype=...)). Leave dtype out, and cast the layer's output with keras.ops.cast or "
                "tf.cast. Received: dtype=float64"
            )
        if variable_dtype != "float32":
            raise UnsupportedError(
                "the dtype of a layer does not set the type of its rows. For rows of 16 bits, use "
                "TableConfig(dtype=...). For 16-bit activations, use the policy mixed_float16 or mixed_bfloat16. "
                f"Received: dtype={variable_dtype}"
            )

    @property
    def bindings(self) -> list[TableBinding]:
        """The layer's tables in this process."""
        return list(self._bound.bindings)

    def table_configs(self) -> list[TableConfig]:
        """Returns the configuration of each table of the layer, also before the layer is built."""
        raise NotImplementedError

    def _make_table(
        self,
        config: TableConfig,
        weight_name: str,
        values: npt.NDArray[np.float32] | None = None,
        *,
        user_config: TableConfig | None,
    ) -> None:
        """Creates the next table of the layer and its anchor. `build` calls it.

        Args:
          config: The configuration of the table.
          weight_name: The name of the anchor.
          values: The initial rows, float32[key_limit, dim], if they do not come from the initializer.
          user_config: The TableConfig object that the user gave, if any.
        """
        index = len(self._bound.bindings)
        salt = None
        if index < len(self._identities):  # the initial values are those of a saved layer
            salt = self._identities[index]["salt"]
            config = dataclasses.replace(config, seed=self._identities[index]["seed"])
        with tf.init_scope():  # Keras may be tracing, and the first table of a job exchanges messages
            this_job = job.current()
            sharded.refuse_workers(config, this_job)
            if config.cache is not None:
                cached.refuse_several(config, this_job)
            binding = this_job.create_table(config, salt=salt, values=values)
            if binding.placement == "sharded":
                sharded.prepare(this_job)
            collective_calls.register(binding)
            collective_calls.fill(binding)
            if config.cache is not None:
                cached.attach(binding, config.cache, this_job)
        if user_config is not None:
            _warn_of_shared_config(binding, user_config)
        weight = anchor.make(binding, trainable=True, name=weight_name)
        self._bound.bindings.append(binding)
        self._bound.anchors.append(weight)
        setattr(self, f"_anchor_{index}", weight)  # Keras tracks it with the weights that `trainable` affects
        if _keras.IS_KERAS_3 and not self.trainable:
            weight.trainable = False

    # --- arguments of the ops ---

    def _row_source(self, index: int) -> RowSource:
        """Returns the source of a table's rows."""
        activity.progress()  # in a graph, this is part of tracing
        return row_source.of(self._bound.bindings[index], self._bound.anchors[index])

    def _row_sources(self) -> list[RowSource]:
        if _keras.traced_with_jit_compile():
            raise ValueError(f"layer {self.name!r} has no XLA kernel. Use jit_compile=False, also in compile()")
        return [self._row_source(index) for index in range(len(self._bound.bindings))]

    def _cast_outputs(self, outputs: Any) -> Any:
        _, compute_dtype = _keras.policy_dtypes(self)
        if compute_dtype == "float32":
            return outputs
        return tf.nest.map_structure(lambda x: tf.cast(x, compute_dtype), outputs)

    # --- rows ---

    def erase(self, ids: Any, *, table: str | None = None) -> None:
        """Removes rows from a table between two steps of a job. Every rank calls it, with equal ids.

        Later lookups of these ids give initial values, and training them makes new rows with new slots. Values that
        came from `weights=`, `set_weights`, or an initializer of a whole matrix do not return. The next checkpoint does
        not have the rows. `tf-sparse-ps checkpoint erase` removes them from the checkpoints before it.

        Args:
          ids: Integers, or strings if the vocabulary is unbounded; of any shape. Ids without a row are allowed.
          table: The name of the table (`TableConfig.name`). None: the only table of the layer.

        Raises:
          ValueError: The layer is not built; it is called in a graph; the layer has no such table, or several and
            `table` is None; or an id has a type or a value that the table cannot have. On all ranks: the ids differ.
          UnavailableError, WaitTimeoutError: Another rank did not call it.

        Example:
          class Forget(keras.callbacks.Callback):  # before the Checkpoint callback in fit's list
            def on_epoch_end(self, epoch, logs=None):
              users.erase(["user 17", "user 4711"])
        """
        binding = self._binding_to_shrink(table, "erase")
        keys = unique_keys(ids, self.name, limit=binding.config.key_limit)
        collective_calls.agree(binding, "erasing rows", {"ids": collective_calls.digest(keys)})
        binding.erase(keys)

    def evict(self, eviction: Eviction | None = None, *, table: str | None = None) -> None:
        """Evicts rows of a table at once, between two steps of a job. Every rank calls it, with equal arguments.

        Steps evict a few rows each. This call evicts all rows that are due, for example before a model is exported.

        Args:
          eviction: The `tsps.Eviction`. None: that of the table, whose `keep` holds in any case.
          table: The name of the table (`TableConfig.name`). None: the only table of the layer.

        Raises:
          ValueError: As for `erase`; or `eviction` is None and the table has none. On all ranks: the arguments differ.
          StateError: The table does not record the use of its rows, because it was made without `eviction`.
          UnavailableError, WaitTimeoutError: Another rank did not call it.
        """
        binding = self._binding_to_shrink(table, "evict")
        eviction = binding.config.eviction if eviction is None else eviction
        if not isinstance(eviction, Eviction):
            raise ValueError(
                f"layer {self.name!r}: table {binding.config.name!r} has no eviction. Give a tsps.Eviction. Received: "
                f"eviction={eviction!r}"
            )
        evicting.check(binding.reader())
        collective_calls.agree(binding, "evicting rows", {"eviction": repr(eviction)})
        binding.evict(eviction)

    def _binding_to_shrink(self, table: str | None, call: str) -> TableBinding:
        if not self._bound.bindings:
            raise ValueError(f"layer {self.name!r} has no rows to {call} before it is built")
        if not tf.executing_eagerly():
            raise ValueError(f"layer {self.name!r}: call {call}() eagerly between two steps, not in a tf.function")
        named = {binding.config.name: binding for binding in self._bound.bindings}
        if (table is None and len(named) > 1) or (table is not None and table not in named):
            raise ValueError(f"layer {self.name!r}: `table` must be one of {sorted(named)}. Received: table={table!r}")
        return self._bound.bindings[0] if table is None else named[table]

    # --- weights ---

    def get_weights(self) -> list[npt.NDArray[np.float32]]:
        """Returns the matrix of every table, float32[input_dim, output_dim].

        If a table is sharded, every rank must call this method.

        Raises:
          UnsupportedError: A table is unbounded.
        """
        return [rows.matrix(binding, "get_weights()") for binding in self._bound.bindings]

    def set_weights(self, weights: Sequence[npt.ArrayLike]) -> None:
        """Sets the matrix of every table. If a table is sharded, every rank must call this method, with equal weights.

        Args:
          weights: One matrix per table, float[input_dim, output_dim].

        Raises:
          ValueError: The number of matrices or a shape is wrong.
          UnsupportedError: A table is unbounded.
        """
        if len(weights) != len(self._bound.bindings):
            raise ValueError(
                f"You called `set_weights(weights)` on layer '{self.name}' with a weight list of length "
                f"{len(weights)}, but the layer was expecting {len(self._bound.bindings)} weights."
            )
        matrices = [rows.check_matrix(b, w) for b, w in zip(self._bound.bindings, weights, strict=True)]
        for binding, matrix in zip(self._bound.bindings, matrices, strict=True):
            rows.assign_matrix(binding, matrix)

    def count_params(self) -> int:
        """Returns the number of floats in the tables.

        A bounded table counts with its whole matrix, an unbounded one with the rows that it has. An unbounded sharded
        table counts with the rows on this node, because one rank may call `summary()` alone.

        Raises:
          ValueError: The layer is not built.
        """
        if not self.built:
            raise ValueError(f"You tried to call `count_params` on layer '{self.name}', but the layer isn't built.")
        return sum((b.config.key_limit or len(b.reader())) * b.config.dim for b in self._bound.bindings)

    def save_own_variables(self, store: Any) -> None:
        """Writes the keys, rows and slots of every table into a Keras store."""
        for index, binding in enumerate(self._bound.bindings):
            rows.save(binding, store, self._prefix(index))

    def load_own_variables(self, store: Any) -> None:
        """Reads the tables that `save_own_variables` wrote, or the matrices of keras.layers.Embedding.

        Raises:
          ValueError: The store has other contents, or rows of another width.
        """
        names = set(store.keys())
        if names and all(name.isdigit() for name in names):
            self.set_weights([np.asarray(store[str(index)]) for index in range(len(names))])
            return
        for index, binding in enumerate(self._bound.bindings):
            prefix = self._prefix(index)
            state = {name[len(prefix) :]: name for name in names if name.startswith(prefix)}
            if not {"keys", "rows", "meta"} <= state.keys():
                raise ValueError(
                    f"Layer '{self.name}' expected keys, rows and meta of table {index} ({binding.config.name}). "
                    f"Received: {sorted(names)}"
                )
            rows.write(binding, {part: _keras_stores.stored(store, name) for part, name in state.items()})

    def _prefix(self, index: int) -> str:
        return "" if len(self._bound.bindings) == 1 else f"table_{index}_"

    # --- serialization ---

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns what a saved model needs to create the same tables: the seed and salt of their initial values."""
        if not self._bound.bindings:
            return None
        identities = [{"seed": b.config.seed, "salt": b.salt} for b in self._bound.bindings]
        return {"input_shape": None, "tables": identities}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Builds the layer from what `get_build_config` returned."""
        self._identities = [dict(identity) for identity in config.get("tables") or []]
        self.build(None)

    # --- methods of Keras layers that raise ---

    def quantize(self, *_: Any, **__: Any) -> NoReturn:
        """Raises UnsupportedError."""
        raise UnsupportedError(
            f"layer {self.name!r} cannot be quantized, because its rows change while they are read. For rows of 16 "
            "bits, use TableConfig(dtype=...)"
        )

    def enable_lora(self, *_: Any, **__: Any) -> NoReturn:
        """Raises UnsupportedError."""
        raise UnsupportedError(
            f"layer {self.name!r} does not support LoRA, which adds a dense matrix of the table's size. Freeze the "
            "table (trainable=False), and add a small trainable layer after it"
        )


def table_name(name: str) -> str:
    """Converts the name of a layer to a valid name of a table."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100] or "table"
