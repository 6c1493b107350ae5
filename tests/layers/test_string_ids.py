"""Strings as ids: their keys are fingerprints, and training on them equals training on the fingerprints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import PACKAGE_PARENT, TARGETS, keras, run_child
from lookahead_support import MEMORY

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

WORDS = [["rome", "oslo", ""], ["oslo", "zürich", "東京"]]
BYTES = [b"", b"a", b"\x00", b"a\x00", b"\xff\xfe not UTF-8", bytes(range(256)), "東京".encode(), b" ", b"A"]


def strings_of_all_lengths() -> list[bytes]:
    """Fingerprints of strings up to 16, 32 and 64 bytes, and of longer ones, are computed in different ways."""
    random = np.random.default_rng(3)
    return [random.bytes(n) for n in (*range(140), 255, 256, 257, 1000, 10_000)]


def model_of(layer: Any, dtype: str) -> Any:
    inputs = keras.Input((3,), dtype=dtype)
    hidden = keras.layers.Dense(4, activation="tanh", kernel_initializer=keras.initializers.Constant(0.5))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden(keras.layers.Flatten()(layer(inputs)))))


def compiled(layer: Any, dtype: str = "string") -> Any:
    model = model_of(layer, dtype)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5)), "mse")
    return model


def rows_of(layer: Any) -> dict[int, list[float]]:
    table = layer.bindings[0].reader()
    keys = table.keys()
    return dict(zip(keys.tolist(), table.lookup(keys).tolist(), strict=True))


# --- fingerprints ---


def test_published_values() -> None:
    """The documentation of FarmHash's bindings has these values. Short strings have one hash in all its variants."""
    hashes = np.array([0x9AE16A3B2F90404F, 2640714258260161385, 13009744463427800296], np.uint64)
    np.testing.assert_array_equal(tsps.keys.fingerprint(["", "abc", "hello"]), hashes.view(np.int64))


def test_keys_in_a_graph_are_those_without_tensorflow() -> None:
    strings = list(dict.fromkeys(BYTES + strings_of_all_lengths()))
    layer = tsps.Embedding(None, 2, "zeros")
    layer.build(None)
    keys = tsps.keys.fingerprint(strings)
    assert len(np.unique(keys)) == len(strings)
    values = np.arange(1, len(keys) + 1, dtype=np.float32)
    layer.bindings[0].assign(keys, np.repeat(values[:, np.newaxis], 2, 1))
    for look in (layer, tf.function(layer)):
        np.testing.assert_array_equal(look(tf.constant(strings))[:, 0], values)


@pytest.mark.parametrize(
    "strings",
    [["a", "b"], ("a", "b"), np.array(["a", "b"]), np.array([b"a", b"b"]), np.array(["a", b"b"], object), [b"a", "b"]],
    ids=str,
)
def test_all_forms_of_strings_have_the_same_keys(strings: Any) -> None:
    np.testing.assert_array_equal(tsps.keys.fingerprint(strings), tsps.keys.fingerprint([b"a", b"b"]))


def test_shapes_of_keys() -> None:
    assert tsps.keys.fingerprint([["a"], ["b"]]).shape == (2, 1)
    assert tsps.keys.fingerprint("a").shape == ()
    assert tsps.keys.fingerprint([]).shape == (0,)
    assert tsps.keys.fingerprint([]).dtype == np.int64


@pytest.mark.parametrize("wrong", [[1], ["a", 1], [None], [["a"], "b"], np.array([1.5])], ids=str)
def test_what_is_no_string_has_no_key(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"must be str or bytes. Received"):
        tsps.keys.fingerprint(wrong)


def test_keys_need_no_tensorflow() -> None:
    code = "import sys, tf_sparse_ps as tsps; tsps.keys.fingerprint(['a']); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE_PARENT, timeout=60)


# --- layers ---


def test_training_on_strings_is_training_on_fingerprints_bit_for_bit() -> None:
    of_strings, of_integers = (tsps.Embedding(None, 4, "zeros") for _ in range(2))
    words, ids = tf.constant(WORDS), tf.constant(tsps.keys.fingerprint(WORDS))
    models = [compiled(of_strings), compiled(of_integers, "int64")]
    models[1].layers[-1].set_weights(models[0].layers[-1].get_weights())
    for model, inputs in zip(models, (words, ids), strict=True):
        model.fit(inputs, TARGETS, epochs=3, verbose=0)
    assert len(rows_of(of_strings)) == 5
    assert rows_of(of_strings) == rows_of(of_integers)
    np.testing.assert_array_equal(models[0].predict(words, verbose=0), models[1].predict(ids, verbose=0))


