"""Uses that a strategy of several replicas in one process must refuse, for a program."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tf_sparse_ps as tsps

keras = tf.keras


def outcomes(strategy: Any) -> dict[str, str]:
    """Returns the type and text of each use's error."""
    with strategy.scope():
        table = tsps.Embedding(None, 4)
        table.build(None)
        weight = tf.Variable([1.0, 2.0])
    early_inner = keras.optimizers.SGD(0.1)
    early = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def step(optimizer: Any) -> Callable[[], None]:
        def replica_step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(table(tf.constant([1]))) + tf.reduce_sum(weight)
            variables = [*table.trainable_variables, weight]
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        return replica_step

    def scoped(make: Callable[[], Any]) -> Callable[[], Any]:
        def action() -> Any:
            with strategy.scope():
                return make()

        return action

    def late() -> None:
        strategy.run(step(early))

    def of_another_library() -> None:
        module = types.ModuleType("horovod.tensorflow")
        module.is_initialized = lambda: True  # type: ignore[attr-defined]
        sys.modules["horovod.tensorflow"] = module
        try:
            scoped(tsps.collectives.current)()
        finally:
            del sys.modules["horovod.tensorflow"]

    def other_strategy() -> None:
        with tf.distribute.experimental.CentralStorageStrategy().scope():
            tsps.Embedding(None, 4).build(None)

    def not_in_run() -> None:
        tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)).apply_gradients([(tf.constant([1.0, 1.0]), weight)])

    def tape_not_in_run() -> None:
        source = tf.constant(1.0)
        with tsps.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch(source)
            loss = source**2
        tape.gradient(loss, [source])

    ways: dict[str, Callable[[], Any]] = {
        "local": scoped(lambda: tsps.DistributedOptimizer("sgd", collectives="local")),
        "horovod": scoped(lambda: tsps.DistributedOptimizer("sgd", collectives="horovod")),
        "horovod as well": of_another_library,
        "wrapped optimizer made outside": scoped(lambda: tsps.DistributedOptimizer(early_inner)),
        "made outside": late,
        "not in run": scoped(not_in_run),
        "tape not in run": scoped(tape_not_in_run),
        "another strategy": other_strategy,
        "plain optimizer": scoped(lambda: strategy.run(step(keras.optimizers.SGD(0.1)))),
    }
    if int(getattr(keras, "__version__", "2").split(".")[0]) == 2:
        ways["legacy"] = scoped(lambda: tsps.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1)))
    errors_by_use = {}
    for name, way in ways.items():
        try:
            way()
            errors_by_use[name] = "no error"
        except Exception as error:
            errors_by_use[name] = f"{type(error).__name__}: {error}"
    return errors_by_use
