"""Layers whose tables admit keys, in one process. tests/multirank/test_table_policies.py compares ranks and nodes."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import compiled, functional, keras, layer_and_model, run_forked, table_of

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import StateError, UnsupportedError

ADMISSION = tsps.Admission(3, 1000)
TARGETS = np.ones((2, 1), np.float32)


def keys_of(layer: Any) -> list[int]:
    return sorted(table_of(layer).keys().tolist())


def train(model: Any, ids: list[list[int]]) -> None:
    """Makes a step of two samples of three ids."""
    model.train_on_batch(np.array(ids), TARGETS)


@pytest.mark.parametrize("kind", ["argument", "table", "reduce", "collection", "pooled collection"])
def test_the_third_occurrence_makes_a_row_and_trains_it(kind: str) -> None:
    layer, model = layer_and_model(kind, admission=ADMISSION)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    model.compile(optimizer, "mse")
    model.build((None, 3))
    initial = table_of(layer).lookup([7, 8])
    train(model, [[7, 8, 9], [7, 5, 5]])
    assert keys_of(layer) == []
    model.predict(np.full((2, 3), 7), verbose=0)
    model.evaluate(np.full((2, 3), 7), TARGETS, verbose=0)
    train(model, [[8, 1, 1], [1, 5, 2]])
    assert keys_of(layer) == [1, 5]
    np.testing.assert_array_equal(table_of(layer).lookup([7, 8]), initial)
    train(model, [[7, 1, 1], [1, 1, 1]])
    assert keys_of(layer) == [1, 5, 7]
    assert (table_of(layer).lookup([7, 8]) != initial).any(axis=1).tolist() == [True, False]
    counts = optimizer.statistics()
    assert (counts["rows_admitted"], counts["gradients_dropped"]) == (3, 6)
    assert 0 < counts["sketch_fill"] < 0.05
    assert 0 <= counts["sketch_error"] < 0.05


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_every_lookup_and_batch_of_a_step_counts(graph: bool) -> None:
    layer = tsps.Embedding(None, 4, admission=ADMISSION)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))
    layer.build(None)
    (weight,) = layer.trainable_weights

    def gradient(*ids: list[int]) -> tf.IndexedSlices:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(layer(tf.constant(part, tf.int64))) for part in ids])
        return tape.gradient(loss, weight)

    def joined(a: tf.IndexedSlices, b: tf.IndexedSlices) -> tf.IndexedSlices:
        return tf.IndexedSlices(tf.concat([a.values, b.values], 0), tf.concat([a.indices, b.indices], 0))

    def two_lookups() -> None:
        optimizer.apply_gradients([(gradient([1, 2], [2, 3, 3, 3]), weight)])

    def two_batches() -> None:
        optimizer.apply_gradients([(joined(gradient([1, 4]), gradient([4, 2, 4])), weight)])

    def scaled() -> None:
        slices = gradient([5, 5, 5, 6])
        optimizer.apply_gradients([(tf.IndexedSlices(slices.values * 2.0, slices.indices), weight)])

    for step, expected in ((two_lookups, [3]), (two_batches, [2, 3, 4]), (scaled, [2, 3, 4, 5])):
        (tf.function(step) if graph else step)()
        assert keys_of(layer) == expected, step.__name__
    gradient([8, 8, 8])  # a gradient that no step applies
    optimizer.apply_gradients([(gradient([9]), weight)])
    optimizer.apply_gradients([(gradient([8]), weight)])
    assert keys_of(layer) == [2, 3, 4, 5]


@pytest.mark.parametrize("how", ["global_clipnorm", "average", "sum", "TimedBuckets"])
def test_every_way_of_a_step_takes_the_counts(how: str) -> None:
    clip = {"global_clipnorm": 0.5} if how == "global_clipnorm" else {}
    reduction = {"sparse_reduction": how} if how in ("average", "sum") else {}
    schedule = {"schedule": tsps.schedules.TimedBuckets()} if how == "TimedBuckets" else {}
    layer = tsps.Embedding(None, 4, admission=ADMISSION)
    model = functional(layer)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5, **clip), **reduction, **schedule), "mse")
    train(model, [[1, 1, 2], [2, 3, 3]])
    train(model, [[1, 4, 4], [4, 5, 5]])
    assert keys_of(layer) == [1, 4]


def test_two_models_on_one_table_count_together() -> None:
    layer = tsps.Embedding(None, 4, admission=ADMISSION)
    first, second = (functional(layer) for _ in range(2))
    inner = keras.optimizers.SGD(0.1)
    optimizer = tsps.DistributedOptimizer(inner)
    for model in (first, second):
        model.compile(optimizer, "mse")
    first.fit(np.array([[1, 2, 3], [1, 4, 5]]), TARGETS, batch_size=2, verbose=0)
    optimizer.build([*first.trainable_variables, *second.trainable_variables[1:]])
    for model, expected in ((first, []), (second, [2, 3])):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(np.array([[2, 3, 9]])))
        optimizer.apply_gradients([(tape.gradient(loss, layer.trainable_weights[0]), layer.trainable_weights[0])])
        assert keys_of(layer) == expected


def test_a_step_that_is_refused_counts_nothing() -> None:
    layer = tsps.Embedding(None, 4, admission=tsps.Admission(2, 100))
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))
    layer.build(None)
    for scale, expected in ((np.inf, []), (1.0, []), (1.0, [7])):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([7]))) * scale
        slices = tape.gradient(loss, layer.trainable_weights)
        if np.isinf(scale):
            with pytest.raises(tf.errors.OpError, match=r"not finite|non-finite|infinite"):
                optimizer.apply_gradients(zip(slices, layer.trainable_weights, strict=True))
        else:
            optimizer.apply_gradients(zip(slices, layer.trainable_weights, strict=True))
        assert keys_of(layer) == expected


def test_models_carry_their_admission(tmp_path: Path) -> None:
    admission = tsps.Admission(2, 500, half_life=9)
    layer = tsps.Embedding(None, 4, admission=admission)
    model = compiled(layer)
    train(model, [[1, 1, 2], [3, 3, 4]])
    assert keras.models.clone_model(model).layers[-3].admission == admission
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    again = next(part for part in loaded.layers if isinstance(part, tsps.Embedding))
    assert again.admission == admission
    assert keys_of(again) == [1, 3]
    train(loaded, [[2, 6, 6], [4, 4, 5]])
    assert keys_of(again) == [1, 3, 4, 6], "a file of weights has no counts"
    inside = tsps.Embedding(None, 4, table=tsps.TableConfig("t", 4, admission=admission))
    assert tsps.Embedding.from_config(inside.get_config()).table.admission == admission


def test_a_saved_model_reads_keys_without_a_row(tmp_path: Path) -> None:
    layer = tsps.Embedding(None, 4, admission=tsps.Admission(2, 500))
    model = compiled(layer)
    train(model, [[1, 1, 2], [3, 3, 4]])
    ids = tf.constant([[1, 2, 3], [4, 5, 6]], tf.int64)
    expected = layer(ids)
    module = tf.Module()
    module.layer = layer
    module.serve = tf.function(layer, input_signature=[tf.TensorSpec([None, 3], tf.int64)])
    tf.saved_model.save(module, str(tmp_path / "m"))
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_array_equal(loaded.serve(ids), expected)


# --- checkpoints ---


def save(path: Path, model: Any, **options: Any) -> None:
    tsps.Checkpointer(path, model, model.optimizer, background=False, **options).save()


def test_a_checkpoint_has_the_counts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layers = [tsps.Embedding(None, 4, name="e", admission=ADMISSION) for _ in range(2)]
    saved, restored = (compiled(layer) for layer in layers)
    train(saved, [[1, 1, 2], [2, 3, 3]])
    train(saved, [[4, 4, 1], [5, 6, 7]])
    save(tmp_path / "c", saved)
    train(restored, [[8, 8, 2], [8, 9, 9]])  # before the restore
    other = compiled(layers[1])
    tsps.Checkpointer(tmp_path / "c", other, other.optimizer).restore()
    assert "counted from 0" not in capfd.readouterr().err
    assert keys_of(layers[1]) == [1]
    for model in (saved, other):
        train(model, [[2, 3, 4], [5, 5, 9]])
    assert keys_of(layers[0]) == keys_of(layers[1]) == [1, 2, 3, 4, 5]
    assert table_of(layers[1]).stats()["gradients_dropped"] >= 1


def test_increments_have_the_counts_that_changed(tmp_path: Path) -> None:
    layers = [tsps.Embedding(None, 4, name="e", admission=ADMISSION) for _ in range(2)]
    saved, restored = (compiled(layer) for layer in layers)
    checkpointer = tsps.Checkpointer(tmp_path / "c", saved, saved.optimizer, background=False, incremental=True)
    for ids in ([1, 2, 3], [1, 4, 5], [2, 4, 6]):
        train(saved, [ids, ids])
        checkpointer.save()
    tsps.Checkpointer(tmp_path / "c", restored, restored.optimizer).restore()
    for model in (saved, restored):
        train(model, [[3, 5, 6], [7, 7, 8]])
    assert keys_of(layers[0]) == keys_of(layers[1]) == [1, 2, 3, 4, 5, 6]


def test_diff_compares_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tf_sparse_ps.__main__ import main

    saved = compiled(tsps.Embedding(None, 4, name="e", admission=ADMISSION))
    checkpointer = tsps.Checkpointer(tmp_path / "c", saved, saved.optimizer, background=False, incremental=False)
    paths = []
    for _ in range(2):
        train(saved, [[1, 2, 3], [4, 5, 6]])
        paths.append(str(checkpointer.save()))
    capsys.readouterr()
    assert main(["checkpoint", "diff", *paths, "--json"]) == 1
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert list(tables) == ["e", "e (counts)"]
    assert tables["e"]["changed"] == 0
    assert tables["e (counts)"]["changed"] > 0
    assert tables["e (counts)"]["equal"] == 0


def test_a_directory_of_one_machine_has_its_counts(tmp_path: Path) -> None:
    layers = [tsps.Embedding(None, 4, name="e", admission=ADMISSION) for _ in range(2)]
    saved, restored = (compiled(layer) for layer in layers)
    train(saved, [[1, 2, 3], [1, 2, 4]])
    save(tmp_path / "c", saved, per_node=True)
    tsps.Checkpointer(tmp_path / "c", restored, restored.optimizer, per_node=True).restore()
    train(restored, [[1, 2, 3], [5, 6, 7]])
    assert keys_of(layers[1]) == [1, 2]


@pytest.mark.parametrize("command", ["compact", "erase"])
def test_commands_keep_the_counts(tmp_path: Path, command: str) -> None:
    from tf_sparse_ps.__main__ import main

    layers = [tsps.Embedding(None, 4, name="e", admission=ADMISSION) for _ in range(2)]
    saved, restored = (compiled(layer) for layer in layers)
    checkpointer = tsps.Checkpointer(tmp_path / "c", saved, saved.optimizer, background=False, incremental=True)
    for ids in ([1, 2, 3], [1, 4, 5]):
        train(saved, [ids, ids])
        checkpointer.save()
    (tmp_path / "keys.txt").write_text("1\n")
    options = ["--keys", str(tmp_path / "keys.txt")] if command == "erase" else []
    assert main(["checkpoint", command, str(tmp_path / "c"), *options]) == 0
    tsps.Checkpointer(tmp_path / "c", restored, restored.optimizer).restore()
    train(restored, [[2, 3, 6], [4, 5, 6]])
    assert keys_of(layers[1]) == ([2, 3, 4, 5] if command == "erase" else [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("before", "now", "words", "keys"),
    [
        (ADMISSION, tsps.Admission(2, 1000), "the admission was count=3", [1, 2, 9]),
        (ADMISSION, tsps.Admission(3, 5000), "counted from 0 again, because expected_keys or the size", [1, 2]),
        (ADMISSION, tsps.Admission(20, 1000), "counted from 0 again, because expected_keys or the size", [1]),
        (None, ADMISSION, "the admission was none, and is count=3", [1, 2, 3]),
        (ADMISSION, None, "expected_keys=1000, half_life=10000, and is none", [1, 2, 9]),
    ],
)
def test_a_restore_may_change_the_admission_and_says_so(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    before: tsps.Admission | None,
    now: tsps.Admission | None,
    words: str,
    keys: list[int],
) -> None:
    saved = compiled(tsps.Embedding(None, 4, name="e", admission=before))
    train(saved, [[1, 1, 1], [2, 2, 3]])
    save(tmp_path / "c", saved)
    layer = tsps.Embedding(None, 4, name="e", admission=now)
    model = compiled(layer)
    tsps.Checkpointer(tmp_path / "c", model, model.optimizer).restore()
    assert words in capfd.readouterr().err
    train(model, [[2, 2, 2], [1, 9, 9]])
    assert keys_of(layer) == keys


def test_a_damaged_count_is_found(tmp_path: Path) -> None:
    saved = compiled(tsps.Embedding(None, 4, name="e", admission=ADMISSION))
    checkpointer = tsps.Checkpointer(tmp_path / "c", saved, saved.optimizer, background=False, incremental=False)
    for ids in ([1, 2, 3], [4, 5, 6]):
        train(saved, [ids, ids])
        checkpointer.save()
    newest = sorted((tmp_path / "c").iterdir())[-1]
    (file,) = newest.glob("*e_sketch*.tfsps")
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    model = compiled(tsps.Embedding(None, 4, name="e", admission=ADMISSION))
    with pytest.warns(UserWarning, match="e_sketch.*is damaged"):
        restored = tsps.Checkpointer(tmp_path / "c", model, model.optimizer).restore()
    assert restored is not None
    assert restored != newest


# --- lifetime and refusals ---

_NAMED = """
import numpy as np, tensorflow as tf, tf_sparse_ps as tsps
layer = tsps.Embedding(None, 4, name="e", POLICIES)
inputs = tf.keras.Input((3,), dtype="int64")
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(layer(inputs))))
model.compile(tsps.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
model.train_on_batch(np.array([[7, 8, 8]]), np.ones((1, 1)))
print(sorted(layer.bindings[0].reader().keys().tolist()))
"""


def test_a_named_job_continues_its_counts_and_reports_another_policy(tmp_path: Path) -> None:
    environment = {"TFSPS_DIR": str(tmp_path), "TFSPS_JOB": "ctr"}
    tmp_path.chmod(0o700)
    runs = [
        ("admission=tsps.Admission(3, 1000)", [], ""),
        ("admission=tsps.Admission(3, 1000)", [8], ""),
        ("admission=tsps.Admission(4, 1000)", [8], "table 'e': the admission was count=3, expected_keys=1000"),
        ("admission=tsps.Admission(2, 9000)", [8], "counted from 0 again"),
        ("", [7, 8], "the admission was count=2, expected_keys=9000, half_life=10000, and is none"),
        ("admission=tsps.Admission(3, 1000)", [7, 8], "the admission was none, and is count=3"),
    ]
    for policies, keys, words in runs:
        done = run_forked(_NAMED.replace("POLICIES", policies), **environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(keys), policies
        assert words in done.stderr, done.stderr
        assert bool(words) == ("admission" in done.stderr), done.stderr


def test_a_table_with_a_sketch_counts_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    from tf_sparse_ps import job
    from tf_sparse_ps.job import table_lifetime

    lifetimes = job.current().tables.lifetimes
    gc.collect()
    lifetimes.tidy()
    monkeypatch.setattr(table_lifetime, "MAX_TABLES", lifetimes._used + 3)
    kept = [tsps.Embedding(None, 4, admission=ADMISSION), tsps.Embedding(None, 4)]
    for layer in kept:
        layer.build(None)
    with pytest.raises(StateError, match="all of them are in use"):
        tsps.Embedding(None, 4, admission=ADMISSION).build(None)
    del kept[0]
    tsps.Embedding(None, 4, admission=ADMISSION).build(None)


def test_a_sketch_is_removed_with_its_layer() -> None:
    layer = tsps.Embedding(None, 4, admission=ADMISSION)
    layer(tf.constant([1]))
    path = Path(layer.bindings[0].path)
    folders = [path, path.with_name(path.name + ".sketch")]
    assert all(folder.is_dir() for folder in folders)
    del layer
    gc.collect()
    tsps.Embedding(None, 4)(tf.constant([1]))  # making a table frees those that nobody uses
    assert not any(folder.exists() for folder in folders)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="takes storage, placement, eviction and admission from the table"):
        tsps.Embedding(None, 4, table=tsps.TableConfig("t", 4), admission=ADMISSION)
    with pytest.raises(UnsupportedError, match="device cache cannot admit"):
        tsps.Embedding(None, 4, cache=tsps.DeviceCache(rows=10), admission=ADMISSION)
    with pytest.raises(ValueError, match="makes all rows at the start"):
        tsps.Embedding(9, 4, keras.initializers.Orthogonal(), admission=ADMISSION)
    with pytest.raises(ValueError, match="admission=3"):
        tsps.Embedding(None, 4, admission=3)  # type: ignore[arg-type]
    layer = tsps.Embedding(None, 4, admission=ADMISSION)
    model = functional(layer)
    schedule = tsps.schedules.DelayedGlobal(staleness=1)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=schedule), "mse")
    with pytest.raises(Exception, match=r"admission=.*cannot be trained with DelayedGlobal"):
        train(model, [[1, 1, 1], [1, 1, 1]])
