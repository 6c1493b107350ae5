"""Tables follow Keras's random seed, like everything else that Keras makes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from layer_support import keras, run_child

import tf_sparse_ps as tsps

RUN = """
import json, sys
import numpy as np, tensorflow as tf, tf_sparse_ps as tsps
keras = tf.keras
SEED
def model():
    ids = keras.Input((3,), dtype="int64")
    a = tsps.Embedding(None, 4)(ids)
    b = tsps.EmbeddingReduce(50, 4, embeddings_initializer="glorot_uniform")(ids)
    flat = keras.layers.Concatenate()([keras.layers.Flatten()(a), b])
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(flat)))
one = model()
one.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5)), "mse")
ids = np.random.default_rng(0).integers(0, 50, (64, 3))
losses = one.fit(ids, ids[:, :1] / 50.0, 8, epochs=2, verbose=0).history["loss"]
print(json.dumps([losses, np.asarray(one(ids)).tolist()]))
"""


def test_two_runs_of_one_seed_are_equal_and_others_differ() -> None:
    seeded = RUN.replace("SEED", "keras.utils.set_random_seed(5)")
    first, second = (json.loads(run_child(seeded)) for _ in range(2))
    assert first == second
    assert first != json.loads(run_child(RUN.replace("SEED", "keras.utils.set_random_seed(6)")))
    assert first != json.loads(run_child(RUN.replace("SEED", "keras.utils.set_random_seed(5); tf.random.set_seed(6)")))


def rows(**options: Any) -> np.ndarray:
    """Returns rows of a new layer's table."""
    layer = tsps.Embedding(None, 8, **options)
    return np.asarray(layer(np.arange(100)))


def test_a_model_that_is_made_again_after_the_same_seed_has_the_same_rows() -> None:
    rows()  # tables from before the seed was set do not count
    keras.utils.set_random_seed(3)
    first = [rows(), rows(), rows(table=tsps.TableConfig("own", 8, seed=9))]
    further = rows()
    keras.utils.set_random_seed(3)
    repeated = [rows(), rows(), rows(table=tsps.TableConfig("own", 8, seed=9))]
    np.testing.assert_array_equal(first, repeated)
    keras.utils.set_random_seed(4)
    other_rows = rows()
    different = [*first, further, other_rows]
    assert all((a != b).any() for i, a in enumerate(different) for b in different[:i])


def test_clear_session_leaves_the_seed_as_it_is() -> None:
    keras.utils.set_random_seed(3)
    first = [rows(), rows()]
    keras.utils.set_random_seed(3)
    before = rows()
    keras.backend.clear_session()
    np.testing.assert_array_equal(first, [before, rows()])