def test_ragged_and_sparse_strings() -> None:
    layer = tsps.Embedding(None, 4)
    dense = tf.constant([["a", "", "b"], ["", "", "c"]])
    expected = layer(tf.constant(tsps.keys.fingerprint(dense.numpy())))
    np.testing.assert_array_equal(layer(dense), expected)
    np.testing.assert_array_equal(tf.function(layer)(tf.sparse.from_dense(dense)), expected)  # "" where it is absent
    ragged = tf.ragged.constant([["a", "", "b"], [], ["c"]])
    values = layer(ragged)
    np.testing.assert_array_equal(values.flat_values, tf.concat([expected[0], expected[1, 2:]], 0))
    assert values.row_lengths().numpy().tolist() == [3, 0, 1]
    assert layer(tf.constant([], tf.string)).shape == (0, 4)
    assert layer(tf.constant("a")).shape == (4,)


def test_bags_of_strings() -> None:
    layer = tsps.EmbeddingReduce(None, 4, combiner="sum")
    ragged = tf.ragged.constant([["a", "b"], [], ["c", "a", "a"]])
    ids = ragged.with_flat_values(tf.constant(tsps.keys.fingerprint(ragged.flat_values.numpy())))
    np.testing.assert_array_equal(layer(ragged), layer(ids))
    np.testing.assert_array_equal(tf.function(layer)(ragged.to_sparse()), layer(ids))
    weights = ragged.with_flat_values(tf.constant([1.0, 2.0, 3.0, 4.0, 5.0]))
    np.testing.assert_array_equal(layer(ragged, weights), layer(ids, weights))
    np.testing.assert_array_equal(layer(tf.constant(WORDS)), layer(tf.constant(tsps.keys.fingerprint(WORDS))))


def test_collections_of_strings() -> None:
    tables = [tsps.TableConfig("users", 4), tsps.TableConfig("words", 4)]
    layer = tsps.EmbeddingCollection(
        {"user": tsps.FeatureConfig(tables[0]), "words": tsps.FeatureConfig(tables[1], combiner="mean")}
    )
    ragged = tf.ragged.constant([["a", "b"], ["c"]])
    of_strings = layer({"user": tf.constant(["u", "v"]), "words": ragged})
    of_integers = layer(
        {
            "user": tf.constant(tsps.keys.fingerprint(["u", "v"])),
            "words": ragged.with_flat_values(tf.constant(tsps.keys.fingerprint(["a", "b", "c"]))),
        }
    )
    for feature, rows in of_strings.items():
        np.testing.assert_array_equal(rows, of_integers[feature])


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_the_empty_string_is_padding(kind: str) -> None:
    layer = tsps.Embedding(None, 4, mask_zero=True)
    words = {
        "dense": tf.constant([["a", ""], ["", "b"]]),
        "ragged": tf.ragged.constant([["a", ""], ["", "b"]]),
        "sparse": tf.sparse.from_dense([["a", ""], ["", "b"]]),
    }[kind]
    mask = layer.compute_mask(words)
    mask = mask.to_tensor() if isinstance(mask, tf.RaggedTensor) else mask
    np.testing.assert_array_equal(mask, [[True, False], [False, True]])


def test_masks_of_plain_lists() -> None:
    layer = tsps.Embedding(None, 4, mask_zero=True)
    np.testing.assert_array_equal(layer.compute_mask([[1, 0]]), [[True, False]])
    np.testing.assert_array_equal(layer.compute_mask([["a", ""]]), [[True, False]])
    assert not layer.compute_mask(0)


def test_padding_has_no_part_in_an_average() -> None:
    inputs = keras.Input((3,), dtype="string")
    layer = tsps.Embedding(None, 4, mask_zero=True)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(layer(inputs)))
    rows = layer(tf.constant(["rome", "oslo"])).numpy()
    np.testing.assert_allclose(model.predict(tf.constant(WORDS[:1]), verbose=0)[0], rows.mean(0), rtol=1e-6)


# --- files and lookahead ---


