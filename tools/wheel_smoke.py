"""Looks up, differentiates, applies and fits with the installed wheel. tools/wheel_smoke.sh runs this program.

Its argument is the path of the checkout, from which the package must not be imported.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Runs the checks in a temporary folder of tables."""
    checkout = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="tfsps-smoke-") as folder:
        os.environ["TFSPS_DIR"] = folder
        smoke(checkout)


def smoke(checkout: Path) -> None:
    """Runs the checks. `checkout`: the folder from which the package must not be imported."""
    import numpy as np

    import tf_sparse_ps.table

    assert "tensorflow" not in sys.modules, "tf_sparse_ps.table imports TensorFlow"
    assert Path(tf_sparse_ps.__file__).resolve().parent != checkout / "tf_sparse_ps", tf_sparse_ps.__file__

    import tensorflow as tf

    import tf_sparse_ps as tsps

    # TensorFlow warns, for example, about layers that AutoGraph cannot convert for Keras 2.
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    tf.get_logger().addHandler(handler)

    keras = tf.keras  # Keras 3, Keras 2, or tf_keras

    def model(initializer: str, optimizer: keras.optimizers.Optimizer) -> tuple[keras.Model, tsps.Embedding]:
        layer = tsps.Embedding(1000, 8, embeddings_initializer=initializer)
        inputs = keras.Input((3,), dtype="int64")
        hidden = keras.layers.Flatten()(layer(inputs))
        net = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(hidden))
        net.compile(tsps.DistributedOptimizer(optimizer, collectives="local"), "mse")
        return net, layer

    # Lookup and gradient: every row is ones, and d(sum of rows)/d(row) is the number of occurrences of the row.
    net, layer = model("ones", keras.optimizers.SGD(0.1))
    ids = tf.constant([[1, 2, 2], [7, 1, 1]], tf.int64)
    np.testing.assert_array_equal(layer(ids), np.ones((2, 3, 8), np.float32))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(ids))
    gradient = tape.gradient(total, layer.trainable_variables)
    assert len(gradient) == 1, gradient
    assert gradient[0] is not None

    # Apply: one SGD step with known numbers. The prediction for each sample is 24, the target 0, the batch size 2:
    # d/d(row of key k) = (occurrences of k) * 2 * 24 / 2 = 24 per occurrence.
    net.fit(ids, tf.zeros((2, 1)), batch_size=2, epochs=1, shuffle=False, verbose=0)
    rows = np.asarray(layer(tf.constant([1, 2, 7, 8], tf.int64)))
    expected = 1 - 0.1 * 24 * np.array([3, 2, 1, 0], np.float32)
    np.testing.assert_allclose(rows, np.repeat(expected[:, None], 8, axis=1), rtol=1e-5)

    # Fit: the model learns a target that is the sum of three numbers, one per key.
    rng = np.random.default_rng(0)
    net, _ = model("uniform", keras.optimizers.Adam(0.01))
    keys = rng.integers(0, 1000, (4096, 3))
    target = rng.normal(size=1000).astype(np.float32)[keys].sum(1, keepdims=True)
    history = net.fit(keys, target, batch_size=64, epochs=5, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0], history

    assert not warnings, warnings
    package = keras.layers.Layer.__module__.partition(".")[0]
    version = importlib.metadata.version(package)
    print(f"wheel: lookup, gradient, apply and fit under TensorFlow {tf.__version__} with {package} {version}")


if __name__ == "__main__":
    main()
