"""Rows of "What works with what" that work. The reference is Keras on both ranks' samples, unless noted otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from registry import works
from twins import (
    BATCH,
    BATCHES,
    DIM,
    IDS,
    ROWS,
    TARGETS,
    KerasEmbedding,
    assert_equal,
    assert_fit,
    assert_trains_alike,
    both,
    fit,
    keras,
    loop,
    optimizer,
    pair,
    policy,
    step_of,
    wrapped,
)

import tf_sparse_ps as tsps

WAYS = "`fit`, custom training loops, eager, `tf.function`, loops inside a graph"
VERSIONS = "Keras 3; Keras 2; Keras 2's legacy optimizers"
RATES = "learning-rate schedules, `ReduceLROnPlateau`, `LearningRateScheduler`, warm-up"
OTHERS = "Nadam, Adamax, Adadelta, ..."
SPARSE = "sparse gradients of other layers (`keras.layers.Embedding`)"
UNEQUAL = "empty batches; exact means over batches of different sizes"


# --- ways to train ---


@works("training", WAYS)
def fit_in_a_graph(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("SGD", 0.05))


@works("training", WAYS)
def loop_of_a_function(rank: Any) -> None:
    ours, reference = pair()
    our_optimizer, keras_optimizer = wrapped(optimizer("Adagrad", 0.05)), optimizer("Adagrad", 0.05)
    loop(tf.function(step_of(ours, our_optimizer.apply_gradients)), rank.rank)
    loop(tf.function(step_of(reference, keras_optimizer.apply_gradients)), None)
    assert_equal(rank, ours, reference)


@works("training", WAYS)
def loop_that_is_eager(rank: Any) -> None:
    ours, reference = pair()
    our_optimizer, keras_optimizer = wrapped(optimizer("Adagrad", 0.05)), optimizer("Adagrad", 0.05)
    loop(step_of(ours, our_optimizer.apply_gradients), rank.rank, epochs=1)
    loop(step_of(reference, keras_optimizer.apply_gradients), None, epochs=1)
    assert_equal(rank, ours, reference)


@works("training", WAYS)
def loop_inside_a_graph(rank: Any) -> None:
    ours, reference = pair()
    our_optimizer, keras_optimizer = wrapped(optimizer("Adagrad", 0.05)), optimizer("Adagrad", 0.05)

    @tf.function
    def epoch(ids: tf.Tensor, targets: tf.Tensor) -> None:
        step = step_of(ours, our_optimizer.apply_gradients)
        for i in tf.range(BATCHES):
            step(ids[i * BATCH : (i + 1) * BATCH], targets[i * BATCH : (i + 1) * BATCH])

    for _ in range(3):
        epoch(tf.constant(IDS[rank.rank]), tf.constant(TARGETS[rank.rank]))
    loop(tf.function(step_of(reference, keras_optimizer.apply_gradients)), None)
    assert_equal(rank, ours, reference)


@works("training", VERSIONS)
def every_rule(rank: Any) -> None:
    for name in ("SGD", "Adagrad", "Adam"):
        assert_fit(rank, lambda name=name: optimizer(name, 0.05))


@works("training", VERSIONS, keras=2)
def every_legacy_optimizer(rank: Any) -> None:
    for name in ("legacy.SGD", "legacy.Adagrad", "legacy.Adam"):
        assert_fit(rank, lambda name=name: optimizer(name, 0.05))


@works("training", VERSIONS)
def trains_on_after_saving_and_loading(rank: Any) -> None:
    ours, reference = pair()
    ours.compile(wrapped(optimizer("Adam", 0.05)), "mse")
    reference.compile(optimizer("Adam", 0.05), "mse")
    fit(ours, rank.rank, epochs=1)
    path = rank.folder / f"model-{rank.rank}.keras"
    ours.save(path)
    again = keras.models.load_model(path)
    fit(again, rank.rank, epochs=2)
    fit(reference, None)
    assert_equal(rank, again, reference)


@works("training", "`run_eagerly`, `steps_per_execution`")
def compiled_to_run_eagerly(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("SGD", 0.05), run_eagerly=True)


@works("training", "`run_eagerly`, `steps_per_execution`")
def compiled_with_several_steps_per_execution(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("Adagrad", 0.05), steps_per_execution=4)


# --- rates and clipping ---


@works("training", RATES)
def schedule_of_the_rate(rank: Any) -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3, 7], [0.0, 0.2, 0.01])
    assert_fit(rank, lambda: optimizer("Adagrad", schedule))


@works("training", RATES)
def callback_on_a_plateau(rank: Any) -> None:
    def callbacks() -> list[Any]:
        return [keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=100.0, patience=1, factor=0.1)]

    average = (tsps.callbacks.MetricAverage(),)
    ours, _ = assert_fit(rank, lambda: optimizer("SGD", 0.3), callbacks=callbacks, ours_only=average)
    assert float(np.asarray(ours.optimizer.learning_rate)) < 0.2


@works("training", RATES)
def callback_that_sets_the_rate(rank: Any) -> None:
    def callbacks() -> list[Any]:
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: [0.1, 0.01, 0.2][epoch])]

    assert_fit(rank, lambda: optimizer("Adam", 0.3), callbacks=callbacks)


class _WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Increases from 0 to 0.1 in ten updates."""

    def __call__(self, step: Any) -> Any:
        return 0.1 * tf.minimum(1.0, (tf.cast(step, tf.float32) + 1.0) / 10.0)

    def get_config(self) -> dict[str, Any]:
        return {}


