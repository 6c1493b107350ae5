"""Tables whose rows stay on a device are trained, read, saved and refused like tables without a cache."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fork_server import run_forked
from layer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops, _table
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.cache import row_rules

ROWS, DIM, BATCH, IDS_PER_SAMPLE = 300, 4, 8, 5
_random = np.random.default_rng(0)
IDS = np.minimum(_random.zipf(1.3, size=(BATCH * 30, IDS_PER_SAMPLE)), ROWS) - 1
TARGETS = _random.normal(size=(len(IDS), 1)).astype(np.float32)
VALUES = _random.normal(size=(ROWS, DIM)).astype(np.float32)
UNIQUE = max(len(np.unique(IDS[i : i + BATCH])) for i in range(0, len(IDS), BATCH))
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def cached(rows: int = 40, policy: str = "admission", **options: Any) -> tsps.DeviceCache:
    return tsps.DeviceCache(rows=rows, policy=policy, **options)


def make(cache: tsps.DeviceCache | None, optimizer: Callable[[], Any], **options: Any) -> tuple[Any, tsps.Embedding]:
    """Returns a compiled model (ids[batch, 5] -> embedding -> one output) and its embedding."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((IDS_PER_SAMPLE,), dtype="int64")
    layer = tsps.Embedding(ROWS, DIM, cache=cache)
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))
    layer.set_weights([VALUES])
    model.compile(tsps.DistributedOptimizer(optimizer()), "mse", **options)
    return model, layer


def fit(model: Any, epochs: int = 1) -> Any:
    validation = IDS[: 4 * BATCH], TARGETS[: 4 * BATCH]
    return model.fit(IDS, TARGETS, BATCH, epochs=epochs, shuffle=False, verbose=0, validation_data=validation).history


def content(layer: tsps.Embedding) -> list[np.ndarray[Any, Any]]:
    """Returns keys, rows and slots in the order of the keys."""
    block = layer.bindings[0].reader().scan().read()
    order = np.argsort(block.keys)
    return [block.keys[order], block.rows[order], *(slot[order] for slot in block.slots)]


def check_close(layer: tsps.Embedding, other: tsps.Embedding, tolerance: float) -> None:
    for plane, expected in zip(content(layer), content(other), strict=True):
        np.testing.assert_allclose(plane, expected, rtol=tolerance, atol=tolerance)


# --- training ---


