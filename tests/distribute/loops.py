"""The training of these tests, for their programs: in a custom loop under a strategy, and in `fit`."""

from __future__ import annotations

from typing import Any

import batches
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps

keras = tf.keras
OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}


def train(
    strategy: Any,
    kind: str,
    reduction: str,
    steps: int,
    *,
    tape: str = "plain",
    eager: bool = False,
    clip: float | None = None,
    placement: Any = "replicated",
    **options: Any,
) -> dict[str, Any]:
    """Trains tables and dense weights with the batches of tests/multirank. Returns first and last values.

    Args:
      strategy: The strategy. Replica r gets the batches of rank r.
      kind: The wrapped optimizer.
      reduction: The value of `sparse_reduction`.
      steps: The number of steps.
      tape: "plain" or "distributed".
      eager: Whether to train without a tf.function.
      clip: The value of `global_clipnorm`.
      placement: The placement of all tables except the third, which is replicated.
      options: The options of DistributedOptimizer.
    """
    with strategy.scope():
        tables = []
        for t, (dim, keys) in enumerate(zip(batches.DIMS, batches.KEYS, strict=True)):
            limit = keys if batches.BOUNDED[t] else None
            tables.append(tsps.Embedding(limit, dim, placement="replicated" if t == 2 else placement))
            tables[-1].build(None)
        dense = [tf.Variable(weight) for weight in batches.first_dense()]
        optimizer = tsps.DistributedOptimizer(
            OPTIMIZERS[kind](batches.RATES[kind], global_clipnorm=clip), sparse_reduction=reduction, **options
        )
    anchors = [layer.trainable_variables[0] for layer in tables]
    numbers = {f"first{t}": np.asarray(layer(batches.all_keys(t))) for t, layer in enumerate(tables)}

    def replica_step(ids: Any, targets: Any, dense_targets: Any) -> None:
        recorded = tf.GradientTape()
        with tsps.DistributedGradientTape(recorded) if tape == "distributed" else recorded as recording:
            loss = tf.add_n([0.5 * tf.reduce_sum((w - t) ** 2) for w, t in zip(dense, dense_targets, strict=True)])
            for t, layer in enumerate(tables):
                # The layer is called twice. Keys that both calls contain must count once.
                half = tf.shape(ids[t])[0] // 2
                for part in (slice(None, half), slice(half, None)):
                    loss += 0.5 * tf.reduce_sum((layer(ids[t][part]) - targets[t][part]) ** 2)
            loss /= strategy.num_replicas_in_sync
        variables = [*anchors, *dense]
        optimizer.apply_gradients(zip(recording.gradient(loss, variables), variables, strict=True))

    def step(*values: Any) -> None:
        strategy.run(replica_step, args=values)

    if not eager:
        step = tf.function(step, reduce_retracing=True, autograph=False)
    for i in range(steps):
        ranks = [batches.batch(i, rank) for rank in range(strategy.num_replicas_in_sync)]
        step(
            *(
                [
                    _of_replicas(strategy, [getattr(batch_of_rank, field)[k] for batch_of_rank in ranks])
                    for k in range(n)
                ]
                for field, n in (("ids", len(tables)), ("targets", len(tables)), ("dense_targets", len(dense)))
            )
        )
    numbers |= {f"last{t}": np.asarray(layer(batches.all_keys(t))) for t, layer in enumerate(tables)}
    numbers |= {f"dense{i}": weight.numpy() for i, weight in enumerate(dense)}
    numbers |= {name: np.array(value) for name, value in optimizer.statistics().items()}
    return numbers


def _of_replicas(strategy: Any, values: list[np.ndarray]) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


def admitted(strategy: Any) -> list[list[int]]:
    """Trains two batches of two samples with `tsps.Admission(3, ...)`; returns the keys with rows after each batch."""
    with strategy.scope():
        inputs = keras.layers.Input((3,), dtype="int64")
        layer = tsps.Embedding(None, 4, admission=tsps.Admission(3, 1000))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
        model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    keys = []
    for ids in ([[1, 1, 2], [1, 2, 3]], [[2, 4, 4], [3, 4, 5]]):  # a sample for each replica
        model.fit(np.array(ids), np.ones((2, 1), np.float32), batch_size=2, verbose=0)
        keys.append(sorted(layer.bindings[0].reader().keys().tolist()))
    return keys


def fit(strategy: Any, ours: bool, steps_per_execution: int = 1, placement: Any = "replicated") -> dict[str, Any]:
    """Trains a small model by `fit`, with a table and DistributedOptimizer or with Keras alone. Both must do the same.

    Args:
      strategy: The strategy.
      ours: Whether to use a table and DistributedOptimizer.
      steps_per_execution: The argument of `compile`.
      placement: The placement of the table.
    """
    random = np.random.default_rng(0)
    ids, targets = random.integers(0, 50, (48, 3)), random.normal(size=(48, 1)).astype("float32")
    with strategy.scope():
        start = keras.initializers.Constant(0.1)
        inputs = keras.layers.Input((3,), dtype="int64")
        options = {"placement": placement} if ours else {}
        layer = (tsps.Embedding if ours else keras.layers.Embedding)(50, 4, embeddings_initializer=start, **options)
        outputs = keras.layers.Dense(1, kernel_initializer=start)(keras.layers.Flatten()(layer(inputs)))
        model = keras.Model(inputs, outputs)
        optimizer = keras.optimizers.SGD(0.5)
        if ours:  # Keras takes the mean over ranks
            optimizer = tsps.DistributedOptimizer(optimizer, sparse_reduction="average")
        model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    callbacks = [tsps.callbacks.BroadcastVariables(), tsps.callbacks.MetricAverage()] if ours else []
    history = model.fit(ids, targets, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return {
        "losses": np.array(history.history["loss"]),
        "kernel": np.asarray(model.layers[-1].get_weights()[0]),
        "rows": np.asarray(layer(tf.range(50))),
        "evaluated": np.array(model.evaluate(ids, targets, batch_size=8, verbose=0)),
        "predicted": model.predict(ids, batch_size=8, verbose=0),
    }
