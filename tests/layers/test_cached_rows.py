"""Rows on a device are rounded to 16 bits and constrained like those of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps.cache import row_rounding

ROWS, DIM, STEPS = 300, 6, 25
CONSTRAINTS = {
    "nonneg": keras.constraints.NonNeg(),
    "maxnorm": keras.constraints.MaxNorm(1.5, axis=1),
    "unitnorm": keras.constraints.UnitNorm(axis=1),
    "minmaxnorm": keras.constraints.MinMaxNorm(0.8, 1.2, rate=0.7, axis=1),
}
RULES = {
    "sgd": tsps.optimizers.SGD(),
    "adagrad": tsps.optimizers.Adagrad(),
    "adam": tsps.optimizers.Adam(),
    "ftrl": tsps.optimizers.Ftrl(),
}
CACHES = {
    "small": tsps.DeviceCache(rows=40, policy="lru"),
    "large": tsps.DeviceCache(rows=ROWS, policy="lru"),
    "admission": tsps.DeviceCache(rows=20),
}


def batches() -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Returns unique keys and gradients for each step."""
    random = np.random.default_rng(4)
    steps = []
    for _ in range(STEPS):
        keys = np.unique(np.minimum(random.zipf(1.3, 40), ROWS) - 1)
        steps.append((keys, random.normal(size=(len(keys), DIM)).astype(np.float32)))
    return steps


def train(
    config: dict[str, Any],
    caches: Sequence[tsps.DeviceCache | None],
    rule: tsps.optimizers.RowOptimizer,
    values: np.ndarray[Any, Any],
    steps: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
    rate: float = 0.05,
) -> list[list[np.ndarray[Any, Any]]]:
    """Trains tables that differ only in their caches, in the same steps. Returns their rows and slots."""
    layers = []
    for cache in caches:
        layer = tsps.Embedding(ROWS, DIM, table=tsps.TableConfig("t", DIM, key_limit=ROWS, **config), cache=cache)
        # Stochastic rounding depends on these, in addition to key and step.
        layer.build_from_config({"input_shape": None, "tables": [{"seed": 5, "salt": 6}]})
        layer.set_weights([values])
        layers.append(layer)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(rate), sparse_optimizer=rule)
    weights = [layer.trainable_variables[0] for layer in layers]

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, DIM], tf.float32)], autograph=False
    )
    def step(keys: tf.Tensor, gradients: tf.Tensor) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(gradients, keys), weight) for weight in weights])

    for keys, gradients in steps:
        looked_up = [np.asarray(layer(tf.constant(keys))) for layer in layers]
        step(tf.constant(keys), tf.constant(gradients))
        for rows, cache in zip(looked_up, caches, strict=True):
            if rule.kind == "sgd":
                np.testing.assert_array_equal(rows, looked_up[0], str(cache))
    results = []
    for layer in layers:
        table = layer.bindings[0].reader()
        _, rows, slots = table.entries(np.arange(ROWS))
        results.append([rows, *slots])
        if layer.cache is not None and layer.cache.rows < ROWS:
            assert layer.cache_statistics()["evicted"] > 0
    return results


