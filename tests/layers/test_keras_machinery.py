"""Models are exported and cloned by Keras, which also checks types and configures callbacks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras, keras3_only

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import UnsupportedError

IDS = np.arange(6).reshape(2, 3)


class Subclassed(keras.Model):
    """A model of ids alone, or of ids and floats."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = tsps.Embedding(50, 4), keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        """Returns float32[batch, 1]."""
        if not isinstance(inputs, dict):
            return self.out(tf.reduce_sum(self.embedding(inputs), 1))
        return self.out(tf.concat([tf.reduce_sum(self.embedding(inputs["ids"]), 1), inputs["floats"]], 1))


@pytest.mark.keras2_smoke
@pytest.mark.parametrize("how", ["export", "saved_model"])
@pytest.mark.parametrize("mixed", [False, True], ids=["ids", "dict"])
@pytest.mark.daily_cases(2)
def test_a_subclassed_model_is_exported_with_the_types_that_it_was_called_with(
    how: str, mixed: bool, tmp_path: Path
) -> None:
    inputs: Any = {"ids": IDS, "floats": np.ones((2, 2), np.float32)} if mixed else IDS
    model = Subclassed()
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(inputs, np.ones((2, 1)), verbose=0)
    expected = model.predict(inputs, verbose=0)
    path = os.fspath(tmp_path / "model")
    model.export(path) if how == "export" else tf.saved_model.save(model, path)
    loaded = tf.saved_model.load(path)
    tensors = tf.nest.map_structure(tf.constant, inputs)
    if how == "export":
        result = loaded.serve(tensors)
    else:
        serve = loaded.signatures["serving_default"]
        by_type = {tensor.dtype: tensor for tensor in tf.nest.flatten(tensors)}
        (result,) = serve(
            **{name: by_type[s.dtype] for name, s in serve.structured_input_signature[1].items()}
        ).values()
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@keras3_only
def test_a_subclassed_model_is_exported_with_a_signature(tmp_path: Path) -> None:
    model = Subclassed()
    expected = model.predict(IDS, verbose=0)
    signature = [tf.TensorSpec([None, 3], tf.int32)]
    model.export(os.fspath(tmp_path / "model"), input_signature=signature, verbose=False)
    loaded = tf.saved_model.load(os.fspath(tmp_path / "model"))
    np.testing.assert_allclose(loaded.serve(tf.constant(IDS, tf.int32)), expected, rtol=1e-5)


def test_a_compiled_model_of_keras_is_cloned_with_our_layers() -> None:
    flat = [keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([3], dtype="int64"), keras.layers.Embedding(50, 4), *flat])
    model.compile(keras.optimizers.SGD(0.1), "mse")

    def ours(layer: Any) -> Any:
        if isinstance(layer, keras.layers.Embedding):
            return tsps.Embedding.from_config(layer.get_config())
        return layer.__class__.from_config(layer.get_config())

    clone = keras.models.clone_model(model, clone_function=ours)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone.predict(IDS, verbose=0), model.predict(IDS, verbose=0), rtol=1e-5)
    if clone.optimizer is None:  # Keras 2 does not clone the optimizer
        clone.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(ValueError, match=r"tsps\.DistributedOptimizer"):
        clone.fit(IDS, np.ones((2, 1)), verbose=0)
    clone.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    clone.fit(IDS, np.ones((2, 1)), verbose=0)


def test_a_collection_whose_table_has_a_schedule_is_cloned(tmp_path: Path) -> None:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
    table = tsps.TableConfig("items", 4, optimizer=tsps.optimizers.Adagrad(learning_rate=rate))
    names = ("clicked", "bought")
    inputs = {name: keras.Input([2], dtype="int64", name=name) for name in names}
    vectors = tsps.EmbeddingCollection({name: tsps.FeatureConfig(table) for name in names})(inputs)
    model = keras.Model(inputs, keras.layers.Flatten()(vectors["clicked"] + vectors["bought"]))
    clone = keras.models.clone_model(model)
    model.save(tmp_path / "model.keras")
    for copied_model in (clone, keras.models.load_model(tmp_path / "model.keras")):
        (layer,) = [layer for layer in copied_model.layers if isinstance(layer, tsps.EmbeddingCollection)]
        assert len(layer.bindings) == 1
    other_table = tsps.TableConfig("items", 4, optimizer=tsps.optimizers.Adagrad(learning_rate=0.2))
    with pytest.raises(ValueError, match="different configurations"):
        tsps.EmbeddingCollection({"a": tsps.FeatureConfig(table), "b": tsps.FeatureConfig(other_table)})


@keras3_only
def test_a_layer_tells_the_type_of_its_inputs_beside_calls_of_other_threads() -> None:
    class Slow(tsps.Embedding):
        """A layer whose call waits."""

        inside, leave = threading.Event(), threading.Event()

        def call(self, inputs: Any) -> Any:
            self.inside.set()
            assert self.leave.wait(60)
            return super().call(inputs)

    layer = Slow(10, 4)
    layer.build()
    thread = threading.Thread(target=layer, args=(IDS,))
    thread.start()
    assert layer.inside.wait(60)
    # While that call runs, another thread builds a Sequential around the layer; its input must be of integers.
    dtype_seen = layer.compute_dtype
    layer.leave.set()
    thread.join()
    assert dtype_seen == "int64"


def test_conversion_for_tensorflow_lite_is_refused_with_the_remedy() -> None:
    model = keras.Sequential([keras.Input([3], dtype="int64"), tsps.Embedding(10, 4, name="words")])
    with pytest.raises(UnsupportedError, match=r"(?s)'words'.*keras.layers.Embedding"):
        tf.lite.TFLiteConverter.from_keras_model(model).convert()


@pytest.mark.daily_cases(1)
@pytest.mark.parametrize("metadata", [None, "words.tsv", {"words": "words.tsv"}], ids=["none", "file", "dict"])
def test_the_projector_of_tensorboard_is_refused_with_the_remedy(metadata: Any, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input([3], dtype="int64"), tsps.Embedding(10, 4, name="words")])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    board = keras.callbacks.TensorBoard(os.fspath(tmp_path), embeddings_freq=1, embeddings_metadata=metadata)
    with pytest.raises(UnsupportedError, match=r"(?s)'words'.*get_weights"):
        model.fit(IDS, np.ones((2, 3, 4)), callbacks=[board], verbose=0)


def test_histograms_show_rows_of_unbounded_tables(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input([3], dtype="int64"), tsps.Embedding(None, 4, name="words")])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    board = keras.callbacks.TensorBoard(os.fspath(tmp_path), histogram_freq=1)
    model.fit(IDS, np.ones((2, 3, 4)), callbacks=[board], verbose=0)
    histograms = {}
    for file in tmp_path.rglob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(os.fspath(file)):
            for value in event.summary.value:
                if "embeddings" in value.tag:
                    histograms[value.tag] = tf.make_ndarray(value.tensor)
    (histogram,) = histograms.values()
    assert histogram[:, 2].sum() == 6 * 4