@pytest.mark.parametrize(("policy", "rows"), [("admission", 40), ("admission", 1), ("lru", UNIQUE), ("lru", ROWS)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.daily_cases(1)
def test_fit_trains_as_without_a_cache(optimizer: str, policy: str, rows: int) -> None:
    plain, expected = make(None, OPTIMIZERS[optimizer])
    model, layer = make(cached(rows, policy), OPTIMIZERS[optimizer])
    expected_history, history = fit(plain, 2), fit(model, 2)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(history[name], expected_history[name], rtol=2e-5)
    check_close(layer, expected, 2e-5 if optimizer == "adam" else 1e-6)
    if optimizer == "sgd":
        np.testing.assert_array_equal(layer.get_weights()[0], expected.get_weights()[0])
    statistics = layer.cache_statistics()
    assert statistics["hits"] > 0
    assert statistics["entered"] >= min(rows, UNIQUE)
    assert (statistics["evicted"] > 0) == (rows != ROWS)
    assert statistics["newer"] == 0, "reading must flush all rows"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.daily_cases(1)
def test_with_lru_the_capacity_changes_no_bit(optimizer: str) -> None:
    small, layer = make(cached(UNIQUE, "lru"), OPTIMIZERS[optimizer])
    large, large_layer = make(cached(ROWS, "lru"), OPTIMIZERS[optimizer])
    assert fit(small) == fit(large)
    for plane, expected in zip(content(layer), content(large_layer), strict=True):
        np.testing.assert_array_equal(plane, expected)


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 5}], ids=str)
@pytest.mark.daily_cases(1)
def test_fit_in_other_ways(options: dict[str, Any]) -> None:
    plain, expected = make(None, OPTIMIZERS["adagrad"], **options)
    model, layer = make(cached(), OPTIMIZERS["adagrad"], **options)
    ids, targets = IDS[: 10 * BATCH], TARGETS[: 10 * BATCH]
    for trained_model in (plain, model):
        trained_model.fit(ids, targets, BATCH, shuffle=False, verbose=0)
    check_close(layer, expected, 1e-6)
    np.testing.assert_allclose(model.predict(ids, verbose=0), plain.predict(ids, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_custom_loops_that_call_the_layer_twice_beside_another_table(graph: bool) -> None:
    def train(cache: tsps.DeviceCache | None) -> list[tsps.Embedding]:
        keras.utils.set_random_seed(5)
        layer, plain_layer = tsps.Embedding(None, DIM, cache=cache), tsps.Embedding(ROWS, DIM)
        optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))

        def step(ids: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                rows = layer(ids) * layer(tf.reverse(ids, [1])) + plain_layer(ids)
                loss = tf.reduce_mean(tf.square(rows - 0.3))
            layer(ids + 7)  # looked up without training
            weights = layer.trainable_variables + plain_layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        run = tf.function(step) if graph else step
        for start in range(0, 12 * BATCH, BATCH):
            run(tf.constant(IDS[start : start + BATCH]))
        return [layer, plain_layer]

    for layer, expected in zip(train(cached(30)), train(None), strict=True):
        check_close(layer, expected, 1e-6)


RULES = [
    tsps.optimizers.SGD(),
    tsps.optimizers.SGD(momentum=0.9),
    tsps.optimizers.SGD(momentum=0.9, nesterov=True),
    tsps.optimizers.Adagrad(),
    tsps.optimizers.RowwiseAdagrad(),
    tsps.optimizers.Adam(),
    tsps.optimizers.Adam(amsgrad=True),
    tsps.optimizers.AdamW(),
    tsps.optimizers.RMSprop(),
    tsps.optimizers.RMSprop(momentum=0.5),
    tsps.optimizers.RMSprop(centered=True),
    tsps.optimizers.RMSprop(centered=True, momentum=0.5),
    tsps.optimizers.Ftrl(l1_regularization_strength=0.01, l2_regularization_strength=0.1, beta=0.1),
    tsps.optimizers.Ftrl(l2_shrinkage_regularization_strength=0.1),
]


def test_every_rule_of_the_store_has_a_form_for_devices() -> None:
    known = {rule.kind for rule in RULES}
    assert set(row_rules.RULES) == known
    kinds = [rule() for rule in tsps.optimizers.names.BY_NAME.values()]
    assert {rule.kind for rule in kinds} <= known


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.daily_cases(1)
def test_rules_on_the_device_are_those_of_the_host(rule: tsps.optimizers.RowOptimizer) -> None:
    def train(cache: tsps.DeviceCache | None) -> tsps.Embedding:
        layer = tsps.Embedding(ROWS, DIM, cache=cache)
        layer.build(None)
        layer.set_weights([VALUES])
        optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.05), sparse_optimizer=rule)
        random = np.random.default_rng(4)

        @tf.function
        def step(keys: tf.Tensor, values: tf.Tensor) -> None:
            optimizer.apply_gradients([(tf.IndexedSlices(values, keys), layer.trainable_variables[0])])

        for _ in range(12):
            keys = np.unique(np.minimum(random.zipf(1.3, 40), ROWS) - 1)
            step(tf.constant(keys), tf.constant(random.normal(size=(len(keys), DIM)), tf.float32))
        return layer

    layer = train(cached(40, "lru"))
    check_close(layer, train(None), 2e-5)
    assert layer.cache_statistics()["evicted"] > 0


@pytest.mark.parametrize("clip", [{"clipvalue": 0.01}, {"clipnorm": 0.02}, {"global_clipnorm": 0.05}], ids=str)
@pytest.mark.daily_cases(1)
def test_gradients_are_clipped_before_rows_part(clip: dict[str, float]) -> None:
    def optimizer() -> Any:
        return keras.optimizers.SGD(0.5, **clip)

    plain, expected = make(None, optimizer)
    model, layer = make(cached(), optimizer)
    fit(plain)
    fit(model)
    check_close(layer, expected, 2e-6)


# --- steps that are not made ---


