"""The Keras model of a draw. NumPy knows the gradients of its loss exactly.

The output of a sample has two terms: a sum over tables of half the squared distance between looked-up rows and targets,
and a dot product with dense weights. The loss is the mean of the outputs. A row's gradient is therefore
(row - target) / batch, and that of the dense weights does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tests.oracle import data
from tests.oracle.options import Options, TableOptions
from tests.oracle.row_rule_table import RULES
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config.placement import Sharded

keras = _keras.keras
TIER_BYTES = 1_610_000  # 1.5 MiB of buffers, and space for some rows
PLACE_BYTES = 64  # more for each row of a table that evicts rows on disk
CACHE_ROWS = 100  # a batch has at most 96 keys


def mean_output(_: Any, outputs: Any) -> Any:
    """Returns the model's outputs as the losses of the samples. Keras takes their mean."""
    return outputs


class HalfSquaredDistance(keras.layers.Layer):
    """Half the sum of squares of rows minus targets, for each sample."""

    def call(self, rows: Any, targets: Any) -> Any:
        """Maps two float[batch, ...] to float[batch, 1]."""
        squares = tf.square(rows - targets)
        return 0.5 * tf.reduce_sum(tf.reshape(squares, [tf.shape(squares)[0], -1]), axis=1, keepdims=True)


