"""A table exists as long as something can read or train it, and no longer."""

from __future__ import annotations

import gc
import os
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fork_server import run_forked
from layer_support import FOLDER, IDS, TARGETS, compiled, functional, keras, run_child, tf

import tf_sparse_ps as tsps
from tf_sparse_ps import errors

PROGRAM = Path(__file__).parent / "lifetime_program.py"


def eventually(condition: Any) -> bool:
    """Whether a condition becomes true. A thread frees tables soon after garbage was collected."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def is_gone(path: str) -> bool:
    """Whether a table is removed, and unmapped in this process, after garbage was collected."""
    gc.collect()

    def gone() -> bool:
        with open("/proc/self/maps") as maps:
            return not os.path.exists(path) and path not in maps.read()

    return eventually(gone)


def path_of(model: Any) -> str:
    """Returns the path of the table of the model's first embedding."""
    layer = next(layer_of_model for layer_of_model in model.layers if isinstance(layer_of_model, tsps.Embedding))
    return layer.bindings[0].path


def fit(model: Any) -> None:
    model.fit(IDS, TARGETS, verbose=0, shuffle=False)


@pytest.fixture
def root() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tf_sparse_ps-lifetime-", dir="/dev/shm") as path:
        yield path


@pytest.mark.parametrize("models", [12, pytest.param(300, marks=[pytest.mark.nightly, pytest.mark.timeout(3000)])])
@pytest.mark.nightly
def test_models_that_are_dropped_take_nothing(models: int, root: str) -> None:
    done = run_forked(PROGRAM, [str(models), root], timeout_s=250 + 8 * models, TFSPS_DIR=root)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank is done" in done.stdout


def test_a_model_goes_with_its_table_and_its_readers_are_told() -> None:
    model = compiled(tsps.Embedding(None, 4))
    fit(model)
    path = path_of(model)
    reader = tsps.Table.open(path)
    assert len(reader) == 5
    model.get_layer(index=1).count_params()  # opens a reader, which the layer keeps
    del model
    keras.backend.clear_session()
    gc.collect()
    assert eventually(lambda: not os.path.exists(path))
    with pytest.raises(errors.NotFoundError, match="has been removed"):
        reader.lookup([1])
    with pytest.raises(errors.NotFoundError, match="no table"):
        tsps.Table.open(path)
    assert is_gone(path)


def test_a_concrete_function_serves_when_its_layer_is_gone() -> None:
    def trace() -> tuple[Any, Any, str, Any]:
        layer = tsps.Embedding(5, 3, embeddings_initializer="normal")
        layer.build(None)
        serve = tf.function(lambda ids: layer(ids)).get_concrete_function(tf.TensorSpec([None], tf.int64))
        return serve, weakref.ref(layer), layer.bindings[0].path, layer.get_weights()[0]

    serve, layer, path, rows = trace()
    gc.collect()
    assert layer() is None
    tsps.Embedding(5, 3).build(None)  # a new layer frees released tables
    np.testing.assert_array_equal(serve(tf.constant([4, 0], tf.int64)), rows[[4, 0]])
    del serve
    assert is_gone(path)


def step_of(model: Any, optimizer: Any, between: Any = None) -> Any:
    """Returns a training step as a tf.function. It calls `between` between the lookup and the update."""

    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids))
        gradients = tape.gradient(loss, model.trainable_variables)
        with tf.control_dependencies([] if between is None else [tf.py_function(between, [loss], tf.float32)]):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return tf.function(step)


def sgd() -> Any:
    return tsps.DistributedOptimizer(keras.optimizers.SGD(1.0))


def test_a_step_that_was_traced_trains_when_its_model_is_gone() -> None:
    def trace() -> tuple[Any, str]:
        model = functional(tsps.Embedding(None, 4, embeddings_initializer="zeros"))
        step = step_of(model, sgd())
        return step.get_concrete_function(tf.TensorSpec([None, 3], tf.int64)), path_of(model)

    traced, path = trace()
    gc.collect()
    traced(tf.constant(IDS))
    before = tsps.Table.open(path).lookup([1, 2, 3])
    traced(tf.constant(IDS))
    assert (tsps.Table.open(path).lookup([1, 2, 3]) != before).all()
    del traced
    assert is_gone(path)


def test_gradients_applied_by_a_function_of_their_own_keep_the_table() -> None:
    def trace() -> tuple[Any, str]:
        layer = tsps.Embedding(None, 2, embeddings_initializer="zeros")
        layer.build(None)
        optimizer, anchors = sgd(), layer.trainable_variables

        def apply(keys: tf.Tensor, rows: tf.Tensor) -> None:
            optimizer.apply_gradients([(tf.IndexedSlices(rows, keys), anchors[0])])

        specs = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2], tf.float32)
        return tf.function(apply).get_concrete_function(*specs), layer.bindings[0].path

    traced, path = trace()
    gc.collect()
    traced(tf.constant([7], tf.int64), tf.ones([1, 2]))
    np.testing.assert_array_equal(tsps.Table.open(path).lookup([7]), [[-1, -1]])
    del traced
    assert is_gone(path)


def test_a_table_stays_while_a_step_of_it_runs() -> None:
    looked_up, dropped, failed = threading.Event(), threading.Event(), []

    def wait(loss: Any) -> Any:
        looked_up.set()
        assert dropped.wait(60)
        return loss

    def run(steps: list[Any]) -> None:
        try:
            steps.pop()(tf.constant(IDS))
        except Exception as error:
            failed.append(error)

    def start() -> tuple[threading.Thread, str]:
        model = functional(tsps.Embedding(None, 4, embeddings_initializer="zeros"))
        thread = threading.Thread(target=run, args=([step_of(model, sgd(), wait)],))
        thread.start()
        return thread, path_of(model)

    thread, path = start()
    assert looked_up.wait(60)
    gc.collect()
    tsps.Embedding(None, 4).build(None)  # a new layer frees released tables
    assert os.path.exists(path)
    reader = tsps.Table.open(path)
    step = reader.step
    dropped.set()
    thread.join(60)
    assert not failed
    assert reader.step == step + 1
    assert is_gone(path)


