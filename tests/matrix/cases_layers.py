"""Rows of "The layers beside Keras's": arguments and behaviour of the layer, in a job of two ranks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from registry import refused, works
from twins import (
    BATCH,
    BATCHES,
    DIM,
    IDS,
    KERAS_3,
    ROWS,
    TARGETS,
    KerasEmbedding,
    assert_equal,
    assert_fit,
    assert_trains_alike,
    fit,
    keras,
    loop,
    model,
    optimizer,
    pair,
    step_of,
    wrapped,
)

import tf_sparse_ps as tsps

TYPES = "id types"
STRINGS = "ids that are strings"
CAST = "the same through a `keras.Input` of an integer type, or a Sequential"
INITIALIZERS = "`embeddings_initializer`: zeros, ones, constant, uniform, normal, truncated normal"
SCALED = "glorot, he, lecun, VarianceScaling"
OWN = "other and custom initializers"
CONSTRAINTS = "`embeddings_constraint`: NonNeg; MaxNorm, UnitNorm, MinMaxNorm with `axis=1`"
NARROW = 'rows of 16 bits: `table=TableConfig(..., dtype="bfloat16")`, or "float16"'
ERASE = "`layer.erase`"
EVICTION = "`eviction=`, `layer.evict`"
ADMISSION = "`admission=`"
MATRIX = "`get_weights`, `set_weights`, of the model too"
CONTROL_FLOW = "inside `tf.cond`, `tf.while_loop`, `tf.map_fn`, `tf.recompute_grad`"


def _rows(layer: Any) -> np.ndarray:
    """Returns all rows of a bounded layer, as both ranks read them."""
    return np.asarray(layer(tf.range(ROWS)))


def _assert_refused(act: Callable[[], Any], words: str) -> None:
    with pytest.raises(Exception, match=re.escape(words)):
        act()


def _assert_trains_like_keras(rank: Any, **options: Any) -> None:
    """Trains with an option that both layers have."""
    ours, reference = pair(**options)
    assert_trains_alike(rank, ours, reference, lambda: optimizer("SGD", 0.05))


# --- arguments ---


@works("layers", "`input_dim`, `output_dim`")
def open_and_bounded_vocabularies(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("Adagrad", 0.05))
    ours = model(tsps.Embedding(None, DIM))
    ours.compile(wrapped(optimizer("Adagrad", 0.05)), "mse")
    table = ours.layers[1].bindings[0].reader()
    assert len(table) == 0
    far = IDS[rank.rank] * 2**40 - 7 * rank.rank  # training on either rank inserts rows
    ours.fit(far, TARGETS[rank.rank], batch_size=BATCH, verbose=0, shuffle=False)
    keys = {int(key) for key in np.unique(IDS[0]) * 2**40}
    assert set(np.asarray(table.keys()).tolist()) == keys | {key - 7 for key in keys}
    rank.same(np.asarray(ours.layers[1](tf.constant(sorted(keys)))).tolist())


@works("layers", "ids out of range")
def ids_out_of_range(rank: Any) -> None:
    """The case is adapted: these ids are an error. Neither rank trains on a batch with them, and both on the next."""
    ours, reference = pair()
    ours.compile(wrapped(optimizer("SGD", 0.05)), "mse")
    reference.compile(optimizer("SGD", 0.05), "mse")
    layer = ours.layers[1]
    for wrong_id in (-1, ROWS):
        _assert_refused(lambda wrong_id=wrong_id: layer(tf.constant([wrong_id])), f"{wrong_id}")
        _assert_refused(lambda wrong_id=wrong_id: tf.function(layer)(tf.constant([wrong_id])), f"{wrong_id}")
    rank.ranks.barrier("matrix.looked")
    fit(ours, rank.rank), fit(reference, None)
    assert_equal(rank, ours, reference)


@works("layers", TYPES)
def every_integer_type(rank: Any) -> None:
    ours, _ = pair()
    rows = _rows(ours.layers[1])
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        look = tf.function(ours.layers[1])
        np.testing.assert_array_equal(look(tf.constant([3, 11], dtype)), rows[[3, 11]])


def _ids_refused(name: str, words: str, ids: Callable[[], Any]) -> None:
    def case(rank: Any) -> None:
        tf.function(tsps.Embedding(None, DIM))(ids())

    case.__name__ = f"ids_that_are_{name}"
    refused("layers", TYPES, words)(case)


_ids_refused("beyond_int64", "int64|9223372036854775808", lambda: tf.constant([2**63], tf.uint64))
_ids_refused("floats", "integers|integer", lambda: tf.constant([1.5]))
_ids_refused("booleans", "integers|integer", lambda: tf.constant([True]))


@works("layers", STRINGS)
def strings_train_like_their_fingerprints(rank: Any) -> None:
    words = np.array([f"word {number}" * (number + 1) for number in range(ROWS)], object)[IDS[rank.rank]]
    ids = {"string": tf.constant(words), "int64": tf.constant(tsps.keys.fingerprint(words))}
    models = {dtype: model(tsps.Embedding(None, DIM, "zeros"), dtype=dtype) for dtype in ids}
    for layer, like in zip(models["int64"].layers[2:], models["string"].layers[2:], strict=True):
        layer.set_weights(like.get_weights())
    for dtype, one_model in models.items():
        one_model.compile(wrapped(optimizer("Adagrad", 0.05)), "mse")
        one_model.fit(ids[dtype], TARGETS[rank.rank], batch_size=BATCH, verbose=0, shuffle=False)
    of_strings, of_integers = (models[dtype].layers[1].bindings[0].reader() for dtype in ids)
    assert len(of_strings) == ROWS
    keys = np.sort(of_strings.keys())
    rows = of_strings.lookup(keys)
    np.testing.assert_array_equal(rows, of_integers.lookup(keys))
    rank.same(rows.tolist())


@works("layers", ERASE)
def rows_are_erased_between_steps(rank: Any) -> None:
    """Both ranks erase an id in `fit`. The next step makes a new row, with new slots, and the ranks stay equal."""
    ours = model(tsps.Embedding(None, DIM, "zeros"))
    ours.compile(wrapped(optimizer("Adagrad", 0.05)), "mse")
    layer = ours.layers[1]
    last = BATCHES - 1
    erase = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch == last and layer.erase([3]))
    fit(ours, rank.rank, epochs=1, callbacks=[erase])
    table = layer.bindings[0].reader()
    assert len(table) == ROWS - 1
    fit(ours, rank.rank, epochs=1, sample_weight=np.zeros(len(IDS[rank.rank])))  # all gradients are 0
    _, rows, slots = table.entries(np.arange(ROWS))
    np.testing.assert_array_equal(rows[3], np.zeros(DIM))
    np.testing.assert_array_equal(slots[0][3], np.full(DIM, 0.1, np.float32))
    assert np.delete(slots[0], 3, 0).min() > 0.1
    _assert_refused(lambda: layer.erase([4 + rank.rank]), "rank 0 has int64[1]")
    assert len(table) == ROWS
    rank.same([rows.tolist(), slots[0].tolist()])


@works("layers", EVICTION)
def rows_that_are_evicted(rank: Any) -> None:
    layer = tsps.Embedding(None, DIM, eviction=tsps.Eviction(1, max_rows=ROWS + 1, keep=[2]))
    ours = model(layer)
    ours.compile(wrapped(optimizer("Adagrad", 0.1)), "mse")
    batch = np.arange(BATCHES * BATCH)[:, np.newaxis] // BATCH
    ours.fit(IDS[rank.rank] + ROWS * batch, TARGETS[rank.rank], batch_size=BATCH, shuffle=False, verbose=0)
    table = layer.bindings[0].reader()
    expected = np.array([2, *range((BATCHES - 1) * ROWS, BATCHES * ROWS)])  # those of the last batch, and the kept one
    np.testing.assert_array_equal(np.sort(table.keys()), expected)
    assert table.stats()["evicted_unused"] > 0
    rank.same(table.metadata(expected)["use"].tolist())
    layer.evict(tsps.Eviction(max_rows=2))
    assert len(table) == 2
    _assert_refused(lambda: layer.evict(tsps.Eviction(3 + rank.rank)), "rank 0 has")


@works("layers", ADMISSION)
def keys_that_are_admitted(rank: Any) -> None:
    layer = tsps.Embedding(None, DIM, admission=tsps.Admission(3, 1000))
    ours = model(layer)
    ours.compile(wrapped(optimizer("Adagrad", 0.1)), "mse")
    ours.fit(IDS[rank.rank], TARGETS[rank.rank], batch_size=BATCH, shuffle=False, verbose=0)
    keys, counts = np.unique(np.concatenate(IDS), return_counts=True)
    table = layer.bindings[0].reader()
    np.testing.assert_array_equal(np.sort(table.keys()), keys[counts >= 3])
    seldom = 5000 + rank.rank  # once on each rank, and twice on none
    ids = np.where(np.arange(IDS[rank.rank].size).reshape(IDS[rank.rank].shape) == 0, seldom, IDS[rank.rank])
    ours.fit(ids[:BATCH], TARGETS[rank.rank][:BATCH], batch_size=BATCH, verbose=0)
    assert not np.isin([5000, 5001], table.keys()).any()
    both = np.where(ids == seldom, 6000, ids)  # once on each rank
    for times in (1, 2):
        assert np.isin(6000, table.keys()) == (times > 1 and 2 * (times - 1) >= 3)
        ours.fit(both[:BATCH], TARGETS[rank.rank][:BATCH], batch_size=BATCH, verbose=0)
    assert np.isin(6000, table.keys())
    rank.same(np.sort(table.keys()).tolist())


@refused("layers", "strings as ids of a bounded vocabulary", "StringLookup")
def strings_in_a_bounded_vocabulary(rank: Any) -> None:
    model(tsps.Embedding(ROWS, DIM), dtype="string")


@refused("layers", CAST, "float")
def floats_that_keras_casts(rank: Any) -> None:
    ours = model(tsps.Embedding(ROWS, DIM))
    ours.compile(wrapped(optimizer("SGD", 0.05)), "mse")
    ours.fit(IDS[rank.rank].astype("float32") + 0.5, TARGETS[rank.rank], batch_size=BATCH, verbose=0)


@works("layers", "input rank, ragged, sparse")
def ragged_and_sparse_ids(rank: Any) -> None:
    ours, reference = (one_model.layers[1] for one_model in pair(keras.layers.Embedding))
    for ids in (tf.constant(3), tf.constant([[[1], [2]]]), tf.constant([[1, 0, 2]])):
        np.testing.assert_array_equal(tf.function(ours)(ids), reference(ids))
    ragged = tf.ragged.constant([[1, 2], [], [3]])
    assert ours(ragged).to_list() == reference(ragged).to_list()
    sparse = tf.sparse.from_dense([[1, 0, 2], [0, 0, 0]])
    np.testing.assert_allclose(ours(sparse), reference(sparse), rtol=1e-6)


@works("layers", INITIALIZERS)
def initializers_that_tables_have(rank: Any) -> None:
    names = ("zeros", "ones", keras.initializers.Constant(0.3), "uniform", "normal", "truncated_normal")
    for name in names:
        for vocabulary in (1000, None):
            ours = tsps.Embedding(vocabulary, 16, embeddings_initializer=name)
            reference = keras.layers.Embedding(1000, 16, embeddings_initializer=name)
            rows, expected = (np.asarray(layer(tf.range(1000))) for layer in (ours, reference))
            np.testing.assert_allclose(rows.mean(), expected.mean(), atol=0.002)
            np.testing.assert_allclose(rows.std(), expected.std(), atol=0.002)
            rank.same(float(rows.sum()))


@works("layers", "`keras.utils.set_random_seed`")
def seeds(rank: Any) -> None:
    """Rank 0's seed counts, when the first table is made. Later seeds change nothing."""
    rows_found = []
    for _ in range(2):
        keras.utils.set_random_seed(31 + rank.rank)
        rows_found.append(_rows(tsps.Embedding(ROWS, DIM)))
        rank.same(rows_found[-1].tolist())
    assert (rows_found[0] != rows_found[1]).any()