@works("training", RATES)
def warm_up(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("SGD", _WarmUp()))


def _clipped(rank: Any, clip: dict[str, float]) -> None:
    ours, _ = assert_fit(rank, lambda: optimizer("SGD", 0.5, **clip))
    free, _ = pair()
    free.compile(wrapped(optimizer("SGD", 0.5)), "mse")
    fit(free, rank.rank)
    differences = [np.abs(a - b).max() for a, b in zip(ours.get_weights(), free.get_weights(), strict=True)]
    assert min(differences[:2]) > 1e-3, "the limit must change the updates, otherwise this case tests nothing"


@works("training", "`clipnorm`")
def clipping_by_norm(rank: Any) -> None:
    _clipped(rank, {"clipnorm": 0.05})


@works("training", "`clipvalue`")
def clipping_by_value(rank: Any) -> None:
    _clipped(rank, {"clipvalue": 0.01})


@works("training", "`global_clipnorm`")
def clipping_by_the_global_norm(rank: Any) -> None:
    _clipped(rank, {"global_clipnorm": 0.05})


# --- optimizers that treat tables and dense weights differently ---


def _assert_hybrid(rank: Any, make: Any) -> None:
    """Dense weights are updated as by the Keras optimizer, and rows as by Keras's SGD."""
    ours, reference = pair()
    ours.compile(wrapped(make(), sparse_optimizer="sgd"), "mse")
    fit(ours, rank.rank)
    of_rows, of_dense = optimizer("SGD", 0.05), make()

    def apply(pairs: list[Any]) -> None:
        of_rows.apply_gradients(pairs[:1])
        of_dense.apply_gradients(pairs[1:])

    # The reference runs in a graph, like `fit`, because Keras 2's Nadam counts updates when it is traced.
    loop(tf.function(step_of(reference, apply)), None)
    assert_equal(rank, ours, reference)


@works("training", "weight decay, but AdamW's")
def weight_decay_of_dense_weights(rank: Any) -> None:
    _assert_hybrid(rank, lambda: optimizer("SGD", 0.05, weight_decay=0.1))
    _assert_hybrid(rank, lambda: optimizer("AdamW", 0.05))


@works("training", "momentum, AMSGrad, AdamW, RMSprop, Ftrl")
def rules_of_tables(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("SGD", 0.02, momentum=0.9))
    assert_fit(rank, lambda: optimizer("SGD", 0.02, momentum=0.9, nesterov=True))
    assert_fit(rank, lambda: optimizer("Adam", 0.02, amsgrad=True))
    assert_fit(rank, lambda: optimizer("AdamW", 0.02, weight_decay=0.1))
    assert_fit(rank, lambda: optimizer("RMSprop", 0.02, momentum=0.5))
    assert_fit(rank, lambda: optimizer("Ftrl", 0.02, l1_regularization_strength=0.001))


@works("training", OTHERS)
def dense_weights_keep_rules_that_tables_do_not_have(rank: Any) -> None:
    _assert_hybrid(rank, lambda: optimizer("Nadam", 0.05))
    _assert_hybrid(rank, lambda: optimizer("Adamax", 0.05))
    _assert_hybrid(rank, lambda: optimizer("Adadelta", 0.05))


@works("training", "several optimizers in one model")
def two_optimizers(rank: Any) -> None:
    ours, reference = pair()

    def two(wrap: Any) -> Any:
        first, second = wrap(optimizer("Adagrad", 0.05)), wrap(optimizer("Adam", 0.02))

        def apply(pairs: list[Any]) -> None:
            first.apply_gradients(pairs[:3])
            second.apply_gradients(pairs[3:])

        return apply

    before = int(tsps.job.current().step.numpy())
    loop(tf.function(step_of(ours, two(wrapped))), rank.rank)
    loop(step_of(reference, two(lambda inner: inner)), None)
    assert_equal(rank, ours, reference)
    assert int(tsps.job.current().step.numpy()) == before + 3 * BATCHES