def normal_values() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(ROWS, DIM)).astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rounding", [pytest.param("nearest", marks=pytest.mark.nightly), "stochastic"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.daily_cases(3)
def test_rows_of_16_bits_are_rounded_as_on_the_host(dtype: str, rounding: str, rule: str) -> None:
    config = {"dtype": dtype, "rounding": rounding}
    caches = [None, CACHES["small"], CACHES["large"], CACHES["admission"]]
    plain, small, large, admission = train(config, caches, RULES[rule], normal_values(), batches())
    for plane, expected in zip(small, large, strict=True):
        np.testing.assert_array_equal(plane, expected)
    assert np.any(plain[0] != tf.cast(tf.cast(normal_values(), dtype), tf.float32)), "training must change the rows"
    np.testing.assert_array_equal(small[0], tf.cast(tf.cast(small[0], dtype), tf.float32), "rows must have 16 bits")
    for cached_planes in (small, admission):
        if rule == "sgd":
            np.testing.assert_array_equal(cached_planes[0], plain[0])
            continue
        # If the last bits of float32 differ, a row may be rounded to a neighbour.
        place = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
        np.testing.assert_allclose(cached_planes[0], plain[0], rtol=2 * place, atol=1e-3)
        assert np.mean(cached_planes[0] != plain[0]) < 0.02
        for plane, expected in zip(cached_planes[1:], plain[1:], strict=True):
            np.testing.assert_allclose(plane, expected, rtol=2e-5, atol=2e-5 if rule != "ftrl" else 2e-2)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_all_magnitudes_are_rounded_as_on_the_host(dtype: str, rounding: str) -> None:
    random = np.random.default_rng(2)
    low, high = (-30, 38) if dtype == "bfloat16" else (-9, 4.8)
    sign = random.choice([-1, 1], size=(ROWS, DIM))
    values = (sign * 10.0 ** random.uniform(low, high, size=(ROWS, DIM))).astype(np.float32)
    largest = float(tf.as_dtype(dtype).max)
    values[:20, 0] = sign[:20, 0] * largest
    beyond = np.zeros((20, DIM), np.float32)
    beyond[:, 0] = -sign[:20, 0] * largest * 2.0**-9
    steps = [(np.arange(20), beyond)]
    for _ in range(6):
        keys = 20 + np.sort(random.permutation(ROWS - 20)[:200])
        factors = random.choice([0.0, 1e-4, -1e-4, 0.3, -0.9, 1.0, -40], size=(200, DIM))
        with np.errstate(over="ignore"):
            steps.append((keys, np.clip(values[keys] * factors, -3e38, 3e38).astype(np.float32)))
    config = {"dtype": dtype, "rounding": rounding}
    plain, large = train(config, [None, CACHES["large"]], RULES["sgd"], values, steps, rate=1.0)
    np.testing.assert_array_equal(plain[0], large[0])
    np.testing.assert_array_equal(plain[0][:20, 0], values[:20, 0], "beyond the range")
    if dtype == "float16":
        assert np.any((plain[0] != 0) & (np.abs(plain[0]) < 2.0**-14)), "some rows must be subnormal"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_not_finite_stays_so(dtype: str) -> None:
    values = tf.constant([[np.inf, -np.inf, np.nan, 0.0, -0.0]], tf.float32)
    for draws in (None, tf.constant([-1], tf.int64)):
        rounded = tf.cast(row_rounding.to(dtype, values, draws), tf.float32).numpy()[0]
        np.testing.assert_array_equal(rounded, values.numpy()[0])
        assert np.signbit(rounded[4])
        assert not np.signbit(rounded[3])


@pytest.mark.parametrize("rule", ["sgd", pytest.param("adagrad", marks=pytest.mark.nightly), "adam"])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.daily_cases(3)
def test_constraints_are_those_of_the_host(constraint: str, rule: str) -> None:
    config = {"constraint": CONSTRAINTS[constraint]}
    caches = [None, CACHES["admission"]] if rule == "sgd" else [None, CACHES["small"], CACHES["large"]]
    # Looked-up rows are compared under SGD only; norms differ in the last bits.
    steps = batches()
    if rule == "sgd" and constraint != "nonneg":
        rule = "momentum"
    rules = {**RULES, "momentum": tsps.optimizers.SGD(momentum=0.5)}
    plain, *cached_planes = train(config, caches, rules[rule], normal_values(), steps)
    for planes in cached_planes:
        for plane, expected in zip(planes, plain, strict=True):
            np.testing.assert_allclose(plane, expected, rtol=1e-6, atol=2e-5 if rule == "adam" else 1e-6)
    for plane, expected in zip(cached_planes[0], cached_planes[-1], strict=True):
        np.testing.assert_array_equal(plane, expected)
    touched = np.unique(np.concatenate([keys for keys, _ in steps]))
    norms = np.linalg.norm(cached_planes[0][0][touched], axis=1)
    free, *_ = train({}, [None], rules[rule], normal_values(), steps)
    assert not np.allclose(free[0], plain[0], atol=1e-3), "the constraint must change some rows"
    if constraint == "nonneg":
        assert np.all(cached_planes[0][0][touched] >= 0)
    elif constraint == "unitnorm":
        np.testing.assert_allclose(norms, 1, atol=1e-5)
    elif constraint == "maxnorm":
        assert np.all(norms <= 1.5 + 1e-5)


def test_constrained_rows_of_16_bits() -> None:
    config = {"dtype": "bfloat16", "constraint": CONSTRAINTS["nonneg"]}
    caches = [None, CACHES["small"], CACHES["admission"]]
    plain, *cached_planes = train(config, caches, RULES["sgd"], normal_values(), batches())
    for planes in cached_planes:
        np.testing.assert_array_equal(planes[0], plain[0])


def test_bytes_are_counted_of_what_rows_are_stored_as() -> None:
    def bytes_of(dtype: str) -> dict[str, float]:
        config = tsps.TableConfig("t", DIM, key_limit=ROWS, dtype=dtype)
        layer = tsps.Embedding(ROWS, DIM, table=config, cache=CACHES["small"])
        layer.build(None)
        optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))
        for keys, gradients in batches():
            layer(tf.constant(keys))
            slices = tf.IndexedSlices(tf.constant(gradients), tf.constant(keys))
            optimizer.apply_gradients([(slices, layer.trainable_variables[0])])
        return layer.cache_statistics()

    narrow, wide = bytes_of("float16"), bytes_of("float32")
    assert wide["bytes_down"] > 0
    for name in ("bytes_down", "bytes_up"):  # with "lru", no gradients go up
        assert narrow[name] == wide[name] / 2