@works("layers", SCALED)
def initializers_of_the_whole_matrix(rank: Any) -> None:
    for name in ("glorot_uniform", "he_normal", "lecun_uniform", keras.initializers.VarianceScaling(2.0)):
        ours, reference = (
            kind(2000, 16, embeddings_initializer=name) for kind in (tsps.Embedding, keras.layers.Embedding)
        )
        rows, expected = (np.asarray(layer(tf.range(2000))) for layer in (ours, reference))
        np.testing.assert_allclose(rows.std(), expected.std(), rtol=0.05)
        rank.same(float(rows.sum()))


@refused("layers", SCALED, "unbounded.*input_dim")
def initializers_of_a_matrix_that_is_not_there(rank: Any) -> None:
    tsps.Embedding(None, DIM, "glorot_uniform")


@works("layers", OWN)
def custom_initializer(rank: Any) -> None:
    def drawn(shape: Any, dtype: Any = None) -> Any:
        return tf.fill(shape, 1.0 + rank.rank)  # rank 0's values are used

    ours = tsps.Embedding(ROWS, DIM, embeddings_initializer=drawn)
    np.testing.assert_array_equal(_rows(ours), np.ones((ROWS, DIM)))
    orthogonal = tsps.Embedding(ROWS, DIM, "orthogonal")
    rows = _rows(orthogonal)
    np.testing.assert_allclose(rows.T @ rows, np.eye(DIM), atol=1e-5)


