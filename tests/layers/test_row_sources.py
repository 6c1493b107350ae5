"""Lookups in parts (unique keys, then rows) give the bits of the lookup op. Plain tables use the lookup op."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras, run_child

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops
from tf_sparse_ps.layers.row_source import RowSource, SharedTable
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient

LIBRARY = str(Path(tsps.__file__).with_name("_ops_lib.so"))
COMBINERS = ("sum", "mean", "sqrtn")
IDS = tf.constant([[3, 1, 3], [1, 7, 2], [9, 9, 9], [0, 3, 8]], tf.int64)
RAGGED = tf.ragged.constant([[3, 1, 3], [], [9], [0, 3, 8, 1]], dtype=tf.int64)
WEIGHTS = tf.constant([[0.5, 1.5, -2.0], [1.0, 0.25, 3.0], [1.0, 2.0, -0.5], [0.1, 0.2, 0.3]])


class ByKeys(RowSource):
    """Reads the rows of a shared table by their unique keys."""

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return SharedTable.read(sources, keys)


def in_parts(monkeypatch: pytest.MonkeyPatch, tables: tuple[int, ...] | None = None) -> None:
    """Makes layers read tables in parts: all tables, or those at these positions in their layer."""

    def source(layer: Any, index: int) -> RowSource:
        cls = ByKeys if tables is None or index in tables else SharedTable
        return cls(layer._bound.bindings[index], layer._bound.anchors[index])

    monkeypatch.setattr(TableLayer, "_row_source", source)


def config(name: str, dim: int, **kwargs: Any) -> tsps.TableConfig:
    return tsps.TableConfig(name, dim, initializer="ones", **kwargs)


def embedding() -> Any:
    return tsps.Embedding(50, 4, table=config("words", 4, key_limit=50))


def narrow() -> Any:
    return tsps.Embedding(None, 6, table=config("narrow", 6, dtype="bfloat16"))


def reduce(combiner: str) -> Any:
    return tsps.EmbeddingReduce(None, 5, combiner=combiner, table=config("bags", 5))


def collection() -> Any:
    shared, other, last = config("shared", 3), config("other", 8), config("last", 2)
    return tsps.EmbeddingCollection(
        {
            "a": tsps.FeatureConfig(shared),
            "b": tsps.FeatureConfig(shared),
            "c": tsps.FeatureConfig(other, combiner="mean"),
            "d": tsps.FeatureConfig(shared, combiner="sqrtn"),
            "e": tsps.FeatureConfig(last),
            "f": tsps.FeatureConfig(last, combiner="sum"),
        }
    )


def many(layer: Any, w: tf.Tensor) -> list[tf.Tensor]:
    vectors = layer({"a": IDS, "b": RAGGED, "c": IDS, "d": RAGGED, "e": IDS[0], "f": IDS[:2]}, {"c": w})
    return [vectors[name] if name != "b" else vectors[name].flat_values for name in sorted(vectors)]


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any, tf.Tensor], list[tf.Tensor]]]] = {
    "embedding": (embedding, lambda layer, w: [layer(IDS) * tf.expand_dims(w, -1)]),
    "ragged": (embedding, lambda layer, w: [layer(RAGGED).flat_values, layer(IDS) * tf.expand_dims(w, -1)]),
    "narrow": (narrow, lambda layer, w: [layer(IDS) * tf.expand_dims(w, -1)]),
    **{
        combiner: (lambda combiner=combiner: reduce(combiner), lambda layer, w: [layer(IDS, w), layer(RAGGED)])
        for combiner in COMBINERS
    },
    "collection": (collection, many),
}


def answers(case: str, mode: Callable[[Callable], Callable]) -> list[np.ndarray]:
    """Returns outputs, gradients of the tables (keys and rows), and gradients of the weights."""
    make, call = CASES[case]
    layer = make()
    call(layer, WEIGHTS)
    for binding in layer.bindings:
        dim = binding.config.dim
        binding.assign(np.arange(9), np.random.default_rng(dim).normal(size=(9, dim)).astype(np.float32))

    def outputs_and_gradients(w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            outputs = call(layer, w)
            loss = tf.add_n(
                [tf.reduce_sum(tf.sin(output) * tf.cast(i + 2, tf.float32)) for i, output in enumerate(outputs)]
            )
        grads = tape.gradient(loss, [*layer.trainable_variables, w])
        parts = [
            [gradient.indices, gradient.values] if isinstance(gradient, tf.IndexedSlices) else [gradient]
            for gradient in grads
        ]
        return outputs, parts

    return [tensor.numpy() for tensor in tf.nest.flatten(mode(outputs_and_gradients)(WEIGHTS))]


MODES = pytest.mark.parametrize("mode", [lambda body: body, tf.function], ids=["eager", "function"])


@MODES
@pytest.mark.parametrize("case", sorted(CASES))
def test_parts_give_the_bits_of_the_one_op(case, mode, monkeypatch):
    expected = answers(case, mode)
    in_parts(monkeypatch)
    actual = answers(case, mode)
    assert len(actual) == len(expected) > 2
    for array, expected_array in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


@MODES
def test_tables_of_one_layer_may_have_different_sources(mode, monkeypatch):
    expected = answers("collection", mode)
    in_parts(monkeypatch, tables=(0, 2))
    for array, expected_array in zip(answers("collection", mode), expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


def fitted() -> list[np.ndarray]:
    """Trains a model, and returns losses, rows and slots."""
    keras.utils.set_random_seed(5)
    inputs = {"x": keras.Input((3,), dtype="int64", name="x"), "w": keras.Input((3,), name="w")}
    layer, bag, many = embedding(), reduce("mean"), collection()
    fields = many(dict.fromkeys("abcdef", inputs["x"]))
    flat = [keras.layers.Flatten()(tensor) for tensor in (layer(inputs["x"]), bag(inputs["x"], inputs["w"]))]
    flat += [keras.layers.Flatten()(fields[name]) for name in sorted(fields)]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(flat)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.3)), "mse")
    rng = np.random.default_rng(2)
    x = {"x": rng.integers(0, 40, (48, 3)), "w": rng.normal(size=(48, 3)).astype(np.float32)}
    history = model.fit(x, rng.normal(size=48).astype(np.float32), batch_size=16, epochs=2, shuffle=False, verbose=0)
    results = [np.array(history.history["loss"])]
    for binding in (*layer.bindings, *bag.bindings, *many.bindings):
        keys = np.sort(binding.reader().keys())
        results += [keys, binding.reader().lookup(keys)]
    return results


def test_fit_gives_the_same_bits(monkeypatch):
    expected = fitted()
    in_parts(monkeypatch)
    for array, expected_array in zip(fitted(), expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


def op_types(function: Any) -> Counter:
    graph = function.get_concrete_function(tf.TensorSpec([None, 3], tf.int64)).graph
    return Counter(op.type for op in graph.get_operations())


@pytest.mark.parametrize("recorded", [False, True])
def test_a_plain_layer_is_one_op_that_finds_unique_keys_only_for_a_gradient(recorded):
    layer = embedding()
    layer.build()

    def by_hand(ids: tf.Tensor) -> tf.Tensor:
        source = layer._row_source(0)
        table = [source.path], [layer.bindings[0].uuid], [source.carrier]
        return _ops.lookup([ids], *table, [0]).rows[0] if recorded else _ops.read_rows([ids], *table, [0])[0]

    def types(look: Callable[[tf.Tensor], tf.Tensor]) -> Counter[str]:
        def call(ids: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() if recorded else contextlib.nullcontext():
                return look(ids)

        return op_types(tf.function(call))

    assert types(by_hand)["TspsLookup" if recorded else "TspsReadRows"] == 1
    assert types(lambda ids: layer.call(ids)) == types(by_hand)


@pytest.mark.parametrize("case", ["embedding", "mean"])
@pytest.mark.parametrize("parts", [False, True])
def test_the_keys_of_a_gradient_are_known_to_be_unique(case, parts, monkeypatch):
    if parts:
        in_parts(monkeypatch)
    layer = CASES[case][0]()
    layer.build()

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(IDS))
        slices = tape.gradient(loss, layer.trainable_variables[0])
        types = {op.type for op in slices.indices.graph.get_operations()}
        assert ("TspsUnique" in types) == parts
        assert SparseGradient.of([slices], layer.output_dim).unique
        return slices.values

    gradient()


def test_keys_out_of_range_are_refused_in_parts_too(monkeypatch):
    in_parts(monkeypatch)
    with pytest.raises(tf.errors.InvalidArgumentError, match="50"):
        embedding()(tf.constant([[1, 50]], tf.int64))


def test_a_saved_model_with_the_lookup_op_alone_is_served(tmp_path):
    """The graph's only op of this library is TspsLookup, with the inputs and attributes that it has always had."""
    layer = embedding()
    expected = layer(IDS).numpy()
    module = tf.Module()
    module.anchor = anchor_value = tf.Variable(tf.zeros([0, 4]), trainable=False)
    module.tsps_asset = layer._bound.anchors[0]
    path = layer._row_source(0).path

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64)])
    def serve(ids: tf.Tensor) -> tf.Tensor:
        return _ops.lib.tsps_lookup([ids], [path], [""], [anchor_value], table_of=[0]).rows[0]

    op_types_used = {
        op.type for op in serve.get_concrete_function().graph.get_operations() if op.type.startswith("Tsps")
    }
    assert op_types_used == {"TspsLookup"}
    module.serve = serve
    tf.saved_model.save(module, str(tmp_path / "model"))
    code = (
        f"import numpy as np, tensorflow as tf; tf.load_op_library({LIBRARY!r}); "
        f"model = tf.saved_model.load({str(tmp_path / 'model')!r}); "
        f"np.save({str(tmp_path / 'out.npy')!r}, model.serve(tf.constant({IDS.numpy().tolist()}, tf.int64)))"
    )
    run_child(code, TFSPS_DIR="")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