# --- models ---


@works("training", "models of tables only; models without tables")
def tables_only(rank: Any) -> None:
    def make_model(layer: Any) -> Any:
        ids = keras.layers.Input((3,), dtype="int64")
        return keras.Model(ids, keras.layers.GlobalAveragePooling1D()(layer(ids)))

    reference, ours = make_model(KerasEmbedding(ROWS, 1)), make_model(tsps.Embedding(ROWS, 1))
    ours.set_weights(reference.get_weights())
    assert_trains_alike(rank, ours, reference, lambda: optimizer("Adam", 0.05))


@works("training", "models of tables only; models without tables")
def no_tables(rank: Any) -> None:
    ours, reference = (keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)]) for _ in range(2))
    ours.set_weights(reference.get_weights())
    assert_trains_alike(rank, ours, reference, lambda: optimizer("SGD", 0.001, momentum=0.9))


def _assert_beside_keras_layer(rank: Any, rows: int) -> None:
    def make_model(layer: Any) -> Any:
        ids = keras.layers.Input((3,), dtype="int64")
        keras_layer = keras.layers.Embedding(rows, 8, embeddings_initializer="ones", name="of_keras")
        hidden = keras.layers.Concatenate()(
            [keras.layers.Flatten()(layer_of_ids(ids)) for layer_of_ids in (layer, keras_layer)]
        )
        return keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(hidden))

    ours, reference = make_model(tsps.Embedding(ROWS, DIM)), make_model(keras.layers.Embedding(ROWS, DIM))
    ours.set_weights(reference.get_weights())
    ours.compile(wrapped(optimizer("SGD", 0.01)), "mse")
    reference.compile(optimizer("SGD", 0.01), "mse")
    fit(ours, rank.rank, epochs=1), fit(reference, None, epochs=1)
    for a, b in zip(ours.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert np.abs(ours.get_layer("of_keras").get_weights()[0][:ROWS] - 1).max() > 1e-3
    rank.same([float(np.abs(weight).sum()) for weight in ours.get_weights()])


@works("training", SPARSE)
def small_embedding_of_keras_beside_ours(rank: Any) -> None:
    _assert_beside_keras_layer(rank, ROWS)


@works("training", SPARSE)
def large_embedding_of_keras_beside_ours(rank: Any) -> None:
    _assert_beside_keras_layer(rank, 2**17 + 1)  # times 8: more than 2^20 elements


@works("training", "`trainable=False`")
def frozen_table(rank: Any) -> None:
    ours, reference = pair()
    for trained_model in (ours, reference):
        trained_model.layers[1].trainable = False
    shared = wrapped("sgd").statistics()["rows_shared"]
    before = ours.get_weights()[0].copy()
    assert_trains_alike(rank, ours, reference, lambda: optimizer("SGD", 0.05))
    np.testing.assert_array_equal(ours.get_weights()[0], before)
    assert ours.optimizer.statistics()["rows_shared"] == shared, "no traffic"


# --- precision ---


@works("training", "`mixed_bfloat16`")
def policy_of_bfloat16(rank: Any) -> None:
    with policy("mixed_bfloat16"):
        # Gradients have 8 bits, and the sum of two ranks has another order than that of a batch of both.
        ours, _ = assert_fit(rank, lambda: optimizer("SGD", 0.05), tolerance=0.03)
        assert ours.layers[1](tf.constant([[1]])).dtype == tf.bfloat16


@works("training", "`loss_scale_factor` (Keras 3)", keras=3)
def fixed_loss_scale(rank: Any) -> None:
    ours, reference = pair()
    ours.compile(wrapped(optimizer("Adagrad", 0.05, loss_scale_factor=1024.0)), "mse")
    reference.compile(optimizer("Adagrad", 0.05), "mse")
    fit(ours, rank.rank), fit(reference, None)
    assert_equal(rank, ours, reference)


# --- schedules, and ranks that differ ---


@works("training", "`schedule=`: `TimedBuckets`, `DelayedGlobal`")
def timed_buckets(rank: Any) -> None:
    for server in (False, True):
        schedule = tsps.schedules.TimedBuckets(profile_steps=2, max_profiles=1, server=server)
        ours, _ = assert_fit(rank, lambda: optimizer("SGD", 0.05), wrap={"schedule": schedule})
        assert ours.optimizer.schedule_report()["plan"] is not None


@works("training", "`schedule=`: `TimedBuckets`, `DelayedGlobal`")
def delayed_global(rank: Any) -> None:
    ours, reference = pair()
    schedule = tsps.schedules.DelayedGlobal(staleness=1, cycle=4)
    ours.compile(wrapped(optimizer("SGD", 0.05), schedule=schedule), "mse")
    reference.compile(optimizer("SGD", 0.05), "mse")
    drain = tsps.callbacks.Drain()
    losses = fit(ours, rank.rank, epochs=20, callbacks=[drain, tsps.callbacks.MetricAverage()]).history["loss"]
    expected = fit(reference, None, epochs=20).history["loss"]
    rank.same([weight.tolist() for weight in ours.get_weights()])
    # The trajectory differs, and the end is the same.
    assert abs(losses[-1] - expected[-1]) < 0.1 * expected[0], (losses, expected)
    assert ours.optimizer.schedule_report()["most_late"] <= 1


@works("training", "evaluation or prediction on some ranks only")
def evaluation_on_one_rank(rank: Any) -> None:
    class Evaluates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rank.rank == 0:
                seen.append(self.model(tf.constant(IDS[1][:BATCH]), training=False).numpy())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if rank.rank == 0:
                self.model.evaluate(IDS[1], TARGETS[1], verbose=0)
                self.model.predict(IDS[1], verbose=0)

    seen: list[np.ndarray] = []
    assert_fit(rank, lambda: optimizer("Adagrad", 0.05), ours_only=(Evaluates(),))
    assert len(seen) == (3 * BATCHES if rank.rank == 0 else 0)


@works("training", "ranks with different numbers of batches")
def equal_steps(rank: Any) -> None:
    """Rank 1 has half of the batches. The other steps have rank 0's batches alone."""
    ours, reference = pair()
    samples = BATCH * (BATCHES // (1 + rank.rank))
    data = tf.data.Dataset.from_tensor_slices((IDS[rank.rank][:samples], TARGETS[rank.rank][:samples])).batch(BATCH)
    equal = tsps.callbacks.EqualSteps(data)
    assert (equal.steps, equal.own_steps) == (BATCHES, BATCHES // (1 + rank.rank))
    our_optimizer, keras_optimizer = wrapped(optimizer("SGD", 0.05)), optimizer("SGD", 0.05)
    ours.compile(our_optimizer, "mse")
    ours.fit(equal.dataset, epochs=2, verbose=0, callbacks=[equal])
    step = step_of(reference, keras_optimizer.apply_gradients)
    whole = BATCH * 2
    for _ in range(2):
        for i in range(BATCHES):
            part = slice(i * BATCH, (i + 1) * BATCH)
            if i < BATCHES // 2:
                part = slice(i * whole, (i + 1) * whole)
                step(tf.constant(both(IDS)[part]), tf.constant(both(TARGETS)[part]))
            else:
                step(tf.constant(IDS[0][part]), tf.constant(TARGETS[0][part]))
    assert_equal(rank, ours, reference)


@works("training", UNEQUAL)
def batches_of_different_sizes(rank: Any) -> None:
    """Rank 1's batches are smaller, and some are empty. With sizes as weights, a step is Keras's on all samples."""
    ours, reference = pair()
    our_optimizer, keras_optimizer = wrapped(optimizer("SGD", 0.05), sparse_reduction="sum"), optimizer("SGD", 0.05)
    sizes = [[4, 4, 4, 4], [4, 2, 0, 1]]

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None, 1]), tf.TensorSpec([])])
    def step(ids: tf.Tensor, targets: tf.Tensor, total: tf.Tensor) -> None:
        n_own = tf.cast(tf.shape(ids)[0], tf.float32)
        our_optimizer.rank_weight.assign(n_own)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((ours(ids, training=True) - targets) ** 2)
        variables = ours.trainable_variables
        first, *other_gradients = tape.gradient(loss, variables)
        # Tables distinguish only weight 0 from others, so this turns their sum over ranks into a mean over samples.
        first = tf.IndexedSlices(first.values * (n_own / total), first.indices)
        our_optimizer.apply_gradients(list(zip([first, *other_gradients], variables, strict=True)))

    plain = step_of(reference, keras_optimizer.apply_gradients)
    for i in range(4):
        parts = [slice(i * BATCH, i * BATCH + of_rank[i]) for of_rank in sizes]
        own_part = parts[rank.rank]
        total = float(sizes[0][i] + sizes[1][i])
        step(tf.constant(IDS[rank.rank][own_part]), tf.constant(TARGETS[rank.rank][own_part]), tf.constant(total))
        ids, targets = (np.concatenate([arrays[r][parts[r]] for r in (0, 1)]) for arrays in (IDS, TARGETS))
        plain(tf.constant(ids), tf.constant(targets))
    assert_equal(rank, ours, reference)
    assert np.isfinite(ours.get_weights()[0]).all()