@refused("layers", "`embeddings_regularizer`", "activity_regularizer")
def regularizer_of_rows(rank: Any) -> None:
    tsps.Embedding(ROWS, DIM, embeddings_regularizer="l2")


@works("layers", "`activity_regularizer`")
def regularizer_of_what_was_looked_up(rank: Any) -> None:
    # The loss is a sum over the batch, divided by its size: the mean over two ranks is that of both batches.
    _assert_trains_like_keras(rank, activity_regularizer=keras.regularizers.L2(0.1))


@works("layers", CONSTRAINTS)
def constraint_of_rows(rank: Any) -> None:
    for constraint in (
        keras.constraints.NonNeg(),
        keras.constraints.MaxNorm(0.05, axis=1),
        keras.constraints.UnitNorm(axis=-1),
        keras.constraints.MinMaxNorm(0.5, 0.75, rate=0.5, axis=1),
    ):
        _assert_trains_like_keras(rank, embeddings_constraint=constraint)


@refused("layers", "`embeddings_constraint` of columns, or of one's own", "axis=1")
def constraint_of_columns(rank: Any) -> None:
    _assert_refused(lambda: tsps.Embedding(ROWS, DIM, embeddings_constraint=lambda rows: rows), "NonNeg")
    tsps.Embedding(ROWS, DIM, embeddings_constraint="unit_norm")