def test_a_saved_model_takes_strings(tmp_path: Path) -> None:
    model = compiled(tsps.Embedding(None, 4))
    words = tf.constant(WORDS)
    model.fit(words, TARGETS, verbose=0)
    expected = model.predict(words, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(words, verbose=0), expected)
    tf.saved_model.save(model, os.fspath(tmp_path / "served"))
    library = os.fspath(Path(tsps.__file__).with_name("_ops_lib.so"))
    np.save(tmp_path / "expected.npy", expected)
    run_child(
        f"""
import numpy as np, tensorflow as tf
tf.load_op_library({library!r})
call = tf.saved_model.load({os.fspath(tmp_path / "served")!r}).signatures["serving_default"]
(output,) = call(tf.constant({WORDS!r})).values()
np.testing.assert_allclose(output, np.load({os.fspath(tmp_path / "expected.npy")!r}), rtol=1e-6)
"""
    )


def test_lookahead_reads_the_rows_of_strings(tmp_path: Path) -> None:
    words = np.array([[f"w{row * 3 + i}" for i in range(3)] for row in range(1000)])
    targets = np.zeros((len(words), 1), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((words, targets)).batch(64)
    layers = {
        storage: tsps.Embedding(None, 4, "zeros", storage=disk)
        for storage, disk in (("memory", "memory"), ("disk", tsps.Tiered(tmp_path / "disk", memory=MEMORY)))
    }
    for storage, layer in layers.items():
        model = compiled(layer)
        model(words[:1])
        model.layers[-1].set_weights([np.ones((4, 1), np.float32), np.zeros(1, np.float32)])
        ahead = tsps.lookahead(dataset, model, batches=2) if storage == "disk" else dataset
        model.fit(ahead, epochs=2, verbose=0)
    assert layers["disk"].bindings[0].reader().stats()["rows_on_disk"] > 0
    assert rows_of(layers["disk"]) == rows_of(layers["memory"])


# --- what is refused ---


@pytest.mark.parametrize("cls", [tsps.Embedding, tsps.EmbeddingReduce])
def test_a_bounded_vocabulary_has_no_strings(cls: Any) -> None:
    layer = cls(10, 4, name="words")
    for use in (layer, tf.function(layer)):
        with pytest.raises(ValueError, match=r"'words'.*ids must be integers.*StringLookup.*dtype string"):
            use(tf.constant(WORDS))
    with pytest.raises(ValueError, match=r"'words'.*ids must be integers.*StringLookup.*dtype string"):
        model_of(layer, "string")


def test_a_collections_message_names_the_feature() -> None:
    layer = tsps.EmbeddingCollection({"user": tsps.FeatureConfig(tsps.TableConfig("t", 4, key_limit=5))}, name="c")
    with pytest.raises(ValueError, match=r"'c/user'.*StringLookup"):
        layer({"user": tf.constant(["a"])})


def test_strings_for_an_integer_input_are_refused() -> None:
    model = compiled(tsps.Embedding(None, 4, name="words"), "int64")
    words = tf.constant(WORDS)
    for use in (lambda: model.fit(words, TARGETS, verbose=0), lambda: model.predict(words, verbose=0)):
        with pytest.raises(ValueError, match=r"'words'.*given string.*int64.*keras\.Input\(shape, dtype='string'\)"):
            use()
    with pytest.raises(tf.errors.UnimplementedError, match="string to int64"):  # by Keras, before the layer
        model(words)
    bounded = compiled(tsps.Embedding(10, 4), "int64")
    with pytest.raises(ValueError, match=r"given string.*StringLookup"):
        bounded.predict(words, verbose=0)


@pytest.mark.parametrize(("ids", "remedy"), [(np.ones((2, 3), np.int64), "dtype='int64'"), (np.ones((2, 3)), "astype")])
def test_numbers_for_an_input_of_strings_are_refused(ids: Any, remedy: str) -> None:
    model = compiled(tsps.Embedding(None, 4, name="words"))
    for use in (lambda: model.fit(ids, TARGETS, verbose=0), lambda: model.predict(ids, verbose=0)):
        with pytest.raises(ValueError, match=rf"'words'.*cast to the string of its keras\.Input.*{remedy}"):
            use()


@pytest.mark.skipif(not _keras.IS_KERAS_3, reason="Keras 2 makes a Sequential's layers for any type")
def test_a_sequential_needs_an_input_of_strings() -> None:
    layers = [tsps.Embedding(None, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    words = tf.constant(WORDS)
    assert keras.Sequential([keras.Input((3,), dtype="string"), *layers]).predict(words, verbose=0).shape == (2, 1)
    with pytest.raises(ValueError, match=r"keras\.Input\(shape, dtype='string'\)"):
        keras.Sequential([tsps.Embedding(None, 4), *layers[1:]]).predict(words, verbose=0)
