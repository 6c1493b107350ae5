"""`EmbeddingCollection`: many features, shared or separate tables, one lookup for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config.table_config import FeatureConfig, TableConfig
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.layers import bags, cached, row_source
from tf_sparse_ps.layers.ids import dense_ids, refuse_other_than_integers
from tf_sparse_ps.layers.table_layer import TableLayer


@_keras.register("EmbeddingCollection")
class EmbeddingCollection(TableLayer):
    """Looks up a dict of features in one call.

    Ids of features that share a table are looked up, counted and updated together.

    Args:
      features: Feature name to `FeatureConfig`. Features whose tables have the same name share one table.
      **kwargs: Of keras.layers.Layer.

    Call arguments:
      inputs: Dict of ids, one entry per feature; each as in `Embedding` (combiner None) or `EmbeddingReduce`.
      weights: Dict of weights for some of the features with a combiner, or None.

    Returns:
      Dict of vectors, one entry per feature.

    Raises:
      ValueError: Two tables of one name that differ; features missing in `inputs`, or too many.
    """

    def __init__(self, features: Mapping[str, FeatureConfig], **kwargs: Any) -> None:
        if not features:
            raise ValueError("`features` must have at least one entry")
        tables: dict[str, TableConfig] = {}
        for name, feature in features.items():
            if not isinstance(feature, FeatureConfig):
                raise ValueError(f"feature {name!r} must be a tsps.FeatureConfig. Received: {feature!r}")
            known = tables.setdefault(feature.table.name, feature.table)
            if not known.equals(feature.table):
                raise ValueError(
                    f"features share the table name {known.name!r} with different configurations: {known} and "
                    f"{feature.table}"
                )
        super().__init__(**kwargs)
        for config in tables.values():
            cached.refuse(config, type(self).__name__)
        self.features = dict(features)
        self._tables = tables

    def table_configs(self) -> list[TableConfig]:
        """See `TableLayer.table_configs`."""
        return list(self._tables.values())

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables."""
        if self._bound.bindings:
            return
        for name, config in self._tables.items():
            self._make_table(config, f"{name}_embeddings", given=config)
        self.built = True

    def cache_statistics(self) -> dict[str, dict[str, float]]:
        """What the caches of its tables did since the layer was built: `DeviceStore.statistics`, by the table's name.

        Raises:
          ValueError: No table has a cache, or the layer is not built.
        """
        found = {
            binding.config.name: cache.statistics()
            for binding in self._bound.bindings
            if (cache := cache_of(binding)) is not None
        }
        if not found:
            built = bool(self._bound.bindings)
            raise ValueError(f"layer {self.name!r} has no cache" + ("" if built else " before it is built"))
        return found

    if TYPE_CHECKING:  # the call that editors show; at run time it is Keras's

        def __call__(
            self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None, **kwargs: Any
        ) -> dict[str, Any]: ...

    def call(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See the class."""
        weights = weights or {}
        self._check_names(inputs, weights)
        single = [name for name, feature in self.features.items() if feature.combiner is None]
        pooled = [name for name, feature in self.features.items() if feature.combiner is not None]
        outputs = self._look_up(single, inputs) | self._pool(pooled, inputs, weights)
        return {name: self._cast_outputs(outputs[name]) for name in self.features}

    def _check_names(self, inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        if set(inputs) != set(self.features):
            raise ValueError(
                f"layer {self.name!r} expects the features {sorted(self.features)}. Received: {sorted(inputs)}"
            )
        wrong = [name for name in weights if name not in self.features or self.features[name].combiner is None]
        if wrong:
            raise ValueError(f"layer {self.name!r}: only features with a combiner take weights. Received: {wrong}")

    def _tables_of(self, names: list[str]) -> tuple[list[int], list[int]]:
        """The tables that these features need, by number, and each feature's position among them."""
        numbers = list(self._tables)
        of = [numbers.index(self.features[name].table.name) for name in names]
        used = sorted(set(of))
        return used, [used.index(number) for number in of]

    def _sources(self, used: list[int]) -> list[row_source.RowSource]:
        sources = self._row_sources()
        return [sources[i] for i in used]

    def _look_up(self, names: list[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
        if not names:
            return {}
        used, table_of = self._tables_of(names)
        ids = [dense_ids(inputs[name], f"{self.name}/{name}") for name in names]
        flat = [one.flat_values if isinstance(one, tf.RaggedTensor) else one for one in ids]
        found = row_source.look_up(self._sources(used), flat, table_of)
        return {
            name: one.with_flat_values(rows) if isinstance(one, tf.RaggedTensor) else rows
            for name, one, rows in zip(names, ids, found, strict=True)
        }

    def _pool(self, names: list[str], inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
        if not names:
            return {}
        used, table_of = self._tables_of(names)
        combiners = [str(self.features[name].combiner) for name in names]
        flat = [
            bags.from_inputs(inputs[name], weights.get(name), f"{self.name}/{name}", combiner=combiner)
            for name, combiner in zip(names, combiners, strict=True)
        ]
        found = row_source.pool(self._sources(used), flat, table_of, combiners)
        return {name: bag.restore(rows) for name, bag, rows in zip(names, flat, found, strict=True)}

    def compute_output_shape(self, input_shape: Mapping[str, Any], weights_shape: Any = None) -> dict[str, Any]:
        """Each feature's shape, with dim added (combiner None) or in place of the last dimension."""
        shapes = {}
        for name, feature in self.features.items():
            shape = _keras.shape_tuple(input_shape[name])
            kept = shape if feature.combiner is None or len(shape) == 1 else shape[:-1]
            result = (*kept, feature.table.dim)
            shapes[name] = result if _keras.IS_KERAS_3 else tf.TensorShape(result)
        return shapes

    def compute_output_spec(self, inputs: Mapping[str, Any], weights: Any = None) -> dict[str, Any]:
        """The symbolic outputs (Keras 3)."""
        self._check_names(inputs, weights or {})
        for one in inputs.values():
            refuse_other_than_integers(one, self.name)
        _, dtype = _keras.policy_dtypes(self)
        shapes = self.compute_output_shape({name: one.shape for name, one in inputs.items()})
        return {
            name: _keras.keras_tensor(inputs[name], shapes[name], dtype, ragged=feature.combiner is None)
            for name, feature in self.features.items()
        }

    def get_config(self) -> dict[str, Any]:
        """The arguments, serializable."""
        base = super().get_config()
        base.pop("autocast", None)
        return {**base, "features": {name: feature.get_config() for name, feature in self.features.items()}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmbeddingCollection:
        """The inverse of `get_config`."""
        features = {name: FeatureConfig.from_config(feature) for name, feature in config["features"].items()}
        return cls(**{**config, "features": features})
