"""Layers whose tables are partly on disk train, save and load like those in memory."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import FOLDER, PACKAGE_PARENT, functional, keras
from lookahead_support import table_of
from mounts import mounted

import tf_sparse_ps as tsps

ROWS, DIM = 3000, 4
MEMORY = 1_790_000  # 1.5 MiB are buffers
RULES = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
}


@pytest.fixture
def disk(tmp_path: Path) -> tsps.Tiered:
    return tsps.Tiered(tmp_path / "disk", memory=MEMORY)


def data(batches: int = 12, rows: int = 128) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, ROWS, (batches * rows, 3)), random.normal(size=(batches * rows, 1)).astype(np.float32)


def content(layer: Any) -> list[np.ndarray]:
    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    _, rows, slots = reader.entries(keys)
    return [keys, rows, *slots]


def trained(storage: Any, rule: str = "Adagrad", key_limit: int | None = ROWS, **kwargs: Any) -> Any:
    keras.utils.set_random_seed(1)
    table = tsps.TableConfig("t", DIM, key_limit=key_limit, seed=1, storage=storage, **kwargs)
    model = functional(tsps.Embedding(key_limit, DIM, table=table, name="words"))
    model.compile(tsps.DistributedOptimizer(RULES[rule]()), "mse")
    x, y = data()
    model.fit(x, y, batch_size=128, epochs=2, verbose=0, shuffle=False, validation_data=(x[:128], y[:128]))
    return model


def assert_equal(a: Any, b: Any) -> None:
    for x, y in zip(content(a.get_layer("words")), content(b.get_layer("words")), strict=True):
        np.testing.assert_array_equal(x, y)
    x, _ = data()
    np.testing.assert_array_equal(a.predict(x, verbose=0), b.predict(x, verbose=0))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        pytest.param("SGD", {}, marks=pytest.mark.nightly),
        ("momentum", {"dtype": "bfloat16", "rounding": "nearest"}),
        ("Adagrad", {"key_limit": None}),
        pytest.param("Adagrad", {"dtype": "float16", "rounding": "nearest"}, marks=pytest.mark.nightly),
        ("Adam", {}),
        pytest.param("RMSprop", {"initializer": "zeros"}, marks=pytest.mark.nightly),
        pytest.param("Ftrl", {"key_limit": None}, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.daily_cases(2)
def test_training_is_that_in_memory_bit_for_bit(disk: tsps.Tiered, rule: str, options: dict[str, Any]) -> None:
    # Initial values must not depend on the tables' salts, which follow from their ordinals.
    options = {"initializer": "ones", **options}
    memory, tiered = trained("memory", rule, **options), trained(disk, rule, **options)
    stats = tiered.get_layer("words").bindings[0].reader().stats()
    assert stats["rows_on_disk"] > 0, stats
    assert_equal(memory, tiered)


def test_saved_with_tiers_and_loaded_without_and_the_reverse(disk: tsps.Tiered, tmp_path: Path) -> None:
    tiered = trained(disk)
    tiered.save(tmp_path / "tiered.keras")
    again = keras.models.load_model(tmp_path / "tiered.keras")
    assert again.get_layer("words").bindings[0].config.storage == disk
    assert_equal(tiered, again)
    memory = trained("memory")
    memory.load_weights(tmp_path / "tiered.keras")
    assert_equal(tiered, memory)
    memory.save_weights(tmp_path / "memory.weights.h5")
    back = trained(disk)
    back.load_weights(tmp_path / "memory.weights.h5")
    assert back.get_layer("words").bindings[0].reader().stats()["rows_on_disk"] > 0
    assert_equal(back, memory)
    x, y = data()
    for model in (memory, back):  # both train alike
        model.fit(x, y, batch_size=128, verbose=0, shuffle=False)
    assert_equal(back, memory)
    module = tf.Module()
    module.model, module.serve = back, tf.function(lambda ids: back(ids))
    call = module.serve.get_concrete_function(tf.TensorSpec([None, 3], tf.int64))
    tf.saved_model.save(module, str(tmp_path / "exported"), signatures=call)
    served = tf.saved_model.load(str(tmp_path / "exported"))
    # Not bit for bit: an exported graph may add the bias within the product.
    np.testing.assert_allclose(served.serve(tf.constant(x[:64])), back(x[:64]), rtol=1e-5, atol=1e-7)


def test_the_layers_take_it_as_an_argument(disk: tsps.Tiered) -> None:
    for layer in (tsps.Embedding(ROWS, DIM, storage=disk), tsps.EmbeddingReduce(ROWS, DIM, storage=disk)):
        assert layer.table_configs()[0].storage == disk
        again = type(layer).from_config(layer.get_config())
        assert again.table_configs()[0].storage == disk
        assert layer(np.arange(6).reshape(2, 3)).shape[-1] == DIM
    table = tsps.TableConfig("shared", DIM, key_limit=ROWS, storage=disk)
    features = {name: tsps.FeatureConfig(table) for name in ("a", "b")}
    rows = tsps.EmbeddingCollection(features)({"a": np.array([1, 2]), "b": np.array([2, 3])})
    np.testing.assert_array_equal(rows["a"][1], rows["b"][0])
    with pytest.raises(ValueError, match="Give them to the table"):
        tsps.Embedding(ROWS, DIM, storage=disk, table=tsps.TableConfig("t", DIM))
    with pytest.raises(ValueError, match=r'`storage` must be "memory" or a tsps.Tiered'):
        tsps.Embedding(ROWS, DIM, storage="disk")


def test_more_weights_than_memory_has_room_for(disk: tsps.Tiered) -> None:
    matrix = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    layer = tsps.Embedding(ROWS, DIM, storage=disk, weights=[matrix])
    layer.build()
    assert layer.bindings[0].reader().stats()["rows_on_disk"] > 0
    np.testing.assert_array_equal(layer.get_weights()[0], matrix)
    layer.set_weights([matrix + 1])
    np.testing.assert_array_equal(layer(np.arange(ROWS)), matrix + 1)


def test_a_batch_that_memory_has_no_room_for(disk: tsps.Tiered) -> None:
    model = functional(tsps.Embedding(None, DIM, storage=tsps.Tiered(disk.path, memory=1_610_000)))
    model.compile(tsps.DistributedOptimizer("adagrad"), "mse")
    with pytest.raises(Exception, match=r"a change of \d+ rows at once, and memory of 1610000 bytes has room for"):
        model.fit(*data(1, 400), batch_size=400, verbose=0)


def test_a_full_disk_ends_fit_and_the_process_goes_on_when_there_is_space(tmp_path: Path) -> None:
    batch = 8000
    with mounted(tmp_path, "size=8m") as path:
        model = functional(tsps.Embedding(None, DIM, storage=tsps.Tiered(path, "6MB")))
        model.compile(tsps.DistributedOptimizer("adagrad"), "mse")

        def fit(model: keras.Model, batches: int) -> None:
            ids = model.optimizer.iterations.numpy() * batch + np.arange(batches * batch)  # each batch has other ids
            model.fit(np.repeat(ids, 3).reshape(-1, 3), np.ones(len(ids), np.float32), batch, shuffle=False, verbose=0)

        fit(model, 4)
        table = table_of(model)
        earlier = table.step - 4  # steps of other models of this job
        before = model.optimizer.statistics()["disk_errors"]
        with (path / "others").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(2**12))
        with pytest.raises(
            Exception, match=r"records.*bytes of rows were to be written, and the disk has \d+ bytes free"
        ):
            fit(model, 100)
        steps = int(model.optimizer.iterations.numpy())
        assert table.step == earlier + steps < earlier + 104
        assert len(table) == steps * batch
        assert model.optimizer.statistics()["disk_errors"] > before
        (path / "others").unlink()
        fit(model, 4)
        assert table.step == earlier + steps + 4
        assert len(table) == (steps + 4) * batch
        assert table.verify().ok
        del model, table
        gc.collect()


@pytest.mark.parametrize(
    "schedule", [tsps.schedules.DelayedGlobal(), tsps.schedules.TimedBuckets(server=True)], ids=["delayed", "server"]
)
def test_schedules_that_are_refused(disk: tsps.Tiered, schedule: Any) -> None:
    model = functional(tsps.Embedding(ROWS, DIM, storage=disk))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=schedule), "mse")
    with pytest.raises(Exception, match="cannot be trained with"):  # AutoGraph in Keras 2 raises a type of its own
        model.fit(*data(1, 8), verbose=0)


PROGRAM = """
import os, sys
import numpy as np
import tf_sparse_ps as tsps
layer = tsps.Embedding(None, 4, storage=tsps.Tiered(sys.argv[1], memory={memory}))
layer.build()
layer.bindings[0].assign(np.arange(3000), np.ones((3000, 4), np.float32))
print("made", flush=True)
{then}
"""


@pytest.mark.nightly
def test_what_a_killed_job_leaves_on_disk_goes_with_the_next_one(disk: tsps.Tiered) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT), "TFSPS_DIR": f"{FOLDER}/killed"}

    def start(then: str) -> subprocess.Popen[str]:
        program = PROGRAM.format(memory=MEMORY, then=then)
        return subprocess.Popen(
            [sys.executable, "-c", program, disk.path], env=environment, stdout=subprocess.PIPE, text=True
        )

    killed = start("import time; time.sleep(100)")
    assert killed.stdout.readline() == "made\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (leftover,) = Path(disk.path).iterdir()
    assert list(leftover.rglob("records.*"))
    next_job = start("")
    assert next_job.wait(120) == 0
    deadline = time.monotonic() + 10
    while os.listdir(disk.path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.listdir(disk.path)

    # The same holds after the job's memory was lost too, as in a restart of the machine.
    killed = start("import time; time.sleep(100)")
    assert killed.stdout.readline() == "made\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    subprocess.run(["rm", "-rf", f"{FOLDER}/killed"], check=True)
    assert start("").wait(120) == 0
    assert not os.listdir(disk.path)