@works("layers", NARROW)
def rows_of_16_bits(rank: Any) -> None:
    for dtype in ("bfloat16", "float16"):
        reference = model(KerasEmbedding(ROWS, DIM))
        ours = model(tsps.Embedding(ROWS, DIM, table=tsps.TableConfig("t", DIM, key_limit=ROWS, dtype=dtype)))
        ours.set_weights(reference.get_weights())
        assert_trains_alike(rank, ours, reference, lambda: optimizer("Adagrad", 0.05), tolerance=0.05)
        rows = _rows(ours.layers[1])
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, tf.cast(tf.cast(rows, dtype), "float32"))


@works("layers", "`mask_zero`")
def masks(rank: Any) -> None:
    def make_model(layer: Any) -> Any:
        ids = keras.layers.Input((3,), dtype="int64")
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.LSTM(4)(layer(ids))))

    reference, ours = (make_model(kind(ROWS, DIM, mask_zero=True)) for kind in (keras.layers.Embedding, tsps.Embedding))
    ours.set_weights(reference.get_weights())
    assert_trains_alike(rank, ours, reference, lambda: optimizer("SGD", 0.05))


@works("layers", "`weights=`")
def given_rows(rank: Any) -> None:
    matrix = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
    ours = tsps.Embedding(ROWS, DIM, weights=[matrix])
    np.testing.assert_array_equal(_rows(ours), matrix)
    rank.same(_rows(ours).tolist())


