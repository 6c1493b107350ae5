"""A process that has imported only Keras and tf_sparse_ps loads models that another process saved."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from layer_support import IDS, PACKAGE_PARENT, TARGETS, keras

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras


def every_layer() -> keras.Model:
    """Returns a compiled model with all kinds of layers, and an optimizer with a complete configuration."""
    table = tsps.TableConfig("b", 3, key_limit=10, optimizer=tsps.optimizers.SGD())
    features = {"x": tsps.FeatureConfig(tsps.TableConfig("a", 4)), "y": tsps.FeatureConfig(table, combiner="sqrtn")}
    ids = keras.Input((3,), dtype="int64")
    vectors = tsps.EmbeddingCollection(features)({"x": ids, "y": ids})
    bags = tsps.EmbeddingReduce(None, 4, combiner="sum")(ids)
    flat = [keras.layers.Flatten()(tensor) for tensor in (vectors["x"], tsps.Embedding(10, 4)(ids))]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()([bags, vectors["y"], *flat])))
    decay = keras.optimizers.schedules.ExponentialDecay
    optimizer = tsps.DistributedOptimizer(
        keras.optimizers.Adam(decay(0.1, 10, 0.5)),
        sparse_optimizer=tsps.optimizers.Adagrad(learning_rate=decay(0.2, 10, 0.5)),
        sparse_reduction="sum",
        schedule=tsps.schedules.TimedBuckets(profile_steps=5),
    )
    model.compile(optimizer, "mse")
    model.fit(IDS, TARGETS, verbose=0, epochs=3)
    return model


LOAD = """
import numpy as np
model = {keras}.models.load_model({path!r})
names = {{type(layer).__name__ for layer in model.layers}}
assert {{"Embedding", "EmbeddingReduce", "EmbeddingCollection"}} <= names, names
ids, targets = np.load({ids!r}), np.load({targets!r})
np.testing.assert_array_equal(model.predict(ids, verbose=0), np.load({want!r}))
optimizer = model.optimizer
assert type(optimizer).__module__ == "tf_sparse_ps.training.distributed_optimizer", type(optimizer)
assert (optimizer.sparse_reduction, optimizer.schedule.profile_steps) == ("sum", 5)
assert int(optimizer.iterations) == 3
model.fit(ids, targets, verbose=0)
np.testing.assert_allclose(model.predict(ids, verbose=0), np.load({trained!r}), rtol=1e-4)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The path of a model, its predictions, and its predictions after one more step."""
    folder = tmp_path_factory.mktemp("saved")
    paths = {name: os.fspath(folder / f"{name}.npy") for name in ("ids", "targets", "want", "trained")}
    paths["path"] = os.fspath(folder / "model.keras")
    model = every_layer()
    model.save(paths["path"])
    np.save(paths["ids"], IDS)
    np.save(paths["targets"], TARGETS)
    np.save(paths["want"], model.predict(IDS, verbose=0))
    model.fit(IDS, TARGETS, verbose=0)
    np.save(paths["trained"], model.predict(IDS, verbose=0))
    return paths


def run_fresh(code: str) -> None:
    """Runs Python code in a process that has imported nothing. The process must succeed."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/", timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


# The package that `tf.keras` refers to, by its own name.
KERAS = "tf_keras" if _keras.keras.__name__.startswith("tf_keras") else "keras"


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        (f"import tf_sparse_ps, {KERAS}", KERAS),
        (f"import {KERAS}, tf_sparse_ps", KERAS),
        ("import tf_sparse_ps, tensorflow as tf", "tf.keras"),
        ("import tensorflow as tf, tf_sparse_ps", "tf.keras"),
    ],
)
@pytest.mark.daily_cases(1)
def test_a_compiled_model_loads_after_the_imports_alone(saved: dict[str, str], imports: str, name: str) -> None:
    run_fresh(imports + LOAD.format(keras=name, **saved))


def test_ranks_connect_before_tensorflow_is_imported() -> None:
    run_fresh(f"import tf_sparse_ps as tsps\nassert tsps.init().size == 1\nimport {KERAS}\ntsps.Embedding(None, 2)")


def test_names_in_a_file_are_those_of_earlier_versions(saved: dict[str, str]) -> None:
    with zipfile.ZipFile(saved["path"]) as file:
        config = file.read("config.json").decode()
    for name in ("Embedding", "EmbeddingReduce", "EmbeddingCollection", "DistributedOptimizer"):
        assert f'"registered_name": "tf_sparse_ps>{name}"' in config


WITHOUT_OPS = f"""
import sys, warnings
import tf_sparse_ps, tf_sparse_ps.table
assert not [m for m in sys.modules if m.split(".")[0] in ("tensorflow", "keras", "tf_keras")]
sys.modules["tf_sparse_ps._ops"] = None  # as if the op library did not fit this TensorFlow
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import {KERAS}
{KERAS}.layers.Dense(1)
assert [w for w in caught if "tf_sparse_ps" in str(w.message) and "_ops" in str(w.message)], caught
try:
    tf_sparse_ps.Embedding
except ImportError as error:
    assert "_ops" in str(error)
else:
    raise AssertionError
"""


def test_importing_the_package_imports_no_tensorflow_and_breaks_no_import_of_keras() -> None:
    run_fresh(WITHOUT_OPS)