class DotProduct(keras.layers.Layer):
    """A dot product with trained weights."""

    def __init__(self, options: Options, **kwargs: Any) -> None:
        """The initial weights are `data.first_dense`."""
        super().__init__(**kwargs)
        self._first = data.first_dense(options)[0]

    def build(self, input_shape: Any) -> None:
        """Makes the weights."""
        first = keras.initializers.Constant(0.0)
        self.kernel = self.add_weight(name="kernel", shape=(data.DENSE,), initializer=first)
        self.kernel.assign(self._first)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Maps float[batch, n] to float[batch, 1]."""
        return tf.reduce_sum(inputs * tf.convert_to_tensor(self.kernel), axis=1, keepdims=True)


def _eviction(options: Options, t: int, stays: Sequence[int]) -> Any:
    table = options.tables[t]
    if not table.eviction:
        return None
    return tsps.Eviction(
        table.unused_steps or None,
        max_rows=table.max_rows or None,
        policy=table.eviction,
        half_life=table.use_half_life,
        keep=[*data.kept(options, t), *stays],
    )


def table_config(options: Options, t: int, disk: str, stays: Sequence[int] = ()) -> Any:
    """Returns the `TableConfig` of a table. `stays`: more keys that its eviction keeps."""
    table = options.tables[t]
    admission = tsps.Admission(table.count, table.expected_keys, table.count_half_life) if table.count else None
    memory = TIER_BYTES + (PLACE_BYTES * table.keys if table.eviction else 0)
    return tsps.TableConfig(
        f"table{t}",
        table.dim,
        key_limit=table.keys if table.bounded else None,
        dtype=table.dtype,
        rounding=table.rounding,
        initializer="uniform",
        constraint="non_neg" if table.constraint else None,
        seed=data.table_seed(options, t),
        placement=Sharded(wire=table.pull) if table.placement == "sharded" else "replicated",
        storage=tsps.Tiered(disk, memory=memory) if table.storage == "tiered" else "memory",
        cache=tsps.DeviceCache(rows=CACHE_ROWS, policy=table.cache) if table.cache else None,
        eviction=_eviction(options, t, stays),
        admission=admission,
    )


class Network:
    """The compiled model, and its layers.

    Attributes:
      model: The Keras model. `inputs_of` makes its inputs.
      optimizer: The `DistributedOptimizer`.
      layers: The layer, or the collection, of each table.
      bindings: The binding of each table.
      dense: The dense weights.
    """

    def __init__(self, options: Options, disk: str, stays: Sequence[int] = ()) -> None:
        """Makes tables and model.

        Args:
          options: The options of the job.
          disk: The folder for rows of tiered tables.
          stays: Keys that evictions keep in addition, a planted fault.
        """
        self.options = options
        configs = [table_config(options, t, disk, stays) for t in range(len(options.tables))]
        shared = {
            f"t{t}f{f}": tsps.FeatureConfig(configs[t])
            for t, table in enumerate(options.tables)
            if table.layer == "collection"
            for f in range(table.features)
        }
        collection = tsps.EmbeddingCollection(shared, name="collection") if shared else None
        self.layers = [collection or None for _ in options.tables]
        ids, targets = _inputs(options)
        features = {name: ids[name] for name in shared}
        looked_up = {} if collection is None else collection(features)
        parts = []
        for t, table in enumerate(options.tables):
            if table.layer != "collection":
                self.layers[t] = _layer(table, configs[t], options, t)
                looked_up[f"t{t}f0"] = self.layers[t](ids[f"t{t}f0"])
            for f in range(table.features):
                name = f"t{t}f{f}"
                parts.append(HalfSquaredDistance(name=f"distance_{name}")(looked_up[name], targets[f"y{name}"]))
        dense = keras.Input((data.DENSE,), name="dense", dtype="float32")
        dot = DotProduct(options, name="dot")
        outputs = keras.layers.Add()([*parts, dot(dense)])
        self.model = keras.Model({**ids, **targets, "dense": dense}, outputs)
        self.dense = dot.kernel
        self.bindings = [self._binding(t) for t in range(len(options.tables))]
        self.optimizer = _optimizer(options)
        self.model.compile(self.optimizer, mean_output, jit_compile=False)

    def _binding(self, t: int) -> Any:
        return next(binding for binding in self.layers[t].bindings if binding.config.name == f"table{t}")

    def look_up(self, t: int, keys: np.ndarray) -> np.ndarray:
        """Returns rows from the layer, float32[n, dim]. A layer that reduces looks up bags of one id."""
        table = self.options.tables[t]
        if table.layer == "collection":
            return np.asarray(
                self.layers[t](
                    {
                        f"t{o}f{f}": tf.constant(keys if o == t else data.pool(self.options, o)[:1])
                        for o, table_options in enumerate(self.options.tables)
                        if table_options.layer == "collection"
                        for f in range(table_options.features)
                    }
                )[f"t{t}f0"]
            )
        shaped = keys[:, None] if table.layer in ("sum", "mean") else keys
        return np.asarray(self.layers[t](tf.constant(shaped))).reshape(len(keys), table.dim)


def _inputs(options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    ids, targets = {}, {}
    for t, table in enumerate(options.tables):
        width = data.width_of(options, table)
        for f in range(table.features):
            ids[f"t{t}f{f}"] = keras.Input((width,), name=f"t{t}f{f}", dtype="int64")
            shape = (table.dim,) if table.layer in ("sum", "mean") else (width, table.dim)
            targets[f"yt{t}f{f}"] = keras.Input(shape, name=f"yt{t}f{f}", dtype="float32")
    return ids, targets


def _layer(table: TableOptions, config: Any, options: Options, t: int) -> Any:
    limit = table.keys if table.bounded else None
    weights = {"weights": [data.matrix(options, t, 0)]} if table.weights else {}
    if table.layer == "embedding":
        return tsps.Embedding(limit, table.dim, table=config, name=f"layer{t}", **weights)
    return tsps.EmbeddingReduce(limit, table.dim, table=config, combiner=table.layer, name=f"layer{t}", **weights)


def _optimizer(options: Options) -> Any:
    rule = RULES[options.rule]
    clip = {"clipvalue": options.clip} if options.clip else {}
    name, arguments = rule.keras if options.matched and rule.keras else ("SGD", {})
    sparse = None if options.matched else getattr(tsps.optimizers, rule.table[0])(**rule.table[1])
    delayed = {"staleness": options.staleness, "cycle": options.cycle, "reproducible": True}
    schedule = {
        "synchronous": tsps.schedules.Synchronous,
        "buckets": lambda: tsps.schedules.TimedBuckets(profile_steps=2, max_profiles=1),
        "server": lambda: tsps.schedules.TimedBuckets(profile_steps=2, max_profiles=1, server=True),
        "delayed": lambda: tsps.schedules.DelayedGlobal(**delayed),
    }[options.schedule]()
    return tsps.DistributedOptimizer(
        getattr(keras.optimizers, name)(rule.rate, **arguments, **clip),
        sparse_optimizer=sparse,
        sparse_reduction=options.reduction,
        topology=options.topology,
        wire=options.wire,
        schedule=schedule,
        collectives="local" if options.engine == "local" else "auto",
    )


def inputs_of(options: Options, batch: data.Batch) -> dict[str, np.ndarray]:
    """Returns a batch as inputs of the model."""
    inputs: dict[str, np.ndarray] = {"dense": batch.dense}
    for t, table in enumerate(options.tables):
        for f in range(table.features):
            inputs[f"t{t}f{f}"] = batch.ids[t][:, f]
            targets = batch.targets[t][:, f]
            inputs[f"yt{t}f{f}"] = targets[:, 0] if table.layer in ("sum", "mean") else targets
    return inputs


def dataset_of(options: Options, first: int, n: int, rank: int) -> Any:
    """Returns the batches first .. first + n - 1 of a rank, as pairs of inputs and labels. The labels are not used."""
    batches = [inputs_of(options, data.batch(options, first + i, rank)) for i in range(n)]
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    labels = np.zeros((n, options.batch, 1), np.float32)
    return tf.data.Dataset.from_tensor_slices((stacked, labels))
