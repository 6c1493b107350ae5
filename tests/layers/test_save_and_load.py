"""Rows and slots survive every way in which Keras and TensorFlow save a model."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf
from layer_support import IDS, TARGETS, assign, compiled, functional, keras, keras2_only

import tf_sparse_ps as tsps


def trained(input_dim: int | None, **kwargs: object) -> keras.Model:
    model = compiled(tsps.Embedding(input_dim, 4, name="words", **kwargs))
    model.fit(IDS, TARGETS, verbose=0, epochs=2)
    return model


def slots(model: keras.Model) -> tuple[np.ndarray, ...]:
    reader = model.get_layer("words").bindings[0].reader()
    return reader.entries(np.sort(reader.keys()))


def assert_same_table(a: keras.Model, b: keras.Model) -> None:
    """Asserts equal keys, rows and slots in different tables."""
    assert a.get_layer("words").bindings[0].path != b.get_layer("words").bindings[0].path
    for x, y in zip(slots(a), slots(b), strict=True):
        np.testing.assert_array_equal(x, y)


UNSEEN = np.array([[4, 5, 6], [7, 8, 9]], np.int64)  # below 10, the limit of the bounded layer


@pytest.mark.parametrize("input_dim", [10, None], ids=["bounded", "unbounded"])
def test_keras_file_without_custom_objects(tmp_path, input_dim):
    model = trained(input_dim)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same_table(model, again)
    for ids in (IDS, UNSEEN):  # ids without training too: their initial values are equal
        np.testing.assert_array_equal(model.predict(ids, verbose=0), again.predict(ids, verbose=0))


@pytest.mark.parametrize("input_dim", [10, None], ids=["bounded", "unbounded"])
def test_a_loaded_model_goes_on_training_with_its_slots(tmp_path, input_dim):
    model = trained(input_dim)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    again.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5)), "mse")
    assert_same_table(model, again)
    once = tsps.DistributedOptimizer(
        keras.optimizers.SGD(0.0), sparse_optimizer=tsps.optimizers.Adagrad(learning_rate=0.5)
    )
    twice = tsps.DistributedOptimizer(
        keras.optimizers.SGD(0.0), sparse_optimizer=tsps.optimizers.Adagrad(learning_rate=0.5)
    )
    model.compile(once, "mse")
    again.compile(twice, "mse")
    model.fit(IDS, TARGETS, verbose=0)
    again.fit(IDS, TARGETS, verbose=0)
    for x, y in zip(slots(model), slots(again), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("input_dim", [10, None], ids=["bounded", "unbounded"])
def test_weights_file(tmp_path, input_dim):
    model = trained(input_dim)
    model.save_weights(tmp_path / "model.weights.h5")
    again = functional(tsps.Embedding(input_dim, 4, name="words"))
    if input_dim is None:
        with pytest.warns(UserWarning, match="never trained"):
            again.load_weights(tmp_path / "model.weights.h5")
    else:
        again.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(model.predict(UNSEEN, verbose=0), again.predict(UNSEEN, verbose=0))
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), again.predict(IDS, verbose=0))


@pytest.mark.parametrize("input_dim", [10, None], ids=["bounded", "unbounded"])
def test_tensorflow_checkpoint(tmp_path, input_dim):
    model = trained(input_dim)
    path = tf.train.Checkpoint(model=model).save(os.fspath(tmp_path / "checkpoint"))
    before = slots(model)
    model.fit(IDS, TARGETS, verbose=0)
    tf.train.Checkpoint(model=model).restore(path)
    for x, y in zip(before, slots(model), strict=True):
        np.testing.assert_array_equal(x, y)


@keras2_only
def test_tensorflow_format_of_keras_2(tmp_path):
    model = trained(None)
    model.save_weights(os.fspath(tmp_path / "weights"), save_format="tf")
    before = slots(model)
    model.fit(IDS, TARGETS, verbose=0)
    model.load_weights(os.fspath(tmp_path / "weights")).expect_partial()
    for x, y in zip(before, slots(model), strict=True):
        np.testing.assert_array_equal(x, y)


def test_legacy_h5_carries_a_bounded_table_and_refuses_an_unbounded_one(tmp_path):
    model = trained(10)
    model.save(os.fspath(tmp_path / "model.h5"))
    again = functional(tsps.Embedding(10, 4, name="words"))
    again.load_weights(os.fspath(tmp_path / "model.h5"))
    np.testing.assert_array_equal(model.predict(UNSEEN, verbose=0), again.predict(UNSEEN, verbose=0))
    with pytest.raises(ValueError, match=r"words.*unbounded.*model\.save"):
        trained(None).save(os.fspath(tmp_path / "unbounded.h5"))


def test_early_stopping_restores_a_bounded_table():
    model = compiled(tsps.Embedding(10, 4, name="words"))
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
    recorder = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, _: matrices.append(model.get_layer("words").get_weights()[0])
    )
    matrices: list[np.ndarray] = []
    model.fit(IDS, TARGETS, epochs=5, verbose=0, callbacks=[recorder, stop])
    assert len(matrices) == 3
    assert np.abs(matrices[0] - matrices[-1]).max() > 0
    np.testing.assert_array_equal(model.get_layer("words").get_weights()[0], matrices[0])


def test_model_checkpoint(tmp_path):
    model = trained(None)
    callback = keras.callbacks.ModelCheckpoint(os.fspath(tmp_path / "best.keras"))
    model.fit(IDS, TARGETS, verbose=0, callbacks=[callback])
    assert_same_table(model, keras.models.load_model(tmp_path / "best.keras"))


def test_file_of_a_keras_embedding(tmp_path):
    keras_model = functional(keras.layers.Embedding(10, 4, name="words"))
    keras_model.save(tmp_path / "theirs.keras")
    keras_model.save_weights(tmp_path / "theirs.weights.h5")
    tsps_model = functional(tsps.Embedding(10, 4, name="words"))
    tsps_model.load_weights(tmp_path / "theirs.weights.h5")
    np.testing.assert_allclose(tsps_model.predict(UNSEEN, verbose=0), keras_model.predict(UNSEEN, verbose=0), rtol=1e-6)
    tsps_model = functional(tsps.Embedding(10, 4, name="words"))
    tsps_model.load_weights(tmp_path / "theirs.keras")
    np.testing.assert_allclose(tsps_model.predict(UNSEEN, verbose=0), keras_model.predict(UNSEEN, verbose=0), rtol=1e-6)
    wrong = functional(tsps.Embedding(11, 4, name="words"))
    with pytest.raises(ValueError, match=r"11"):
        wrong.load_weights(tmp_path / "theirs.weights.h5")


def test_a_keras_model_is_converted_by_cloning():
    keras_model = functional(keras.layers.Embedding(10, 4, name="words"))

    def convert(layer: keras.layers.Layer) -> keras.layers.Layer:
        cls = tsps.Embedding if isinstance(layer, keras.layers.Embedding) else type(layer)
        return cls.from_config(layer.get_config())

    tsps_model = keras.models.clone_model(keras_model, clone_function=convert)
    assert isinstance(tsps_model.get_layer("words"), tsps.Embedding)
    tsps_model.set_weights(keras_model.get_weights())
    np.testing.assert_allclose(tsps_model.predict(UNSEEN, verbose=0), keras_model.predict(UNSEEN, verbose=0), rtol=1e-6)


def test_all_layers_in_one_file(tmp_path):
    inputs = keras.Input((3,), dtype="int64")
    tables = tsps.TableConfig("a", 4), tsps.TableConfig("b", 3, key_limit=10, optimizer=tsps.optimizers.SGD())
    collection = tsps.EmbeddingCollection(
        {
            "x": tsps.FeatureConfig(tables[0]),
            "y": tsps.FeatureConfig(tables[0], combiner="sum"),
            "z": tsps.FeatureConfig(tables[1], combiner="sqrtn"),
        }
    )
    reduce = tsps.EmbeddingReduce(10, 4, combiner="sum", embeddings_initializer="he_normal")
    outputs = [reduce(inputs), *collection({"x": inputs, "y": inputs, "z": inputs}).values()]
    model = keras.Model(inputs, outputs)
    assign(collection, [1, 9], 3.0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for ids in (IDS, UNSEEN):
        for x, y in zip(model.predict(ids, verbose=0), again.predict(ids, verbose=0), strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_clone_has_its_own_table():
    model = trained(10)
    clone = keras.models.clone_model(model)
    assert clone.get_layer("words").name == "words"
    clone.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5)), "mse")
    before = model.get_layer("words").get_weights()[0]
    clone.fit(IDS, TARGETS, verbose=0)
    np.testing.assert_array_equal(model.get_layer("words").get_weights()[0], before)
    assert model.get_layer("words").bindings[0].uuid != clone.get_layer("words").bindings[0].uuid


def test_two_models_with_layers_of_one_name_train_different_tables():
    a, b = trained(10), trained(10)
    paths = {m.get_layer("words").bindings[0].path for m in (a, b)}
    assert len(paths) == 2
    before = b.get_layer("words").get_weights()[0]
    a.fit(IDS, TARGETS, verbose=0)
    np.testing.assert_array_equal(b.get_layer("words").get_weights()[0], before)