@works("layers", "`input_length`, `input_shape` (Keras 2)", keras=2)
def input_length_of_keras_2(rank: Any) -> None:
    def make_model(kind: Any, **options: Any) -> Any:
        return keras.Sequential([kind(ROWS, DIM, **options), keras.layers.Flatten(), keras.layers.Dense(1)])

    for options in ({"input_length": 3}, {"input_shape": (3,)}):
        reference, ours = make_model(keras.layers.Embedding, **options), make_model(tsps.Embedding, **options)
        ours.set_weights(reference.get_weights())
        assert_trains_alike(rank, ours, reference, lambda: optimizer("SGD", 0.05))


@refused("layers", "`lora_rank`, `lora_alpha`, `enable_lora`", "trainable=False")
def low_rank_adapters(rank: Any) -> None:
    with contextlib.suppress(AttributeError):
        _assert_refused(lambda: tsps.Embedding(ROWS, DIM).enable_lora(2), "trainable=False")
    tsps.Embedding(ROWS, DIM, lora_rank=2)


@refused("layers", "`quantization_config`, `quantize`", "TableConfig")
def quantized_rows(rank: Any) -> None:
    built = tsps.Embedding(ROWS, DIM)
    built.build(None)
    with contextlib.suppress(AttributeError):
        _assert_refused(lambda: built.quantize("int8"), "TableConfig")
    tsps.Embedding(ROWS, DIM, quantization_config={})


@refused("layers", "`use_one_hot_matmul` (Keras 2)", "one-hot", keras=2)
def one_hot(rank: Any) -> None:
    tsps.Embedding(ROWS, DIM, use_one_hot_matmul=True)


@works("layers", "`dtype`")
def policies(rank: Any) -> None:
    for policy in ("mixed_float16", "mixed_bfloat16", "float32"):
        ours, reference = (kind(ROWS, DIM, "ones", dtype=policy) for kind in (tsps.Embedding, keras.layers.Embedding))
        actual, want = tf.function(ours)(tf.constant([1])), reference(tf.constant([1]))
        assert actual.dtype == want.dtype
        np.testing.assert_array_equal(tf.cast(actual, tf.float32), tf.cast(want, tf.float32))
    _assert_refused(lambda: tsps.Embedding(ROWS, DIM, dtype="float64"), "a layer cannot have rows of float64")


@works("layers", "`layer.compute_dtype` (Keras 3), `layer.dtype` (Keras 2)")
def type_of_a_sequentials_input(rank: Any) -> None:
    big = 2**24 + 1
    layer = tsps.Embedding(None, 2, "zeros")
    assert (layer.compute_dtype if KERAS_3 else layer.dtype) == "int64"
    ours = keras.Sequential([layer, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    ours.compile(wrapped(optimizer("SGD", 0.05)), "mse")
    ours.fit(np.full((4, 3), big), TARGETS[rank.rank][:4], batch_size=4, verbose=0)
    assert layer.bindings[0].reader().keys().tolist() == [big]


@refused("layers", "float model inputs", 'dtype="int64"|int64')
def float_inputs(rank: Any) -> None:
    ids = keras.Input((3,))
    keras.Model(ids, tsps.Embedding(ROWS, DIM)(ids))


# --- what a layer does ---


@works("layers", "`trainable=False`")
def frozen_layer(rank: Any) -> None:
    ours, reference = (model(kind(ROWS, DIM, trainable=False)) for kind in (tsps.Embedding, keras.layers.Embedding))
    ours.set_weights(reference.get_weights())
    before = ours.get_weights()
    position = 0 if np.asarray(before[0]).shape == (ROWS, DIM) else len(before) - 1
    assert_trains_alike(rank, ours, reference, lambda: optimizer("SGD", 0.05))
    np.testing.assert_array_equal(ours.get_weights()[position], before[position])


@works("layers", "one layer called twice; nested functions")
def called_twice(rank: Any) -> None:
    def make_model(layer: Any) -> Any:
        ids = keras.layers.Input((3,), dtype="int64")
        twice = keras.layers.Add()([layer(ids), layer(ids)])
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(twice)))

    reference, ours = make_model(keras.layers.Embedding(ROWS, DIM)), make_model(tsps.Embedding(ROWS, DIM))
    ours.set_weights(reference.get_weights())
    our_optimizer, keras_optimizer = wrapped(optimizer("SGD", 0.05)), optimizer("SGD", 0.05)
    within = tf.function(lambda ids: ours(ids))
    nested = tf.function(step_of(_Calls(ours, within), our_optimizer.apply_gradients))
    loop(nested, rank.rank)
    loop(tf.function(step_of(reference, keras_optimizer.apply_gradients)), None)
    assert_equal(rank, ours, reference)


