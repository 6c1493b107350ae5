"""`import_rows` writes into checkpoints and tables of stopped jobs, also from files of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from core_tables import scratch_folder
from fork_server import run_forked
from transfer_support import block_of, keras, trained

import tf_sparse_ps as tsps
from tf_sparse_ps import errors
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.rows import export_rows, import_rows
from tf_sparse_ps.table.scan import Block

DIM = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as path:
        yield path


def layer_and_model(steps: int = 3, **options: Any) -> tuple[Any, Any]:
    return trained(tsps.Embedding(None, DIM, name="words", **options), steps=steps)


def checkpointer(model: Any, path: Path) -> tsps.Checkpointer:
    return tsps.Checkpointer(path, model, model.optimizer, background=False)


def split(block: Block, keys: Any) -> tuple[Block, Block]:
    chosen = np.isin(block.keys, keys)
    return block.where(chosen), block.where(~chosen)


def check_blocks(got: Block, expected: Block) -> None:
    planes = (got.keys, got.rows, *got.slots), (expected.keys, expected.rows, *expected.slots)
    for one, other in zip(*planes, strict=True):
        np.testing.assert_array_equal(one, other)


# --- checkpoints ---


@pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")
@pytest.mark.parametrize(("slots", "policy"), [(True, None), (False, None), (False, "eviction")])
def test_an_import_into_a_checkpoint(slots: bool, policy: str | None, folder: Path) -> None:
    options = {"eviction": tsps.Eviction(unused_steps=1000)} if policy else {}
    layer, model = layer_and_model(**options)
    saver = checkpointer(model, folder / "checkpoints")
    saver.save()
    model.train_on_batch(np.array([[1, 2]]), np.ones((1, 1), np.float32))
    saver.save()  # an increment
    before = block_of(layer)
    # The file replaces every second row, and adds rows.
    keys = np.concatenate([before.keys[::2], np.arange(1000, 1010)])
    random = np.random.default_rng(0)
    table = tsps.Table.create(
        folder / "group" / "words", tsps.TableConfig("words", DIM, optimizer=tsps.optimizers.Adagrad())
    )
    table.assign(keys, random.normal(size=(len(keys), DIM)).astype(np.float32), [np.ones((len(keys), DIM), np.float32)])
    export_rows(table, folder / "words.npz", slots=slots)
    names = [found.path.name for found in CheckpointDirectory(folder / "checkpoints").find()]
    assert import_rows(folder / "words.npz", folder / "checkpoints", table="words") == len(keys)
    found = CheckpointDirectory(folder / "checkpoints").find()
    assert [entry.path.name for entry in found] == [f"{names[0]}-2", *names]

    new = block_of(folder / "checkpoints")
    imported, other = split(new, keys)
    theirs = block_of(table)
    np.testing.assert_array_equal(imported.keys, theirs.keys)
    np.testing.assert_array_equal(imported.rows, theirs.rows)
    check_blocks(other, split(before, keys)[1])
    if slots:
        np.testing.assert_array_equal(imported.slots[0], theirs.slots[0])
    else:
        known = np.isin(imported.keys, before.keys)
        np.testing.assert_array_equal(imported.slots[0][known], split(before, keys)[0].slots[0])
        np.testing.assert_array_equal(imported.slots[0][~known], np.full((10, DIM), 0.1, np.float32))

    # A job resumes from it, and its next checkpoint is whole.
    other_layer, other_model = layer_and_model(steps=0, **options)
    resumed = checkpointer(other_model, folder / "checkpoints")
    assert resumed.restore() is not None
    check_blocks(block_of(other_layer), new)
    other_model.train_on_batch(np.array([[1, 1000]]), np.ones((1, 1), np.float32))
    resumed.save()
    check_blocks(block_of(folder / "checkpoints"), block_of(other_layer))


def test_checkpoints_that_do_not_fit(folder: Path) -> None:
    _, model = layer_and_model()
    checkpointer(model, folder / "checkpoints").save()
    source = folder / "wide.npz"
    np.savez(source, keys=np.arange(2), rows=np.ones((2, DIM + 1), np.float32))
    before = sorted(path.name for path in (folder / "checkpoints").iterdir())
    with pytest.raises(errors.InvalidArgumentError, match=r"rows of 4 floats.*rows of 3"):
        import_rows(source, folder / "checkpoints")
    adam, _ = trained(tsps.Embedding(None, DIM, name="words"), keras.optimizers.Adam(0.1))
    export_rows(adam.bindings[0].reader(), source, slots=True)
    with pytest.raises(errors.StateError, match=r"slots of adam.*those of adagrad.*slots=False"):
        import_rows(source, folder / "checkpoints")
    assert import_rows(source, folder / "checkpoints", slots=False) > 0
    with pytest.raises(errors.NotFoundError, match="no table 'users'"):
        import_rows(source, folder / "checkpoints", table="users")
    newest = CheckpointDirectory(folder / "checkpoints").find()[0].path
    with pytest.raises(errors.InvalidArgumentError, match=r"never changes\. Import into its directory"):
        import_rows(source, newest)
    assert len(before) + 1 == len(list((folder / "checkpoints").iterdir()))


# --- tables of named jobs ---

JOB = """
import sys, numpy as np, tensorflow as tf
import tf_sparse_ps as tsps
from tf_sparse_ps import errors
from tf_sparse_ps.rows import import_rows
keras = tf.keras
model = keras.Sequential([
    keras.Input((2,), dtype="int64"), tsps.Embedding(None, 3, "zeros", name="words"), keras.layers.Flatten(),
    keras.layers.Dense(1),
])
model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
if {train}:
    model.fit(np.array([[1, 2], [3, 4]]), np.ones((2, 1)), verbose=0)
    try:
        import_rows({file!r}, model.layers[0].bindings[0].group.path)
    except errors.StateError as error:
        assert "writer" in str(error) or "mode" in str(error) or "reading" in str(error), error
    except errors.WriterLockedError:
        pass
    else:
        raise AssertionError("the table of a running job was changed")
