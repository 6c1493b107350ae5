"""`TableLayer`: what the three layers share. Tables made when the layer is built, saved and loaded with it."""

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
from tf_sparse_ps._compat import _keras, _keras_stores
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers import anchor, cached, collective_calls, row_source, rows, sharded
from tf_sparse_ps.layers.row_source import RowSource
from tf_sparse_ps.node import activity


class _Bound:
    """A layer's tables and their anchors; its own class, so that Keras does not track what is in it."""

    def __init__(self) -> None:
        self.bindings: list[TableBinding] = []
        self.anchors: list[Any] = []


# The TableConfig that each table was made from, of layers that are there, as users have given it.
_given: weakref.WeakKeyDictionary[TableBinding, TableConfig] = weakref.WeakKeyDictionary()


def _warn_of_shared_config(binding: TableBinding, given: TableConfig) -> None:
    """Warns if another layer was given the same TableConfig: it has a table of its own."""
    if any(other is given for other in _given.values()):
        warnings.warn(
            f"two layers were given one TableConfig, {given.name!r}, and each has its own rows: layers do not share a "
            "table. Call one layer twice, or put the features into one EmbeddingCollection, where FeatureConfigs with "
            "one TableConfig share its table. If two tables are meant, give each layer its own TableConfig",
            stacklevel=4,
        )
    _given[binding] = given


class TableLayer(_keras.IntegerInput, _keras.Layer):
    """Base of the layers. Inputs are ids, the tables live in the job's group.

    Attributes:
      bindings: One `TableBinding` per table, empty until the layer is built.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_jit = False  # the ops have no XLA kernels
        self._bound = _Bound()
        self._identities: list[dict[str, int]] = []
        variable_dtype, _ = _keras.policy_dtypes(self)
        if variable_dtype == "float64":
            raise UnsupportedError(
                "rows of tables are float32, or of 16 bits (TableConfig(dtype=...)); there are none of float64. Leave "
                "dtype out, and cast the layer's output with keras.ops.cast or tf.cast. Received: dtype=float64"
            )
        if variable_dtype != "float32":
            raise UnsupportedError(
                "rows of 16 bits are asked for by TableConfig(dtype=...), 16-bit activations by the policy "
                f"mixed_float16 or mixed_bfloat16. Received: dtype={variable_dtype}"
            )

    @property
    def bindings(self) -> list[TableBinding]:
        """The layer's tables in this process."""
        return list(self._bound.bindings)

    def table_configs(self) -> list[TableConfig]:
        """What the layer's tables are, or will be once it is built."""
        raise NotImplementedError

    def _make_table(
        self,
        config: TableConfig,
        weight_name: str,
        values: npt.NDArray[np.float32] | None = None,
        *,
        given: TableConfig | None,
    ) -> None:
        """Makes the next table of the layer and its anchor; called by build().

        Args:
          config: Of the table.
          weight_name: Of the anchor.
          values: Its first rows.
          given: The TableConfig that the user has given; None: there is none.
        """
        index = len(self._bound.bindings)
        salt = None
        if index < len(self._identities):  # a saved layer's initial values
            salt = self._identities[index]["salt"]
            config = dataclasses.replace(config, seed=self._identities[index]["seed"])
        with tf.init_scope():  # Keras may be tracing; the first table of a job talks to the other ranks
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
        if given is not None:
            _warn_of_shared_config(binding, given)
        weight = anchor.make(binding, trainable=True, name=weight_name)
        self._bound.bindings.append(binding)
        self._bound.anchors.append(weight)
        setattr(self, f"_anchor_{index}", weight)  # Keras tracks it, among the weights that `trainable` acts on
        if _keras.IS_KERAS_3 and not self.trainable:
            weight.trainable = False

    # --- what the ops are called with ---

    def _row_source(self, index: int) -> RowSource:
        """Where the rows of a table come from."""
        activity.progress()  # in a graph: it is being traced
        return row_source.of(self._bound.bindings[index], self._bound.anchors[index])

    def _row_sources(self) -> list[RowSource]:
        if _keras.traced_with_jit_compile():
            raise ValueError(f"layer {self.name!r} has no XLA kernel. Use jit_compile=False, in compile() too")
        return [self._row_source(index) for index in range(len(self._bound.bindings))]

    def _cast_outputs(self, outputs: Any) -> Any:
        _, compute_dtype = _keras.policy_dtypes(self)
        if compute_dtype == "float32":
            return outputs
        return tf.nest.map_structure(lambda x: tf.cast(x, compute_dtype), outputs)

    # --- weights ---

    def get_weights(self) -> list[npt.NDArray[np.float32]]:
        """The matrix of every table, float32[input_dim, output_dim].

        Of a table that is spread over nodes every rank must ask for it, and gets it.

        Raises:
          UnsupportedError: A table is unbounded.
        """
        return [rows.matrix(binding, "get_weights()") for binding in self._bound.bindings]

    def set_weights(self, weights: Sequence[npt.ArrayLike]) -> None:
        """Sets the matrix of every table. Of one that is spread over nodes every rank must set it, to the same.

        Raises:
          ValueError: A wrong number of matrices, or a wrong shape.
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
        """Floats in the tables: of a bounded one its whole matrix, of an unbounded one the rows that are there.

        Of an unbounded one that is spread over nodes the rows on this node: `summary()` asks for this, and one rank may
        call it alone.
        """
        if not self.built:
            raise ValueError(f"You tried to call `count_params` on layer '{self.name}', but the layer isn't built.")
        return sum((b.config.key_limit or len(b.reader())) * b.config.dim for b in self._bound.bindings)

    def save_own_variables(self, store: Any) -> None:
        """Writes keys, rows and slots of every table into Keras's store."""
        for index, binding in enumerate(self._bound.bindings):
            rows.save(binding, store, self._prefix(index))

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote, or the matrices of keras.layers.Embedding.

        Raises:
          ValueError: The store holds something else, or other widths.
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
            rows.write(binding, {one: _keras_stores.stored(store, name) for one, name in state.items()})

    def _prefix(self, index: int) -> str:
        return "" if len(self._bound.bindings) == 1 else f"table_{index}_"

    # --- serialization ---

    def get_build_config(self) -> dict[str, Any] | None:
        """What a saved model needs to make the same tables: where their initial values come from."""
        if not self._bound.bindings:
            return None
        identities = [{"seed": b.config.seed, "salt": b.salt} for b in self._bound.bindings]
        return {"input_shape": None, "tables": identities}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """The inverse of `get_build_config`."""
        self._identities = [dict(identity) for identity in config.get("tables") or []]
        self.build(None)

    # --- refused ---

    def quantize(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        raise UnsupportedError(
            f"layer {self.name!r}: rows change while they are read; no quantization. Rows of 16 bits are asked for by "
            "TableConfig(dtype=...)"
        )

    def enable_lora(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        raise UnsupportedError(
            f"layer {self.name!r}: LoRA adds a dense matrix of the table's size; freeze the table (trainable=False) "
            "and add a small trainable layer after it"
        )


def table_name(name: str) -> str:
    """A layer's name as the name of a table."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100] or "table"