class _Calls:
    """A model that is called through a function."""

    def __init__(self, wrapped_model: Any, function: Any) -> None:
        self._of, self._function = wrapped_model, function

    def __call__(self, ids: Any, training: bool) -> Any:
        return self._function(ids)

    @property
    def trainable_variables(self) -> list[Any]:
        return list(self._of.trainable_variables)


@works("layers", MATRIX)
def weights_as_a_matrix(rank: Any) -> None:
    ours, reference = pair()
    for a, b in zip(ours.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    rank.ranks.barrier("matrix.looked")
    matrix = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
    ours.layers[1].set_weights([matrix])
    np.testing.assert_array_equal(_rows(ours.layers[1]), matrix)
    _assert_refused(lambda: model(tsps.Embedding(None, DIM)).get_weights(), "unbounded")


@works("layers", "`layer.embeddings`")
def embeddings_attribute(rank: Any) -> None:
    ours, reference = (one_model.layers[1] for one_model in pair())
    np.testing.assert_array_equal(ours.embeddings.numpy(), np.asarray(reference.embeddings))
    np.testing.assert_array_equal(ours.embeddings[2:4], reference.embeddings[2:4])
    rank.ranks.barrier("matrix.looked")
    ours.embeddings.assign(np.ones((ROWS, DIM), np.float32))
    np.testing.assert_array_equal(_rows(ours), np.ones((ROWS, DIM)))
    open_ = tsps.Embedding(None, DIM)
    open_.build(None)
    _assert_refused(lambda: open_.embeddings, "unbounded")


@works("layers", "`layer.weights`")
def the_anchor(rank: Any) -> None:
    ours, _ = pair()
    (anchor,) = ours.layers[1].weights
    np.testing.assert_array_equal(np.asarray(ours.layers[1].get_weights()[0]), _rows(ours.layers[1]))

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ours.layers[1](tf.constant([3, 5, 3])))
        return tape.gradient(loss, anchor)

    table_gradient = gradient()
    assert isinstance(table_gradient, tf.IndexedSlices)
    sums = dict.fromkeys((3, 5), 0.0)
    for key, row in zip(table_gradient.indices.numpy().tolist(), table_gradient.values.numpy(), strict=True):
        sums[key] += row[0]
    assert sums == {3: 2.0, 5: 1.0}


@works("layers", "`count_params`, `summary`")
def counts(rank: Any) -> None:
    ours, reference = pair()
    if KERAS_3:
        assert ours.count_params() == reference.count_params()
        assert model(tsps.Embedding(None, DIM)).count_params() == reference.count_params() - ROWS * DIM
    else:
        assert ours.count_params() == reference.count_params() - ROWS * DIM
    ours.summary(print_fn=lambda *_, **__: None)


@works("layers", "`get_config`, `from_config`")
def configurations(rank: Any) -> None:
    reference = keras.layers.Embedding(ROWS, DIM, "ones", mask_zero=True, name="words")
    ours = tsps.Embedding.from_config(reference.get_config())
    assert (ours.input_dim, ours.output_dim, ours.mask_zero, ours.name) == (ROWS, DIM, True, "words")
    again = tsps.Embedding.from_config(ours.get_config())
    assert again.get_config() == ours.get_config()
    np.testing.assert_array_equal(_rows(again), np.ones((ROWS, DIM)))


