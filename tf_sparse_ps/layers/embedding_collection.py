"""`EmbeddingCollection`: looks up many features at once, in shared or separate tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config.table_config import FeatureConfig, TableConfig
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.layers import bags, cached, row_source
from tf_sparse_ps.layers.ids import dense_ids, refuse_other_types
from tf_sparse_ps.layers.table_layer import TableLayer


@_keras.register("EmbeddingCollection")
class EmbeddingCollection(TableLayer):
    """Looks up a dict of features in one call.

    Ids of features that share a table are looked up, counted and updated together.

    Args:
      features: The `FeatureConfig` of each feature, by name. Features whose tables have the same name share one table.
      **kwargs: The arguments of keras.layers.Layer.

    Call arguments:
      inputs: A dict of ids, one entry per feature: as in `Embedding` (combiner None) or in `EmbeddingReduce`.
      weights: A dict of weights for some of the features with a combiner, or None.

    Returns:
      A dict of vectors, one entry per feature.

    Raises:
      ValueError: Two tables with the same name differ; or `inputs` lacks features, or has unknown ones.
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
                    f"features share the table name {known.name!r} with different configurations. Give the tables "
                    f"different names, or equal configurations. Received: {known} and {feature.table}"
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
        """Creates the tables."""
        if self._bound.bindings:
            return
        for name, config in self._tables.items():
            self._make_table(config, f"{name}_embeddings", user_config=config)
        self.built = True

    def cache_statistics(self) -> dict[str, dict[str, float]]:
        """Returns the statistics of the tables' caches since the layer was built. See `DeviceStore.statistics`.

        Returns:
          The statistics of each table with a cache, by the name of the table.

        Raises:
          ValueError: No table has a cache, or the layer is not built.
        """
        statistics = {
            binding.config.name: cache.statistics()
            for binding in self._bound.bindings
            if (cache := cache_of(binding)) is not None
        }
        if not statistics:
            built = bool(self._bound.bindings)
            raise ValueError(f"layer {self.name!r} has no cache" + ("" if built else " before it is built"))
        return statistics

    if TYPE_CHECKING:  # for editors; at run time, Keras defines the call

        def __call__(
            self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None, **kwargs: Any
        ) -> dict[str, Any]: ...

    def call(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Looks up the rows of all features. See the class."""
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

    def _bounded(self, feature: str) -> bool:
        return self.features[feature].table.key_limit is not None

    def _sources_of(self, names: list[str]) -> tuple[list[row_source.RowSource], list[int]]:
        """Returns the sources of the features' tables, and for each feature the position of its table among them."""
        numbers, sources = list(self._tables), self._row_sources()
        of = [numbers.index(self.features[name].table.name) for name in names]
        used = sorted(set(of))
        return [sources[number] for number in used], [used.index(number) for number in of]

    def _look_up(self, names: list[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
        if not names:
            return {}
        sources, table_of = self._sources_of(names)
        ids = [dense_ids(inputs[name], f"{self.name}/{name}", bounded=self._bounded(name)) for name in names]
        flat = [feature.flat_values if isinstance(feature, tf.RaggedTensor) else feature for feature in ids]
        results = row_source.look_up(sources, flat, table_of)
        return {
            name: feature.with_flat_values(rows) if isinstance(feature, tf.RaggedTensor) else rows
            for name, feature, rows in zip(names, ids, results, strict=True)
        }

    def _pool(self, names: list[str], inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
        if not names:
            return {}
        sources, table_of = self._sources_of(names)
        combiners = [str(self.features[name].combiner) for name in names]
        flat = [
            bags.from_inputs(
                inputs[name],
                weights.get(name),
                f"{self.name}/{name}",
                combiner=combiner,
                bounded=self._bounded(name),
            )
            for name, combiner in zip(names, combiners, strict=True)
        ]
        results = row_source.pool(sources, flat, table_of, combiners)
        return {name: bag.restore(rows) for name, bag, rows in zip(names, flat, results, strict=True)}

    def compute_output_shape(self, input_shape: Mapping[str, Any], weights_shape: Any = None) -> dict[str, Any]:
        """Returns the shape of each feature's ids, followed by dim (combiner None) or with dim in last place."""
        shapes = {}
        for name, feature in self.features.items():
            shape = _keras.shape_tuple(input_shape[name])
            kept = shape if feature.combiner is None or len(shape) == 1 else shape[:-1]
            result = (*kept, feature.table.dim)
            shapes[name] = result if _keras.IS_KERAS_3 else tf.TensorShape(result)
        return shapes

    def compute_output_spec(self, inputs: Mapping[str, Any], weights: Any = None) -> dict[str, Any]:
        """Returns the symbolic outputs (Keras 3)."""
        self._check_names(inputs, weights or {})
        for name, ids in inputs.items():
            refuse_other_types(ids, f"{self.name}/{name}", bounded=self._bounded(name))
        _, dtype = _keras.policy_dtypes(self)
        shapes = self.compute_output_shape({name: ids.shape for name, ids in inputs.items()})
        return {
            name: _keras.keras_tensor(inputs[name], shapes[name], dtype, ragged=feature.combiner is None)
            for name, feature in self.features.items()
        }

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer, serializable."""
        base = super().get_config()
        base.pop("autocast", None)
        return {**base, "features": {name: feature.get_config() for name, feature in self.features.items()}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmbeddingCollection:
        """Makes a layer from what `get_config` returned."""
        features = {name: FeatureConfig.from_config(feature) for name, feature in config["features"].items()}
        return cls(**{**config, "features": features})
