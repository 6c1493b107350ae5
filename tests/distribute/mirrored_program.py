"""A process with two logical CPU devices under MirroredStrategy. Argument: the folder for results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tensorflow as tf

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

import batches  # noqa: E402
import loops  # noqa: E402
import numpy as np  # noqa: E402
import refusals  # noqa: E402

import tf_sparse_ps as tsps  # noqa: E402


def main() -> None:
    """Runs everything that the tests check."""
    folder = Path(sys.argv[1])
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    runs = {
        "sgd-frequency": loops.train(strategy, "sgd", "frequency", batches.STEPS),
        "adagrad-frequency": loops.train(strategy, "adagrad", "frequency", batches.STEPS),
        "adam-frequency": loops.train(strategy, "adam", "frequency", batches.STEPS),
        "adagrad-average": loops.train(strategy, "adagrad", "average", 30, tape="distributed", topology="flat"),
        "sgd-sum": loops.train(strategy, "sgd", "sum", 10, eager=True),
        "ours": loops.fit(strategy, True, steps_per_execution=3),
        "keras": loops.fit(strategy, False),
    }
    for name, arrays in runs.items():
        np.savez(folder / f"{name}-0.npz", **arrays)
    (folder / "admitted.json").write_text(json.dumps(loops.admitted(strategy)))
    (folder / "refusals.json").write_text(json.dumps(refusals.outcomes(strategy)))
    assert tsps.job.current().size == 1


if __name__ == "__main__":
    main()