@works("layers", "`clone_model`")
def clones(rank: Any) -> None:
    ours, _ = assert_fit(rank, lambda: optimizer("SGD", 0.05))
    before = ours.get_weights()[0]
    clone = keras.models.clone_model(ours)
    clone.compile(wrapped(optimizer("SGD", 0.05)), "mse")
    fit(clone, rank.rank, epochs=1)
    assert clone.layers[1].name == ours.layers[1].name
    np.testing.assert_array_equal(ours.get_weights()[0], before)
    rank.same([weight.tolist() for weight in clone.get_weights()[:1]])


# --- training, as the page on layers describes it ---


@works("layers", "optimizers")
def an_optimizer_of_ours(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("Adam", 0.05))
    other_optimizers = [
        optimizer("SGD", 0.05),
        optimizer("Adam", 0.05),
        optimizer("RMSprop", 0.05, global_clipnorm=1.0),
    ]
    other_optimizers += [] if KERAS_3 else [optimizer("legacy.SGD", 0.05), optimizer("legacy.Adam", 0.05)]
    for other_optimizer in other_optimizers:
        ours = model(tsps.Embedding(ROWS, DIM))
        ours.compile(other_optimizer, "mse")
        _assert_refused(lambda ours=ours: fit(ours, rank.rank, epochs=1), "tsps.DistributedOptimizer")


@works("layers", "optimizer updates")
def lazy_updates(rank: Any) -> None:
    """Adam moves only the rows of a step's ids, and repeated ids are added up before the rule."""
    layer = tsps.Embedding(ROWS, DIM, "zeros")
    layer.build(None)
    our_optimizer = wrapped(optimizer("Adam", 0.5, epsilon=1e-30))

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        variables = layer.trainable_variables
        our_optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    step(tf.constant([1, 1, 2 + rank.rank]))
    step(tf.constant([4, 4, 4]))
    rows = _rows(layer)
    # Adam's first update is the learning rate, whatever the gradient. The second one changes no other row.
    first = 0.5 * np.sqrt((1 - 0.999**2) / 1) / (1 - 0.9**2) * 0.1 / np.sqrt(0.001)
    expected = np.zeros((ROWS, DIM))
    expected[[1, 2, 3]] = -0.5
    expected[4] = -first
    np.testing.assert_allclose(rows, expected, rtol=1e-4)


@works("layers", "`jit_compile=True`", keras=3)
def keras_3_turns_xla_off(rank: Any) -> None:
    ours, _ = assert_fit(rank, lambda: optimizer("SGD", 0.05), jit_compile=True)
    assert not ours.jit_compile


@works("layers", "`jit_compile=True`")
def without_xla(rank: Any) -> None:
    _assert_refused(lambda: tf.function(tsps.Embedding(ROWS, DIM), jit_compile=True)(tf.constant([1])), "jit_compile")
    if not KERAS_3:
        ours = model(tsps.Embedding(ROWS, DIM))
        ours.compile(wrapped(optimizer("SGD", 0.05)), "mse", jit_compile=True)
        _assert_refused(lambda: fit(ours, rank.rank, epochs=1), "jit_compile=False")


@works("layers", "`steps_per_execution`")
def several_steps_per_execution(rank: Any) -> None:
    assert_fit(rank, lambda: optimizer("SGD", 0.05), steps_per_execution=3)


def _within(kind: str, layer: Any, ids: Any) -> Any:
    look = lambda: tf.reduce_sum(layer(ids))  # noqa: E731
    if kind == "tf.cond":
        return tf.cond(tf.size(ids) > 0, look, lambda: 0.0)
    if kind == "tf.while_loop":
        return tf.while_loop(lambda i, _: i < 2, lambda i, total: (i + 1, total + look()), (0, 0.0))[1]
    return tf.reduce_sum(
        tf.map_fn(lambda id_of_row: tf.reduce_sum(layer(id_of_row)), ids, fn_output_signature=tf.float32)
    )