def test_a_batch_of_more_keys_than_lru_has_rows_is_an_error_with_the_numbers() -> None:
    model, layer = make(cached(3, "lru"), OPTIMIZERS["sgd"])
    with pytest.raises(Exception, match=rf"table t\d+-{layer.name}: the batch has \d+ unique keys, but .* 3 rows"):
        fit(model)
    np.testing.assert_array_equal(layer.get_weights()[0], VALUES)


def test_after_a_step_that_is_refused_training_goes_on() -> None:
    def train(cache: tsps.DeviceCache | None) -> tsps.Embedding:
        layer = tsps.Embedding(ROWS, DIM, cache=cache)
        layer.build(None)
        layer.set_weights([VALUES])
        optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))

        @tf.function
        def step(ids: tf.Tensor, factor: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = factor * tf.reduce_sum(tf.square(layer(ids)))
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        for number, start in enumerate(range(0, 12 * BATCH, BATCH)):
            ids = tf.constant(IDS[start : start + BATCH])
            if number % 3 == 2:
                with pytest.raises(tf.errors.InvalidArgumentError, match=r"the gradient of key \d+ is not finite"):
                    step(ids, tf.constant(np.float32("nan")))
            step(ids, tf.constant(0.1))
        return layer

    check_close(train(cached(30)), train(None), 1e-6)


def test_ids_out_of_range_are_named() -> None:
    layer = tsps.Embedding(ROWS, DIM, cache=cached())
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{ROWS}"):
        layer(tf.constant([[0, ROWS]]))


# --- the host's rows ---


def test_who_reads_the_table_finds_what_is_newer_on_the_device() -> None:
    plain, expected = make(None, OPTIMIZERS["adagrad"])
    model, layer = make(cached(ROWS, "lru"), OPTIMIZERS["adagrad"])
    for trained_model in (plain, model):
        trained_model.fit(IDS, TARGETS, BATCH, shuffle=False, verbose=0)
    binding = layer.bindings[0]
    assert layer.cache_statistics()["newer"] > 0
    group = _table.Group.open(binding.group.path)
    number = group.find_table(Path(binding.path).name)
    keys = np.arange(ROWS)
    np.testing.assert_array_equal(group.lookup(number, keys), VALUES)  # as other processes read the table
    table = tsps.Table.open(binding.path)
    np.testing.assert_allclose(table.lookup(keys), expected.get_weights()[0], atol=1e-6)
    assert layer.cache_statistics()["newer"] == 0
    np.testing.assert_array_equal(group.lookup(number, keys), table.lookup(keys))


@pytest.mark.parametrize("moment", ["before the copy", "after the copy"])
def test_a_flush_beside_training_loses_no_update(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    batches = [slice(i, i + BATCH) for i in range(0, len(IDS), BATCH)]
    reference, expected = make(cached(ROWS, "lru"), OPTIMIZERS["adagrad"])
    for batch in batches:
        reference.train_on_batch(IDS[batch], TARGETS[batch])
    model, layer = make(cached(UNIQUE, "lru"), OPTIMIZERS["adagrad"])

    def train(slices: list[slice]) -> None:
        for batch in slices:
            model.train_on_batch(IDS[batch], TARGETS[batch])

    remaining = batches[3:6]
    cache_newer_op, cache_flush_op, store = _ops.cache_newer, _ops.cache_flush, layer.bindings[0].cache.stores[0]

    def train_in_another_thread() -> None:
        thread = threading.Thread(target=train, args=(list(remaining),))
        remaining.clear()
        thread.start()
        thread.join()

    def cache_newer(cache: tf.Tensor) -> Any:
        newer = cache_newer_op(cache)
        if moment == "before the copy":
            train_in_another_thread()
        return newer

    def cache_flush(*arguments: Any) -> Any:
        if moment == "after the copy":
            train_in_another_thread()
        return cache_flush_op(*arguments)

    train(batches[:3])
    with monkeypatch.context() as patched:
        patched.setattr(_ops, "cache_newer", cache_newer)
        patched.setattr(_ops, "cache_flush", cache_flush)
        store.flush()
    assert not remaining
    assert store.counters()["newer"] == 0
    train(batches[6:])  # these steps evict rows from the device
    for plane, expected_plane in zip(content(layer), content(expected), strict=True):
        np.testing.assert_array_equal(plane, expected_plane)


def test_rows_are_flushed_after_every_so_many_steps() -> None:
    model, layer = make(cached(ROWS, "lru", flush_every=10), OPTIMIZERS["adam"])
    group = _table.Group.open(layer.bindings[0].group.path)
    before, batches = int(group.info()["step"]), 19
    model.fit(IDS[: batches * BATCH], TARGETS[: batches * BATCH], BATCH, shuffle=False, verbose=0)
    number = group.find_table(Path(layer.bindings[0].path).name)
    rows = group.lookup(number, np.arange(ROWS))  # as other processes read them
    until = (before + batches) // 10 * 10 - before  # the last step of this model that was flushed
    assert 0 < until <= batches
    plain, expected = make(None, OPTIMIZERS["adam"])
    plain.fit(IDS[: until * BATCH], TARGETS[: until * BATCH], BATCH, shuffle=False, verbose=0)
    np.testing.assert_allclose(rows, expected.get_weights()[0], atol=2e-5)


def test_weights_that_are_set_are_what_is_trained_on() -> None:
    plain, expected = make(None, OPTIMIZERS["adagrad"])
    model, layer = make(cached(), OPTIMIZERS["adagrad"])
    for trained_model, trained_layer in ((plain, expected), (model, layer)):
        fit(trained_model)
        trained_layer.set_weights([trained_layer.get_weights()[0][::-1]])
        fit(trained_model)
    check_close(layer, expected, 2e-6)


def test_saved_models_have_all_rows(tmp_path: Path) -> None:
    model, layer = make(cached(), OPTIMIZERS["adagrad"])
    fit(model)
    predicted = model.predict(IDS[:16], verbose=0)
    assert layer.cache_statistics()["newer"] > 0
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[1].cache == layer.cache
    np.testing.assert_allclose(loaded.predict(IDS[:16], verbose=0), predicted, rtol=1e-6)
    fit(model)
    predicted = model.predict(IDS[:16], verbose=0)
    model.save_weights(tmp_path / "one.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    model.export(str(tmp_path / "exported")) if _keras.IS_KERAS_3 else tf.saved_model.save(
        model, str(tmp_path / "exported")
    )
    fit(model)  # trains other rows
    model.load_weights(tmp_path / "one.weights.h5")
    np.testing.assert_allclose(model.predict(IDS[:16], verbose=0), predicted, rtol=1e-6)
    fit(model)
    tf.train.Checkpoint(model=model).restore(checkpoint)
    np.testing.assert_allclose(model.predict(IDS[:16], verbose=0), predicted, rtol=1e-6)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    served = exported.serve(IDS[:16]) if _keras.IS_KERAS_3 else exported(IDS[:16])
    np.testing.assert_allclose(served, predicted, rtol=1e-5, atol=1e-6)


def test_a_layer_that_is_gone_takes_its_cache_along() -> None:
    model, layer = make(cached(), OPTIMIZERS["sgd"])
    fit(model)
    number = layer.bindings[0].cache.stores[0].number
    assert _ops.cache_counters(number)[0] > 0
    del model, layer
    keras.backend.clear_session()
    gc.collect()
    make(cached(), OPTIMIZERS["sgd"])  # a new cache removes those of dropped layers
    with pytest.raises(tf.errors.NotFoundError, match=r"device cache .* does not exist"):
        _ops.cache_counters(number)


NAMED = """
import os, signal
import numpy as np, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
keras = _keras.keras
cache = tsps.DeviceCache(rows=20, device="CPU:1", policy="lru", flush_every=FLUSH_EVERY)
layer = tsps.Embedding(50, 4, "zeros", cache=cache)
layer.build(None)
optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.5))
ids = tf.constant([[1, 2, 3], [3, 4, 40]])
if TRAINS:
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids) - 1.0))
        optimizer.apply_gradients([(tape.gradient(loss, layer.trainable_variables)[0], layer.trainable_variables[0])])
    assert layer.cache_statistics()["newer"] == (0 if cache.flush_every == 1 else 5), layer.cache_statistics()
    assert "CPU:1" in layer(ids).device, layer(ids).device
print(layer.bindings[0].path)
print(np.asarray(layer(ids)).tolist(), flush=True)
if KILLED:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def named(job: str, *, trains: bool, killed: bool = False, flush_every: int | None = None, **environment: str) -> Any:
    """Runs a named job. Returns its exit status, its output, and its errors."""
    program = (
        NAMED.replace("FLUSH_EVERY", str(flush_every)).replace("TRAINS", str(trains)).replace("KILLED", str(killed))
    )
    return run_forked(program, TFSPS_JOB=job, **environment)


@pytest.mark.nightly
def test_a_named_job_leaves_all_rows_to_the_next_one() -> None:
    run_1, run_2 = named("cached-job", trains=True), named("cached-job", trains=False)
    assert run_1.returncode == run_2.returncode == 0, run_1.stderr[-3000:] + run_2.stderr[-3000:]
    assert run_1.stdout == run_2.stdout
    assert "[0.0" not in run_1.stdout


@pytest.mark.nightly
def test_a_job_that_was_killed_with_newer_rows_on_a_device_is_refused() -> None:
    run_1 = named("killed-job", trains=True, killed=True)
    assert run_1.returncode == -signal.SIGKILL, run_1.stderr[-3000:]
    path = run_1.stdout.splitlines()[0]
    assert tsps.Table.open(path).stats()["device_dirty_since_step"] == 1
    run_2 = named("killed-job", trains=False)
    assert run_2.returncode != 0
    assert "newer on a device (cache=...), since step 1" in run_2.stderr
    assert "TFSPS_ACCEPT_LOST_ROWS=killed-job" in run_2.stderr
    assert named("killed-job", trains=False, TFSPS_ACCEPT_LOST_ROWS="another").returncode != 0
    run_3 = named("killed-job", trains=False, TFSPS_ACCEPT_LOST_ROWS="killed-job")
    assert run_3.returncode == 0, run_3.stderr[-3000:]
    assert "[0.0" in run_3.stdout, "the table must have the rows of the last flush"
    assert tsps.Table.open(path).stats()["device_dirty_since_step"] is None


def test_a_kill_after_a_flush_loses_nothing() -> None:
    run_1 = named("flushed-job", trains=True, killed=True, flush_every=1)
    assert run_1.returncode == -signal.SIGKILL, run_1.stderr[-3000:]
    run_2 = named("flushed-job", trains=False)
    assert run_2.returncode == 0, run_2.stderr[-3000:]
    assert run_1.stdout == run_2.stdout


# --- refusals ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": tsps.Tiered("/tmp/none", memory="1MiB")}, "storage=.*cannot have a cache"),
        ({"placement": tsps.Sharded()}, "placement=.*cannot have a cache"),
    ],
    ids=["tiered", "sharded"],
)
def test_tables_that_cannot_have_a_cache(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tsps.errors.UnsupportedError, match=message):
        tsps.Embedding(ROWS, DIM, cache=cached(), **options)


def test_other_schedules_and_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no such device"):
        tsps.Embedding(ROWS, DIM, cache=cached(device="GPU:77")).build(None)
    model, _ = make(cached(), OPTIMIZERS["sgd"])
    schedule = tsps.schedules.DelayedGlobal(staleness=1)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(), schedule=schedule), "mse")
    with pytest.raises(Exception, match="has a cache and cannot be trained with DelayedGlobal"):
        fit(model)


@pytest.mark.parametrize(
    "options",
    [{"rows": 0}, {"rows": True}, {"rows": 2.5}, {"rows": 2**31}, {"policy": "lfu"}, {"flush_every": 0}, {"device": 3}],
    ids=str,
)
def test_options_that_cannot_work(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}={value!r}"):
        tsps.DeviceCache(**{"rows": 10, **options})


def test_a_layer_without_a_cache_has_no_statistics_of_one() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    layer.build(None)
    with pytest.raises(ValueError, match="has no cache"):
        layer.cache_statistics()
    with pytest.raises(ValueError, match="before it is built"):
        tsps.Embedding(ROWS, DIM, cache=cached()).cache_statistics()
