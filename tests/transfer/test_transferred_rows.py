"""`tsps.transfer` writes rows of any source into the table of a layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from transfer_support import block_of, keras, trained

import tf_sparse_ps as tsps
from tf_sparse_ps import errors
from tf_sparse_ps.rows import export_rows

DIM = 3


def built(input_dim: int | None = None, **options: Any) -> Any:
    layer = tsps.Embedding(input_dim, DIM, **options)
    layer.build(None)
    return layer


def rows_of(layer: Any, keys: Any) -> Any:
    return layer(tf.constant(keys, tf.int64)).numpy()


KEYS = np.array([5, -7, 2**62, 40], np.int64)
ROWS = np.random.default_rng(1).normal(size=(4, DIM)).astype(np.float32)


def sources(folder: Path) -> dict[str, Any]:
    """Returns the same rows, KEYS and ROWS, in each kind of source."""
    layer = built(name="words")
    layer.bindings[0].assign(KEYS, ROWS)
    table = layer.bindings[0].reader()
    table.export_parameter_file(folder / "words.tfsps")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    tsps.Checkpointer(folder / "checkpoints", model, model.optimizer, background=False).save()
    tsps.export(model, folder / "serve" / "1")
    export_rows(table, folder / "words.npz")
    made = {
        "layer": layer,
        "table": table,
        "path of a table": table.path,
        "parameter file": folder / "words.tfsps",
        "checkpoints": folder / "checkpoints",
        "version": str(folder / "serve" / "1"),
        "versions": folder / "serve",
        "served table": tsps.ServingTable.open(folder / "serve" / "1"),
        "file of rows": folder / "words.npz",
        "arrays": (KEYS, ROWS),
        "lists": (KEYS.tolist(), ROWS),
    }
    made["kept"] = model
    return made


def test_every_source_gives_the_same_rows(tmp_path: Path) -> None:
    made = sources(tmp_path)
    made.pop("kept")
    for name, source in made.items():
        target = built(name="words")
        target.bindings[0].assign(np.array([40, 1]), np.ones((2, DIM), np.float32))
        assert tsps.transfer(source, target) == 4, name
        np.testing.assert_array_equal(rows_of(target, KEYS), ROWS, err_msg=name)
        np.testing.assert_array_equal(rows_of(target, [1]), np.ones((1, DIM)), err_msg=name)
        assert len(target.bindings[0].reader()) == 5, name
        target = built(name="words")
        mapping = {5: 50, 40: 51, 999: 52}
        assert tsps.transfer(source, target, keys=[40, 999], mapping=mapping) == 1, name
        assert target.bindings[0].reader().keys().tolist() == [51], name
        np.testing.assert_array_equal(rows_of(target, [51]), ROWS[3:], err_msg=name)


@pytest.mark.keras2_smoke
def test_a_keras_layer_and_matrices_give_a_row_to_each_index() -> None:
    before = keras.layers.Embedding(20, DIM)
    before.build((None,))
    matrix = before.get_weights()[0]
    for source in (before, matrix, tf.constant(matrix), matrix.astype(np.float64), before.embeddings):
        bounded, unbounded = built(20), built()
        assert tsps.transfer(source, bounded) == 20
        np.testing.assert_array_equal(bounded.get_weights()[0], matrix)
        assert tsps.transfer(source, unbounded, mapping=(np.arange(10), np.arange(10) * 1000)) == 10
        np.testing.assert_array_equal(rows_of(unbounded, np.arange(10) * 1000), matrix[:10])


@pytest.mark.keras2_smoke
def test_an_index_becomes_a_string() -> None:
    words, layer = ["rome", "oslo", "lima"], tsps.Embedding(None, DIM)
    layer.build(None)
    matrix = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert tsps.transfer(matrix, layer, mapping=dict(enumerate(words))) == 3
    np.testing.assert_array_equal(layer(tf.constant(words)).numpy(), matrix)
    other = built()
    assert tsps.transfer(layer, other, keys=["oslo", "paris"]) == 1
    np.testing.assert_array_equal(other(tf.constant(["oslo"])).numpy(), matrix[1:2])
    # One row may become several, and rows may move within a table.
    assert tsps.transfer(layer, layer, mapping=(["rome", "oslo", "rome"], ["oslo", "rome", "roma"])) == 3
    np.testing.assert_array_equal(layer(tf.constant(["oslo", "rome", "roma"])).numpy(), matrix[[0, 1, 0]])


def test_many_rows_travel_in_blocks(tmp_path: Path) -> None:
    n = 200_000
    keys = np.random.default_rng(4).permutation(n).astype(np.int64)
    rows = np.random.default_rng(5).normal(size=(n, 16)).astype(np.float32)
    source, target = tsps.Embedding(None, 16), tsps.Embedding(None, 16)
    source.build(None), target.build(None)
    assert tsps.transfer((keys, rows), source) == n
    taken = keys[::2]
    assert tsps.transfer(source, target, keys=taken) == n // 2
    np.testing.assert_array_equal(target(tf.constant(taken)).numpy(), rows[::2])


@pytest.mark.parametrize("kind", ["tiered", "cached", "bfloat16", "admitting"])
def test_kinds_of_tables(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "tiered": {"storage": tsps.Tiered(tmp_path / "disk", memory="64 MiB")},
        "cached": {"cache": tsps.DeviceCache(rows=64)},
        "bfloat16": {"table": tsps.TableConfig("narrow", DIM, dtype="bfloat16")},
        "admitting": {"admission": tsps.Admission(count=3, expected_keys=1000)},
    }[kind]
    layer, model = trained(built(**options))
    before = rows_of(layer, [0])
    assert tsps.transfer((KEYS, ROWS), layer) == 4
    expected = tf.cast(tf.cast(ROWS, layer.bindings[0].config.dtype), tf.float32)
    np.testing.assert_array_equal(rows_of(layer, KEYS), expected)
    np.testing.assert_array_equal(rows_of(layer, [0]), before)
    model.fit(KEYS.reshape(2, 2) % 100, np.ones((2, 1), np.float32), verbose=0)
    other = built()
    tsps.transfer(layer, other)
    present = other.bindings[0].reader().keys()
    np.testing.assert_array_equal(rows_of(other, present), rows_of(layer, present))


@pytest.mark.keras2_smoke
def test_slots_are_taken_on_request(tmp_path: Path) -> None:
    source, model = trained(built(name="words"))
    tsps.Checkpointer(tmp_path, model, model.optimizer, background=False).save()
    expected = block_of(source)
    assert (expected.slots[0] != 0.1).any()
    for given in (source, tmp_path):
        fresh, used = built(), trained(built())[0]
        assert tsps.transfer(given, fresh, slots=True) == len(expected.keys)
        np.testing.assert_array_equal(block_of(fresh).rows, expected.rows)
        np.testing.assert_array_equal(block_of(fresh).slots[0], expected.slots[0])
        kept = block_of(used)
        tsps.transfer(given, used)
        for got, want in zip(block_of(used).slots, kept.slots, strict=True):
            np.testing.assert_array_equal(got, want, err_msg="without slots=True, rows keep theirs")
        tsps.transfer(given, used, slots=True)
        np.testing.assert_array_equal(block_of(used).slots[0], expected.slots[0])
        trained(fresh)  # the optimizer uses the slots
        assert (block_of(fresh).slots[0] >= expected.slots[0]).all()


def test_the_next_checkpoint_has_the_rows(tmp_path: Path) -> None:
    layer, model = trained(built(name="words"))
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer, background=False)
    checkpointer.save()
    tsps.transfer((KEYS, ROWS), layer)
    model.train_on_batch(np.array([[1, 2]]), np.ones((1, 1), np.float32))
    checkpointer.save()
    other = built(name="words")
    assert tsps.transfer(tmp_path, other) == len(layer.bindings[0].reader())
    np.testing.assert_array_equal(rows_of(other, KEYS), ROWS)


def test_tables_of_collections_are_named(tmp_path: Path) -> None:
    names = ("users", "words")
    layers = [
        tsps.EmbeddingCollection({name: tsps.FeatureConfig(tsps.TableConfig(name, DIM)) for name in names})
        for _ in range(2)
    ]
    for layer in layers:
        layer.build(None)
    tsps.transfer((KEYS, ROWS), layers[0], table="words")
    assert tsps.transfer(layers[0], layers[1], table="words") == 4
    assert tsps.transfer(layers[0], layers[1], table="users") == 0
    assert tsps.transfer(layers[0], layers[1], table="users", source_table="words") == 4
    with pytest.raises(errors.InvalidArgumentError, match=r"\['users', 'words'\].*Received: None"):
        tsps.transfer((KEYS, ROWS), layers[1])
    with pytest.raises(errors.InvalidArgumentError, match=r"Received: 'other'"):
        tsps.transfer(layers[0], layers[1], table="words", source_table="other")


def wrong_calls(folder: Path) -> list[tuple[Any, ...]]:
    (folder / "twice.csv").write_text("key,row_0,row_1,row_2\n1,1,1,1\n2,2,2,2\n1,3,3,3\n")
    other = tsps.Embedding(None, DIM)
    wide = np.ones((4, DIM + 1), np.float32)
    return [
        (errors.InvalidArgumentError, "rows of 4 floats.*rows of 3", (wide, built(20)), {}),
        (errors.InvalidArgumentError, "has no table yet", (ROWS, other), {}),
        (errors.InvalidArgumentError, "`layer` must be a tsps.Embedding.*Dense", (ROWS, keras.layers.Dense(1)), {}),
        (errors.InvalidArgumentError, "`source` must be a layer.*Received: int", (3, built()), {}),
        (errors.InvalidArgumentError, "`source` must be a layer", (KEYS, built()), {}),
        (errors.InvalidArgumentError, "keys of rows must differ.*key 1 ", (([1, 1], ROWS[:2]), built()), {}),
        (errors.KeyRangeError, "0 to 19, and a row would get key -7", ((KEYS, ROWS), built(20)), {}),
        (errors.KeyRangeError, "key 20", (ROWS, built(20)), {"mapping": {0: 20}}),
        (errors.InvalidArgumentError, "gives key 5 to several rows", (ROWS, built()), {"mapping": {0: 5, 1: 5}}),
        (errors.InvalidArgumentError, "as many old as new.*1 and 2", (ROWS, built()), {"mapping": ([1], [2, 3])}),
        (errors.InvalidArgumentError, "`mapping` must be a dict", (ROWS, built()), {"mapping": 3}),
        (errors.InvalidArgumentError, "`keys`.*must be integers", (ROWS, built()), {"keys": [1.5]}),
        (errors.UnsupportedError, "has no slots of an optimizer", (ROWS, built()), {"slots": True}),
        (errors.StateError, "several rows of key 1", (folder / "twice.csv", built()), {}),
        (errors.NotFoundError, "nowhere does not exist", (folder / "nowhere", built()), {}),
        (errors.InvalidArgumentError, "has no rows: it is no table", (folder, built()), {}),
    ]


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    for error, words, arguments, options in wrong_calls(tmp_path):
        with pytest.raises(error, match=words):
            tsps.transfer(*arguments, **options)


def test_slots_of_another_optimizer_are_refused() -> None:
    source, _ = trained(built())
    target, _ = trained(built(), keras.optimizers.Adam(0.1))
    before = block_of(target)
    with pytest.raises(errors.UnsupportedError, match=r"has slots of adagrad.*is trained by adam"):
        tsps.transfer(source, target, slots=True)
    np.testing.assert_array_equal(block_of(target).rows, before.rows)


def test_rows_that_are_not_finite_are_refused() -> None:
    layer = built()
    rows = np.ones((3, layer.output_dim), np.float32)
    rows[1, 2] = np.inf
    with pytest.raises(errors.InvalidArgumentError, match="inf in the row of key 12"):
        tsps.transfer((np.array([11, 12, 13]), rows), layer)
    assert not len(layer.bindings[0].reader())