@works("layers", CONTROL_FLOW)
def control_flow(rank: Any) -> None:
    layer = tsps.Embedding(ROWS, DIM, "ones")
    layer.build(None)
    ids = tf.constant([1, 2])
    for kind, total in (("tf.cond", 2 * DIM), ("tf.while_loop", 4 * DIM), ("tf.map_fn", 2 * DIM)):
        assert float(tf.function(lambda kind=kind: _within(kind, layer, ids))()) == total

        @tf.function
        def outside(kind: str = kind) -> Any:
            with tf.GradientTape() as tape:
                loss = _within(kind, layer, ids)
            return tape.gradient(loss, layer.trainable_variables)

        _assert_refused(outside, "tf.while_loop" if kind == "tf.map_fn" else kind)
    recomputed = tf.recompute_grad(lambda x: tf.reduce_sum(layer(ids) * x))
    with tf.GradientTape() as tape:
        x = tf.Variable(1.0)
        loss = recomputed(x)
    _assert_refused(lambda: tape.gradient(loss, [x, *layer.trainable_variables]), "tf.recompute_grad")
    our_optimizer = wrapped(optimizer("SGD", 1.0))

    @tf.function
    def inside(flag: tf.Tensor) -> Any:
        def body() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids))
            return tape.gradient(loss, layer.trainable_variables)[0].values

        rows = tf.cond(flag, body, lambda: tf.zeros([2, DIM]))
        gradient = tf.IndexedSlices(rows, tf.constant([1, 2], tf.int64))
        our_optimizer.apply_gradients([(gradient, layer.trainable_variables[0])])

    inside(tf.constant(True))
    np.testing.assert_array_equal(_rows(layer)[[1, 2, 3]], [[0.0] * DIM, [0.0] * DIM, [1.0] * DIM])


@works("layers", "`table=TableConfig(...)`, `placement`, `storage`, `cache`")
def table_configuration(rank: Any) -> None:
    config = tsps.TableConfig("users", DIM, max_rows=100, seed=3, optimizer=tsps.optimizers.SGD(learning_rate=0.5))
    ours = model(tsps.Embedding(None, DIM, table=config, placement="replicated", cache=None))
    ours.compile(wrapped(optimizer("SGD", 0.0)), "mse")
    before = _rows(ours.layers[1])
    fit(ours, rank.rank, epochs=1)
    assert np.abs(_rows(ours.layers[1]) - before).max() > 1e-4, "the table's own rate"
    again = tsps.Embedding(None, DIM, table=tsps.TableConfig("others", DIM, seed=3))
    rank.same(_rows(again).tolist())
    reference = model(KerasEmbedding(ROWS, DIM))
    ours = model(tsps.Embedding(ROWS, DIM, storage=tsps.Tiered(rank.folder / "disk", memory="5.5 MiB")))
    ours.set_weights(reference.get_weights())
    assert_trains_alike(rank, ours, reference, lambda: optimizer("Adagrad", 0.05))
    ours = model(tsps.Embedding(ROWS, DIM, placement=tsps.Sharded()))  # on one machine, sharding changes nothing
    ours.set_weights(reference.get_weights())
    assert_trains_alike(rank, ours, reference, lambda: optimizer("Adagrad", 0.05))
    _assert_refused(lambda: tsps.Embedding(ROWS, DIM, placement="sharded"), "replicated")
    _assert_refused(lambda: tsps.Embedding(ROWS, DIM, cache=100), "cache")


@refused("layers", "gradient that is not finite", r"key \d+.*not finite")
def a_gradient_of_nan(rank: Any) -> None:
    ours = model(tsps.Embedding(ROWS, DIM, name="words"))
    ours.compile(wrapped(optimizer("SGD", 0.05)), "mse")
    before = [weight.copy() for weight in ours.get_weights()]
    try:
        ours.train_on_batch(IDS[0][:BATCH], TARGETS[0][:BATCH] * np.float32("nan"))
    finally:
        for weight, earlier in zip(ours.get_weights(), before, strict=True):
            np.testing.assert_array_equal(weight, earlier)