print(model.layers[0](tf.constant([1, 2, 9])).numpy().tolist())
"""


def test_an_import_into_the_table_of_a_stopped_job(folder: Path) -> None:
    file, tables = folder / "words.csv", folder / "tables"
    file.write_text("key,row_0,row_1,row_2\n2,1,2,3\n9,4,5,6\n")
    environment = {"TFSPS_DIR": str(tables), "TFSPS_JOB": "nightly"}
    first = run_forked(JOB.format(train=True, file=str(file)), **environment)
    assert first.returncode == 0, first.stderr[-3000:]
    before = eval(first.stdout.splitlines()[-1])
    (group,) = (path.parent for path in tables.glob("*/group"))
    assert import_rows(file, group) == 2
    second = run_forked(JOB.format(train=False, file=str(file)), **environment)
    assert second.returncode == 0, second.stderr[-3000:]
    assert eval(second.stdout.splitlines()[-1]) == [before[0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    block = block_of(next(group.glob("t0000-*")))
    assert block.keys.tolist() == [1, 2, 3, 4, 9]
    assert (block.slots[0][:4] >= 0.1).all()
    np.testing.assert_array_equal(block.slots[0][4], np.full(3, 0.1, np.float32))


def test_an_import_with_slots_into_a_table(folder: Path) -> None:
    layer, _ = layer_and_model()
    export_rows(layer.bindings[0].reader(), folder / "words.npz", slots=True)
    config = tsps.TableConfig("words", DIM)
    with tsps.Table.create(folder / "group" / "words", config) as table:
        path = table.path
    assert import_rows(folder / "words.npz", path) == len(block_of(layer).keys)
    check_blocks(block_of(path), block_of(layer))
    with tsps.Table.create(folder / "bounded" / "words", tsps.TableConfig("words", DIM, key_limit=5)) as table:
        path = table.path
    with pytest.raises(errors.KeyRangeError, match="from 0 to 4, and a row would get key"):
        import_rows(folder / "words.npz", path)
    assert len(tsps.Table.open(path)) == 0


# --- files of models ---


def model_of_two(table: bool = False) -> Any:
    inputs = keras.Input((2,), dtype="int64")
    layers = [keras.layers.Embedding(12, DIM, name="words"), keras.layers.Embedding(9, 2, name="users")]
    if table:
        layers.append(tsps.Embedding(None, DIM, name="keys"))
    joined = keras.layers.Concatenate()([layer(inputs) for layer in layers])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(joined)))
    optimizer = keras.optimizers.Adagrad(0.1)
    model.compile(tsps.DistributedOptimizer(optimizer) if table else optimizer, "mse")
    model.fit(np.array([[1, 2], [3, 4]]), np.ones((2, 1), np.float32), verbose=0)
    return model


# Keras 2 does not store the names of layers in .keras and .weights.h5 files.
PATHS = {"words": "layers/embedding/vars/0", "users": "layers/embedding_1/vars/0"}


@pytest.mark.parametrize("kind", ["model.keras", "model.weights.h5", "model.h5", "checkpoint"])
def test_files_of_models(kind: str, folder: Path) -> None:
    model = model_of_two()
    file = folder / kind
    if kind == "checkpoint":
        tf.train.Checkpoint(model=model).write(str(file))
    elif "weights" in kind:
        model.save_weights(file)
    else:
        model.save(file)
    with pytest.raises(errors.InvalidArgumentError, match=r"several matrices.*variable=.*It has: .*\[12, 3\]") as info:
        import_rows(file, folder / "no.tfsps")
    listed = [part.split(" [")[0] for part in str(info.value).split("It has: ")[1].split("], ")]
    for name, wanted in (("words", [12, DIM]), ("users", [9, 2])):
        values = model.get_layer(name).get_weights()[0]
        variable = name
        if kind == "checkpoint":
            matches = [part for part in listed if f"{part} {wanted}" in str(info.value)]
            (variable,) = matches
        elif kind != "model.h5" and not _keras.IS_KERAS_3:
            variable = PATHS[name]
        target = folder / f"{name}.tfsps"
        assert import_rows(file, target, variable=variable) == len(values)
        block = block_of(target)
        np.testing.assert_array_equal(block.keys, np.arange(len(values)))
        np.testing.assert_array_equal(block.rows, values)
    with pytest.raises(errors.NotFoundError, match="has no matrix or table 'other'"):
        import_rows(file, folder / "no.tfsps", variable="other")


def test_tables_in_files_of_models(folder: Path) -> None:
    model = model_of_two(table=True)
    model.save(folder / "model.keras")
    variable = "keys" if _keras.IS_KERAS_3 else "layers/embedding_2/vars"
    import_rows(folder / "model.keras", folder / "keys.tfsps", variable=variable)
    layer = model.get_layer("keys")
    check_blocks(block_of(folder / "keys.tfsps"), block_of(layer))
    target = tsps.Embedding(None, DIM)
    target.build(None)
    assert tsps.transfer(folder / "model.keras", target, source_table=variable, slots=True) == 4
    check_blocks(block_of(target), block_of(layer))
    assert export_rows(folder / "model.keras", folder / "keys.csv", table=variable) == 4


@pytest.mark.parametrize("name", ["bad.keras", "bad.h5"])
def test_damaged_files_of_models(name: str, folder: Path) -> None:
    (folder / name).write_bytes(b"no model" * 100)
    with pytest.raises(errors.DamagedFileError, match="damaged"):
        import_rows(folder / name, folder / "no.tfsps")
