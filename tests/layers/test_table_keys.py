"""`table_keys` returns the keys that a model's lookups ask for, found from the model or given by the user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import IDS, keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops
from tf_sparse_ps.layers.table_keys import table_keys

pytestmark = pytest.mark.quick

layers = keras.layers
TARGETS = np.ones(4, np.float32)


def name_of(layer: Any, table: int = 0) -> str:
    """Returns the name that `table_keys` gives a table."""
    return str(layer.bindings[table].path).rpartition("/")[2]


def check(model: Any, x: Any, y: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, np.ndarray]:
    """Returns the keys of a batch, and asserts that they are those that the lookup ops of the model's call read.

    `table_keys` is called eagerly and in dataset.map. It must not make rows.
    """
    find = table_keys(model, **options)
    tables = [binding for layer in find._layers for binding in layer.bindings]
    before = [binding.reader().keys().tolist() for binding in tables]
    dataset = tf.data.Dataset.from_tensors((x, y)).repeat(2)
    mapped = [{name: keys.numpy() for name, keys in keys_by_table.items()} for keys_by_table in dataset.map(find)]
    eager_results = [find(element) for element in dataset]
    assert [binding.reader().keys().tolist() for binding in tables] == before
    for keys_by_table in (*mapped, *eager_results):
        assert {name: list(keys) for name, keys in keys_by_table.items()} == {
            name: list(keys) for name, keys in eager_results[0].items()
        }
    asked: dict[str, set[int]] = {}

    def note(original: Any, paths: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for path, keys in zip(args[paths], result.keys, strict=True):
                asked.setdefault(path.numpy().decode().rpartition("/")[2], set()).update(keys.numpy().tolist())
            return result

        return call

    with monkeypatch.context() as patch:
        patch.setattr(_ops, "lookup", note(_ops.lookup, 1))
        patch.setattr(_ops, "pooled_lookup", note(_ops.pooled_lookup, 3))
        for element, _ in dataset.take(1):
            with tf.GradientTape():  # so that the lookups return their keys
                model(element)
    keys = {name: tensor.numpy() for name, tensor in eager_results[0].items()}
    assert all(len(set(unique_keys)) == len(unique_keys) for unique_keys in keys.values())
    assert {name: set(unique_keys) for name, unique_keys in keys.items()} == asked
    return keys


def test_functional_models_with_preprocessing(monkeypatch):
    words = keras.Input((2,), dtype="string", name="words")
    numbers = keras.Input((2,), dtype="int64", name="numbers")
    looked = layers.StringLookup(vocabulary=["a", "b", "c"])(words)
    hashed = layers.Hashing(1000)(words)
    known = layers.IntegerLookup(vocabulary=[5, 6, 7])(numbers)
    shifted = layers.Lambda(lambda x: tf.cast(x, tf.int64) * 3 + 1)(numbers)
    joined = layers.Concatenate(dtype="int64")([shifted, numbers])
    first, second, third = tsps.Embedding(10, 4), tsps.Embedding(None, 4), tsps.EmbeddingReduce(None, 4)
    parts = [first(looked), first(known), second(hashed)]  # `first` is called twice
    flat = [layers.Flatten()(tensor) for tensor in parts] + [third(joined)]
    middle = layers.BatchNormalization()(layers.Dropout(0.5)(layers.Concatenate()(flat)))
    model = keras.Model({"words": words, "numbers": numbers}, layers.Dense(1)(middle))
    x = {"words": tf.constant([["a", "x"], ["c", "a"]]), "numbers": tf.constant([[5, 8], [7, 5]], tf.int64)}
    mean = model.layers[-2].get_weights()[2].copy()
    keys = check(model, x, TARGETS[:2], monkeypatch)
    assert set(keys[name_of(third)]) == {16, 25, 22, 5, 8, 7}
    assert set(keys[name_of(first)]) == {0, 1, 3}
    np.testing.assert_array_equal(model.layers[-2].get_weights()[2], mean)  # the state of the model is unchanged


def test_sequential_models_and_batches_of_other_sizes(monkeypatch):
    layer = tsps.Embedding(None, 4)
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, layers.Flatten(), layers.Dense(1)])
    keys = check(model, tf.constant(IDS), TARGETS[:2], monkeypatch)
    assert keys[name_of(layer)].tolist() == [1, 2, 3, 0, 9]
    find = table_keys(model)
    for n in (1, 2, 5):
        assert find(tf.range(3 * n, dtype=tf.int64)[tf.newaxis][:, :3])[name_of(layer)].numpy().tolist() == [0, 1, 2]
        assert len(find(tf.reshape(tf.range(3 * n, dtype=tf.int64), [n, 3]))[name_of(layer)]) == 3 * n
    assert len(find._traces) == 1


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_ids(kind, monkeypatch):
    inputs = keras.Input((None,), dtype="int64", **{kind: True})
    single, bag = tsps.Embedding(None, 2), tsps.EmbeddingReduce(None, 2)
    model = keras.Model(inputs, [single(inputs), bag(inputs)])
    ragged = tf.ragged.constant([[7, 5, 7], [9]], dtype=tf.int64)
    keys = check(model, ragged if kind == "ragged" else ragged.to_sparse(), TARGETS[:2], monkeypatch)
    assert keys[name_of(bag)].tolist() == [7, 5, 9]
    # Embedding reads id 0 for the absent entries of a sparse tensor.
    assert set(keys[name_of(single)]) == ({7, 5, 9} if kind == "ragged" else {7, 5, 9, 0})


def test_collections_with_shared_tables(monkeypatch):
    user, item = tsps.TableConfig("user", 4), tsps.TableConfig("item", 3)
    layer = tsps.EmbeddingCollection(
        {
            "id": tsps.FeatureConfig(user),
            "friends": tsps.FeatureConfig(user, combiner="mean"),
            "item": tsps.FeatureConfig(item),
        }
    )
    shapes = {"id": (1,), "friends": (3,), "item": (1,)}
    inputs = {name: keras.Input(shape, dtype="int64", name=name) for name, shape in shapes.items()}
    model = keras.Model(inputs, layer(inputs))
    x = {
        "id": tf.constant([[4], [5]], tf.int64),
        "friends": tf.constant(IDS),
        "item": tf.constant([[8], [8]], tf.int64),
    }
    keys = check(model, x, TARGETS[:2], monkeypatch)
    assert set(keys[name_of(layer)]) == {4, 5, 1, 2, 3, 0, 9}
    assert keys[name_of(layer, 1)].tolist() == [8]


def test_nested_models(monkeypatch):
    tower_input = keras.Input((3,), dtype="int64")
    layer = tsps.Embedding(None, 4)
    tower = keras.Model(tower_input, layers.Flatten()(layer(tower_input)))
    a, b = keras.Input((3,), dtype="int64"), keras.Input((3,), dtype="int64")
    model = keras.Model([a, b], layers.Dense(1)(layers.Concatenate()([tower(a), tower(b)])))
    keys = check(model, (tf.constant(IDS), tf.constant(IDS) + 20), TARGETS[:2], monkeypatch)
    assert keys[name_of(layer)].tolist() == [1, 2, 3, 0, 9, 21, 22, 23, 20, 29]


class Subclassed(keras.Model):
    """A model of two embeddings. `second` makes the ids of the second one."""

    def __init__(self, second: Any = lambda ids, rows: ids + 1) -> None:
        super().__init__()
        self.one = tsps.Embedding(None, 4, name="one")
        self.two = tsps.EmbeddingReduce(None, 4, name="two")
        self.scale = layers.Dense(1)
        self._second = second

    def call(self, inputs: Any) -> Any:
        rows = self.one(inputs)
        return self.scale(self.two(self._second(inputs, rows)))


def built(*args: Any) -> Subclassed:
    model = Subclassed(*args)
    model(tf.constant(IDS))
    return model


def test_subclassed_models_whose_call_shows_it(monkeypatch):
    model = built()
    keys = check(model, tf.constant(IDS), TARGETS[:2], monkeypatch)
    assert keys[name_of(model.two)].tolist() == [2, 3, 4, 1, 10]


def of_rows(ids: Any, rows: Any) -> Any:
    return tf.argsort(rows[:, :, 0], axis=1)


def at_random(ids: Any, rows: Any) -> Any:
    return ids + tf.random.uniform(tf.shape(ids), maxval=5, dtype=tf.int64)


def of_values(ids: Any, rows: Any) -> Any:
    return tf.constant(np.asarray(ids.numpy()))


@pytest.mark.parametrize(
    ("second", "reason"), [(of_rows, "rows of a table"), (at_random, "random"), (of_values, "cannot be run")]
)
def test_a_model_that_does_not_show_its_keys_says_so(second, reason):
    find = table_keys(built(second))
    with pytest.raises(ValueError, match=rf"(?s){reason}.*keys_of=lambda element"):
        find(tf.constant(IDS))


def test_ids_of_weights_that_are_trained_are_refused():
    inputs = keras.Input((3,), dtype="int64")
    scores = layers.Dense(3)(layers.Lambda(lambda x: tf.cast(x, tf.float32), dtype="float32")(inputs))
    ranks = layers.Lambda(lambda x: tf.argsort(x, axis=1), dtype="int32")(scores)
    model = keras.Model(inputs, tsps.EmbeddingReduce(None, 2)(ranks))
    with pytest.raises(ValueError, match="depend on weights that are trained"):
        table_keys(model)(tf.constant(IDS))


def test_lookups_inside_a_function_are_refused():
    model = built()
    model.two.call = tf.function(model.two.call)
    with pytest.raises(ValueError, match=r"inside tf.cond, a loop or a tf.function"):
        table_keys(model)(tf.constant(IDS))


def test_keys_given_by_a_function(monkeypatch):
    model = built(of_values)
    keys = check(
        model,
        tf.constant(IDS),
        TARGETS[:2],
        monkeypatch,
        keys_of=lambda element: {"one": element[0], "two": element[0]},
    )
    assert keys[name_of(model.one)].tolist() == keys[name_of(model.two)].tolist() == [1, 2, 3, 0, 9]
    several = table_keys(model, keys_of=lambda x: {"one": [x, x + 5], "two": x})(tf.constant(IDS))
    assert several[name_of(model.one)].numpy().tolist() == [1, 2, 3, 0, 9, 6, 7, 8, 5, 14]
    with pytest.raises(ValueError, match=r"\['one', 'two'\].*Received: \['one'\]"):
        table_keys(model, keys_of=lambda x: {"one": x})(tf.constant(IDS))


def test_models_without_tables_are_refused():
    with pytest.raises(ValueError, match="not made yet"):
        table_keys(Subclassed())
    with pytest.raises(ValueError, match="no layer of tf_sparse_ps"):
        table_keys(keras.Sequential([keras.Input((2,)), layers.Dense(1)]))


def test_training_goes_on_as_before():
    layer = tsps.Embedding(None, 4, activity_regularizer="l2")
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, layers.Flatten(), layers.Dense(1)])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    table_keys(model)(tf.constant(IDS))
    model.fit(IDS, TARGETS[:2], verbose=0)
    assert sorted(layer.bindings[0].reader().keys()) == [0, 1, 2, 3, 9]
