"""`tsps.convert` makes a model with tables that has the same weights and outputs, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from transfer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps import errors
from tf_sparse_ps._compat import _keras

IDS = np.random.default_rng(3).integers(0, 50, (8, 4))


def check(model: Any, inputs: Any, **options: Any) -> Any:
    """Converts a model, compares it with the original, and returns it."""
    expected = model(inputs).numpy()
    converted = tsps.convert(model, **options)
    assert not _keras.layers_of(converted, keras.layers.Embedding)
    assert [layer.name for layer in converted.layers] == [layer.name for layer in model.layers]
    np.testing.assert_array_equal(converted(inputs), expected)
    np.testing.assert_array_equal(model(inputs), expected)
    for old, new in zip(model.get_weights(), converted.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    return converted


def tables_of(model: Any) -> list[Any]:
    return [layer for layer in _keras.layers_of(model, _keras.Layer) if isinstance(layer, tsps.Embedding)]


def functional() -> Any:
    """Returns a model with two inputs and an embedding that both share, masks, dropout and batch normalization."""
    users = keras.Input((4,), dtype="int64", name="users")
    seen = keras.Input((4,), dtype="int64", name="seen")
    shared = keras.layers.Embedding(50, 3, "normal", mask_zero=True, name="shared")
    reader = keras.layers.SimpleRNN(2, name="reader")
    other = keras.layers.Embedding(50, 2, trainable=False, name="other")(users)
    joined = keras.layers.Concatenate(name="join")(
        [reader(shared(users)), reader(shared(seen)), keras.layers.Flatten(name="flat")(other)]
    )
    joined = keras.layers.Dropout(0.5, name="drop")(keras.layers.BatchNormalization(name="norm")(joined))
    return keras.Model([users, seen], keras.layers.Dense(1, name="dense")(joined), name="both")


@pytest.mark.keras2_smoke
def test_a_functional_model_with_a_shared_layer() -> None:
    model = functional()
    model.get_layer("norm").set_weights([np.arange(12.0) + shift for shift in range(4)])
    converted = check(model, [IDS, IDS[::-1]])
    shared, other = converted.get_layer("shared"), converted.get_layer("other")
    assert tables_of(converted) == [shared, other]
    assert (shared.input_dim, shared.output_dim, shared.mask_zero, shared.trainable) == (50, 3, True, True)
    assert (other.mask_zero, other.trainable) == (False, False)
    # The copy has weights of its own.
    converted.get_layer("dense").set_weights([np.zeros((12, 1)), np.zeros(1)])
    assert np.abs(model([IDS, IDS])).max() > 0


@pytest.mark.keras2_smoke
def test_a_converted_model_trains_and_the_original_is_not_changed() -> None:
    model = functional()
    model.compile("adam", "mse")
    before = model.get_weights()
    converted = tsps.convert(model)
    assert model.compiled if _keras.IS_KERAS_3 else model.optimizer is not None
    assert getattr(converted, "optimizer", None) is None
    converted.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    converted.fit([IDS, IDS], np.ones((8, 1), np.float32), verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    trained = converted.get_layer("shared").get_weights()[0]
    assert (trained != before[0]).any()


@pytest.mark.parametrize("how", ["int64", "float32", "no input", "built"])
def test_sequential_models(how: str) -> None:
    layers = [keras.layers.Embedding(50, 3), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
    first = [keras.Input((4,), dtype=how)] if how in ("int64", "float32") else []
    model = keras.Sequential([*first, *layers], name="words")
    if how == "built":
        model.build((None, 4))
    elif how == "no input":
        model(IDS)
    converted = check(model, IDS)
    assert converted.name == "words"
    np.testing.assert_array_equal(converted.predict(IDS, verbose=0), model.predict(IDS, verbose=0))


@pytest.mark.skipif(_keras.IS_KERAS_3, reason="an argument of Keras 2")
def test_the_length_of_inputs() -> None:
    model = keras.Sequential([keras.layers.Embedding(50, 3, input_length=4), keras.layers.Flatten()])
    converted = check(model, IDS)
    assert converted.layers[0].input_length == 4
    assert converted.output_shape == (None, 12)


def test_operations_between_layers_and_several_outputs() -> None:
    ids, numbers = keras.Input((4,), dtype="int32"), keras.Input((4,))
    rows = keras.layers.Embedding(60, 3)
    shifted = rows(ids + 1) * 2.0
    cast = keras.layers.Lambda(lambda x: tf.cast(x, "int64"), output_shape=(4,), dtype="int64")(numbers)
    model = keras.Model([ids, numbers], {"shifted": shifted, "cast": rows(cast)})
    inputs = [IDS.astype(np.int32), IDS.astype(np.float32)]
    expected = {name: output.numpy() for name, output in model(inputs).items()}
    converted = tsps.convert(model)
    for name, output in converted(inputs).items():
        np.testing.assert_array_equal(output, expected[name])
    assert len(tables_of(converted)) == 1


def test_a_model_that_is_not_built_has_no_weights_to_copy() -> None:
    model = keras.Sequential([keras.layers.Embedding(50, 3, name="words"), keras.layers.Dense(2)])
    converted = tsps.convert(model)
    assert converted(IDS).shape == (8, 4, 2)
    assert [table.name for table in tables_of(converted)] == ["words"]


def test_models_inside_of_models_and_float_inputs_of_ids() -> None:
    ids = keras.Input((4,), name="ids")
    numbers = keras.Input((2,), name="numbers")
    words = keras.layers.Embedding(50, 3)
    inner = keras.Sequential([keras.Input((4,)), words, keras.layers.Flatten()], name="inner")
    frozen_ids = keras.Input((4,), name="inner_ids")
    frozen = keras.Model(frozen_ids, keras.layers.Flatten()(words(frozen_ids)), name="frozen")
    output = keras.layers.Concatenate()([inner(ids), frozen(ids), keras.layers.Dense(2)(numbers)])
    model = keras.Model({"ids": ids, "numbers": numbers}, output)
    frozen.trainable = False
    inputs = {"ids": IDS.astype(np.float32), "numbers": np.ones((8, 2), np.float32)}
    expected = model(inputs).numpy()
    converted = tsps.convert(model)
    inputs["ids"] = IDS
    np.testing.assert_array_equal(converted(inputs), expected)
    assert len(tables_of(converted)) == 1, "the inner models share a layer"
    assert not converted.get_layer("frozen").trainable
    assert not tables_of(converted)[0].trainable


class Tower(keras.Model):
    """A subclassed model without an embedding."""

    def __init__(self, name: str = "tower") -> None:
        super().__init__(name=name)
        self.first, self.second = keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


class Nameless(Tower):
    """A model that cannot be copied."""

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("no config")


def test_subclassed_parts_without_an_embedding_are_copied() -> None:
    for part in (Tower(), keras.layers.Bidirectional(keras.layers.SimpleRNN(2))):
        inputs = keras.Input((4,), dtype="int64")
        model = keras.Model(inputs, part(keras.layers.Embedding(50, 3)(inputs)))
        check(model, IDS)
    inputs = keras.Input((4,), dtype="int64")
    model = keras.Model(inputs, Nameless("odd")(keras.layers.Embedding(50, 3)(inputs)))
    with pytest.raises(errors.UnsupportedError, match=r"'odd' \(Nameless\) cannot be copied: no config"):
        tsps.convert(model)


def test_vocabularies_are_copied() -> None:
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="string"),
            keras.layers.StringLookup(name="lookup"),
            keras.layers.Embedding(5, 3),
            keras.layers.Flatten(),
        ]
    )
    model.get_layer("lookup").adapt(np.array(["a", "b", "c"]))
    words = tf.constant([["a", "x"], ["c", "b"]])
    check(model, words)


def test_table_options_and_policies(tmp_path: Path) -> None:
    inputs = keras.Input((4,), dtype="int32")
    rows = keras.layers.Embedding(50, 4, dtype="mixed_float16", embeddings_constraint=keras.constraints.NonNeg())
    model = keras.Model(inputs, rows(inputs))
    storage = tsps.Tiered(tmp_path / "disk", memory="64 MiB")
    converted = check(model, IDS.astype(np.int32), storage=storage)
    assert converted(IDS.astype(np.int32)).dtype == rows(IDS).dtype
    (layer,) = tables_of(converted)
    assert layer.storage == storage
    assert isinstance(layer.embeddings_constraint, keras.constraints.NonNeg)


# --- refusals: no table is made ---


class OfItsOwn(keras.Model):
    """A subclassed model."""

    def __init__(self) -> None:
        super().__init__(name="mine")
        self.words = keras.layers.Embedding(50, 3)

    def call(self, inputs: Any) -> Any:
        return self.words(inputs)


class Louder(keras.layers.Embedding):
    """A layer that may do something else."""


def sequential(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((4,), dtype="int64"), *layers])


def regularized() -> Any:
    return sequential(keras.layers.Embedding(50, 3, embeddings_regularizer="l2", name="words"))


def of_columns() -> Any:
    return sequential(keras.layers.Embedding(50, 3, embeddings_constraint="max_norm", name="words"))


def of_doubles() -> Any:
    return sequential(keras.layers.Embedding(50, 3, dtype="float64", name="words"))


def with_lora() -> Any:
    model = sequential(keras.layers.Embedding(50, 3, name="words"))
    model.get_layer("words").enable_lora(2)
    return model


def quantized() -> Any:
    model = sequential(keras.layers.Embedding(50, 4, name="words"))
    model.quantize("int8")
    return model


def wrapped() -> Any:
    return keras.Sequential([keras.Input((4, 2)), keras.layers.TimeDistributed(keras.layers.Embedding(50, 3))])


def with_a_subclass_inside() -> Any:
    inputs = keras.Input((4,), dtype="int64")
    return keras.Model(inputs, OfItsOwn()(inputs))


def with_a_table() -> Any:
    return sequential(tsps.Embedding(50, 3, name="words"), keras.layers.Flatten(), keras.layers.Embedding(50, 3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (OfItsOwn, r"(?s)'mine'.*OfItsOwn.*self\.embedding = tsps\.Embedding\(50, 3\).*set_weights"),
        (with_a_subclass_inside, "'mine' cannot be converted"),
        (lambda: sequential(Louder(50, 3, name="words")), "'words'.*Louder"),
        (regularized, "'words' cannot be converted.*embeddings_regularizer is not supported"),
        (of_columns, "'words' cannot be converted.*axis=1"),
        (of_doubles, "'words' cannot be converted.*float64"),
        (wrapped, r"'time_distributed\w*' \(TimeDistributed\).*'embedding\w*'"),
        (with_a_table, "'words' of tf_sparse_ps already"),
        (lambda: sequential(keras.layers.Dense(1)), r"has no keras.layers.Embedding"),
        (lambda: keras.layers.Embedding(50, 3), "`model` must be a Keras model. Received: Embedding"),
        *(
            [(with_lora, "'words'.*lora_rank=2"), (quantized, "'words'.*quantization_mode='int8'")]
            if _keras.IS_KERAS_3
            else []
        ),
    ],
)
def test_what_cannot_be_converted_is_named(make: Any, words: str) -> None:
    model = make()
    with pytest.raises((errors.UnsupportedError, errors.InvalidArgumentError), match=words):
        tsps.convert(model)


def test_wrong_options_are_refused() -> None:
    model = sequential(keras.layers.Embedding(50, 3, name="words"))
    with pytest.raises(errors.InvalidArgumentError, match=r"table options.*Received: \['dim'\]"):
        tsps.convert(model, dim=3)
    with pytest.raises(ValueError, match="storage"):
        tsps.convert(model, storage="nowhere")