def test_a_model_trains_on_as_if_the_dropped_one_had_never_been() -> None:
    def build(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        table = tsps.TableConfig("table", 4, seed=seed)
        return compiled(tsps.Embedding(None, 4, table=table))

    def content(model: Any) -> list[Any]:
        _, rows, slots = model.get_layer(index=1).bindings[0].reader().entries(np.arange(10))
        return [rows, *slots, *(np.asarray(weight) for weight in model.get_layer(index=-1).weights)]

    contents = []
    for beside in (False, True):
        model = build(3)
        # Initial values depend on the table's number.
        model.get_layer(index=1).bindings[0].assign(
            np.arange(10), np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
        )
        other_model = build(4) if beside else None
        for i in range(6):
            fit(model)
            if other_model is not None and i < 3:
                fit(other_model)
            if other_model is not None and i == 3:
                path = path_of(other_model)
                other_model = None
                assert is_gone(path)
        contents.append(content(model))
    for alone, with_other in zip(*contents, strict=True):
        np.testing.assert_array_equal(alone, with_other)


def test_an_optimizer_does_not_keep_the_table_that_it_has_trained() -> None:
    model = compiled(tsps.Embedding(None, 4))
    fit(model)
    path, optimizer = path_of(model), model.optimizer
    # Keras's optimizer keeps dense weights, but not the layers of the model.
    del model
    keras.backend.clear_session()
    assert is_gone(path)
    with pytest.raises(ValueError, match="layer is gone"):
        optimizer.apply([None, None, None])


def test_a_search_over_hyperparameters_has_the_room_of_two_models(tmp_path: Path) -> None:
    """Each model takes 20 of 64 MiB, and only the garbage collector can free it."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", tmp_path], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
    code = """
import gc
import numpy as np
import tf_sparse_ps as tsps
gc.disable()
for rate in range(6):
    layer = tsps.Embedding(None, 256)
    layer.build(None)
    layer._bound.layer = layer  # a cycle, as in models: only the collector can free it
    layer.bindings[0].assign(np.arange(16 << 10), np.full((16 << 10, 256), rate, np.float32))
print(len(layer.bindings[0].reader()))
"""
    try:
        assert run_child(code, TFSPS_DIR=os.fspath(tmp_path)).strip() == str(16 << 10)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_another_process_and_a_forked_child_are_no_reason_to_free_a_table(root: str) -> None:
    code = """
import gc, os
import tf_sparse_ps as tsps
layer = tsps.Embedding(None, 4)
layer.build(None)
path = layer.bindings[0].path
child = os.fork()
if child == 0:
    del layer
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
tsps.Embedding(None, 4).build(None)
print(os.path.exists(path))
del layer
gc.collect()
tsps.Embedding(None, 4).build(None)
print(os.path.exists(path))
"""
    assert run_child(code, TFSPS_DIR=root).split() == ["True", "False"]


def test_a_named_job_keeps_its_tables(root: str) -> None:
    code = """
import gc, os
import numpy as np
import tf_sparse_ps as tsps
layer = tsps.Embedding(None, 4)
layer.build(None)
path = layer.bindings[0].path
layer.bindings[0].assign(np.array([3]), np.full((1, 4), 2, np.float32))
del layer
gc.collect()
tsps.Embedding(None, 4).build(None)
print(os.path.exists(path))
"""
    assert run_child(code, TFSPS_DIR=root, TFSPS_JOB="kept").split() == ["True"]
    again = "import tf_sparse_ps as tsps\nlayer = tsps.Embedding(None, 4)\nlayer.build(None)\n"
    again += "print(layer.bindings[0].reader().lookup([3]).tolist())"
    assert run_child(again, TFSPS_DIR=root, TFSPS_JOB="kept").strip() == "[[2.0, 2.0, 2.0, 2.0]]"


@pytest.mark.nightly
def test_the_limit_is_of_tables_in_use(root: str) -> None:
    code = """
from tf_sparse_ps import errors, job
from tf_sparse_ps.config import TableConfig
me = job.current()
kept = [me.create_table(TableConfig("kept", 2)) for _ in range(1000)]
for i in range(100):
    made = me.create_table(TableConfig("passing", 2))
print(made.ordinal, made.reader().lookup([1]).shape)
kept += [me.create_table(TableConfig("kept", 2)) for _ in range(23)]
try:
    me.create_table(TableConfig("more", 2))
except errors.StateError as error:
    print(error)
del kept[:5]
more = me.create_table(TableConfig("more", 2))
print(more.ordinal)
"""
    out = run_child(code, TFSPS_DIR=root).splitlines()
    assert out[0] == "1099 (1, 2)"
    assert "at most 1024 tables at a time" in out[1]
    assert int(out[2]) > 1122


def test_folders_of_removed_tables_are_not_looked_for_by_new_ones() -> None:
    """Ordinals continue, because they name the leftovers on disk."""
    first = tsps.Embedding(None, 4)
    first.build(None)
    ordinal = first.bindings[0].ordinal
    del first
    gc.collect()
    second = tsps.Embedding(None, 4)
    second.build(None)
    assert second.bindings[0].ordinal == ordinal + 1
    assert os.path.dirname(second.bindings[0].path).startswith(FOLDER)
