"""Rows for coming batches are copied to a device ahead: results are unchanged, and no copies are left over."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras, run_child

import tf_sparse_ps as tsps
from tf_sparse_ps.cache import copier

ROWS, DIM, BATCH, IDS_PER_SAMPLE, BATCHES = 300, 4, 8, 5, 30
_random = np.random.default_rng(0)
IDS = np.minimum(_random.zipf(1.3, size=(BATCH * BATCHES, IDS_PER_SAMPLE)), ROWS) - 1
TARGETS = _random.normal(size=(len(IDS), 1)).astype(np.float32)
UNIQUE = max(len(np.unique(IDS[i : i + BATCH])) for i in range(0, len(IDS), BATCH))
Dataset = tf.data.Dataset
Rows = list[np.ndarray[Any, Any]]


def dataset(of: slice = slice(None)) -> Dataset:
    return Dataset.from_tensor_slices((IDS[of], TARGETS[of])).batch(BATCH)


def make(
    cache: tsps.DeviceCache | None, optimizer: Any = None, kind: str = "functional", **options: Any
) -> tuple[Any, tsps.Embedding]:
    """Returns a compiled model (ids[batch, 5] -> embedding -> one output) and its embedding."""
    keras.utils.set_random_seed(3)
    layer = tsps.Embedding(ROWS, DIM, cache=cache)
    dense_part = [keras.layers.Flatten(), keras.layers.Dense(1)]
    if kind == "functional":
        ids = keras.Input((IDS_PER_SAMPLE,), dtype="int64")
        model = keras.Model(ids, dense_part[1](dense_part[0](layer(ids))))
    elif kind == "sequential":
        model = keras.Sequential([keras.Input((IDS_PER_SAMPLE,), dtype="int64"), layer, *dense_part])
    else:

        class Subclassed(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.parts = [layer, *dense_part]

            def call(self, ids: tf.Tensor) -> tf.Tensor:
                for part in self.parts:
                    ids = part(ids)
                return ids

        model = Subclassed()
        model(tf.constant(IDS[:BATCH]))
    model.compile(tsps.DistributedOptimizer(optimizer or keras.optimizers.Adagrad(0.1)), "mse", **options)
    return model, layer


def content(layer: tsps.Embedding) -> Rows:
    """Returns keys, rows and slots in the order of the keys."""
    block = layer.bindings[0].reader().scan().read()
    order = np.argsort(block.keys)
    return [block.keys[order], block.rows[order], *(slot[order] for slot in block.slots)]


def check_equal(layer: tsps.Embedding, expected: Rows) -> None:
    for plane, expected_plane in zip(content(layer), expected, strict=True):
        np.testing.assert_array_equal(plane, expected_plane)


def small() -> tsps.DeviceCache:
    return tsps.DeviceCache(rows=UNIQUE, policy="lru")


def with_all_rows() -> tsps.DeviceCache:
    return tsps.DeviceCache(rows=ROWS, policy="lru")


@pytest.mark.parametrize("kind", ["functional", "sequential", "subclassed"])
@pytest.mark.parametrize("batches", [1, 2, 8, "auto"])
@pytest.mark.daily_cases(1)
def test_the_numbers_are_those_of_a_cache_that_holds_everything(batches: Any, kind: str) -> None:
    reference, expected = make(with_all_rows(), kind=kind)
    reference.fit(dataset(), epochs=2, verbose=0)
    model, layer = make(small(), kind=kind)
    model.fit(tsps.lookahead(dataset(), model, batches=batches), epochs=2, verbose=0)
    check_equal(layer, content(expected))
    for weight, expected_weight in zip(model.layers[-1].get_weights(), reference.layers[-1].get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected_weight)
    statistics = layer.cache_statistics()
    assert statistics["announced"] == statistics["taken"] == 2 * BATCHES, "every batch takes its own copies"
    assert statistics["used"] > 0, "timing decides how many are used"
    assert statistics["evicted"] > 0


def test_under_sgd_the_numbers_are_those_without_a_cache() -> None:
    reference, expected = make(None, keras.optimizers.SGD(0.05))
    reference.fit(dataset(), epochs=2, verbose=0)
    model, layer = make(tsps.DeviceCache(rows=40), keras.optimizers.SGD(0.05))
    model.fit(tsps.lookahead(dataset(), model, batches=4), epochs=2, verbose=0)
    check_equal(layer, content(expected))
    assert layer.cache_statistics()["used"] > 0


class _Stops(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends an epoch, or raises, in its 7th batch."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self._raises = raises

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 6:
            if self._raises:
                raise KeyError("stop")
            self.model.stop_training = True


def _interrupted(model: Any, ahead: Callable[[Dataset], Dataset], raises: bool) -> None:
    for _ in range(2):
        try:
            model.fit(ahead(dataset()), verbose=0, callbacks=[_Stops(raises)])
        except KeyError:
            assert raises
    model.fit(ahead(dataset()), verbose=0)


def _in_a_loop(model: Any, ahead: Callable[[Dataset], Dataset]) -> None:
    @tf.function
    def train(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(ids, training=True) - targets))
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    batches = ahead(dataset())
    for stop in (0, 3, 1, 20, 30):
        for index, (ids, targets) in enumerate(batches):
            if index == stop:
                break
            train(ids, targets)


USAGES: dict[str, tuple[dict[str, Any], Callable[[Any, Callable[[Dataset], Dataset]], Any]]] = {
    "validation": (
        {},
        lambda model, ahead: model.fit(
            ahead(dataset()), epochs=2, verbose=0, validation_data=ahead(dataset(slice(0, 5 * BATCH)))
        ),
    ),
    "shuffle before": (
        {},
        lambda model, ahead: model.fit(ahead(dataset().shuffle(20, seed=4, reshuffle_each_iteration=False)), verbose=0),
    ),
    "repeat": (
        {},
        lambda model, ahead: model.fit(ahead(dataset().repeat()), epochs=3, steps_per_epoch=17, verbose=0),
    ),
    "several steps at once": (
        {"steps_per_execution": 5},
        lambda model, ahead: model.fit(ahead(dataset()), epochs=2, verbose=0),
    ),
    "eagerly": (
        {"run_eagerly": True},
        lambda model, ahead: model.fit(ahead(dataset(slice(0, 12 * BATCH))), verbose=0),
    ),
    "early stop": ({}, lambda model, ahead: _interrupted(model, ahead, raises=False)),
    "exception": ({}, lambda model, ahead: _interrupted(model, ahead, raises=True)),
    "custom loop": ({}, _in_a_loop),
}


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.daily_cases(1)
def test_usages(usage: str) -> None:
    options, train = USAGES[usage]
    reference, expected = make(with_all_rows(), **options)
    train(reference, lambda data: data)
    model, layer = make(small(), **options)
    train(model, lambda data: tsps.lookahead(data, model, batches=3))
    check_equal(layer, content(expected))
    assert layer.cache_statistics()["used"] > 0
    assert _waiting(layer) <= 4, "unused copies must be removed"


def _waiting(layer: tsps.Embedding) -> int:
    """Returns the number of copies on the device that were not taken."""
    (cache,) = layer.bindings[0].cache.stores
    deadline = time.monotonic() + 5
    while True:
        with tf.device(cache.device):
            size = int(tf.raw_ops.MapSize(dtypes=[tf.float32], shared_name=copier.area_of(int(cache.number))))
        if size <= 4 or time.monotonic() > deadline:
            return size
        time.sleep(0.05)


def test_strings_are_looked_up_and_a_layer_is_called_twice() -> None:
    words = np.char.add("w", IDS.astype(str))

    def train(cache: tsps.DeviceCache, ahead: bool) -> tsps.Embedding:
        keras.utils.set_random_seed(3)
        text = keras.Input((IDS_PER_SAMPLE,), dtype="string", name="words")
        ids = keras.Input((IDS_PER_SAMPLE,), dtype="int64", name="ids")
        layer = tsps.Embedding(None, DIM, cache=cache)
        hashed = keras.layers.Hashing(ROWS)(text)
        joined = keras.layers.Concatenate()([keras.layers.Flatten()(layer(tensor)) for tensor in (hashed, ids)])
        model = keras.Model([text, ids], keras.layers.Dense(1)(joined))
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
        data = Dataset.from_tensor_slices(({"words": words, "ids": IDS}, TARGETS)).batch(BATCH)
        model.fit(tsps.lookahead(data, model, batches=2) if ahead else data, epochs=2, verbose=0)
        return layer

    expected = train(tsps.DeviceCache(rows=2 * ROWS, policy="lru"), False)
    layer = train(tsps.DeviceCache(rows=2 * UNIQUE, policy="lru"), True)
    check_equal(layer, content(expected))
    statistics = layer.cache_statistics()
    assert statistics["announced"] == statistics["taken"] == 2 * 2 * BATCHES
    assert statistics["used"] > 0


def test_rows_that_are_set_between_two_batches_are_the_ones_that_train() -> None:
    def train(cache: tsps.DeviceCache, ahead: bool) -> tsps.Embedding:
        model, layer = make(cache)
        data = dataset()
        for index, batch in enumerate(tsps.lookahead(data, model, batches=4) if ahead else data):
            if index in (3, 4, 11):
                layer.set_weights([np.full((ROWS, DIM), index / 10, np.float32)])
            model.train_on_batch(*batch)
        return layer

    expected = train(with_all_rows(), False)
    check_equal(train(small(), True), content(expected))


# --- the next batches are not those that were announced ---


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """The warnings of all threads."""
    texts: list[str] = []
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: texts.append(str(message))
        yield texts
    warnings.showwarning = before


def _must_warn_once(messages: list[str]) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not any("was not looked up next" in message for message in messages):
        time.sleep(0.02)
    assert sum("was not looked up next" in message for message in messages) == 1


@pytest.mark.parametrize(
    ("misuse", "epochs"),
    [(lambda data: data.shuffle(9, seed=1, reshuffle_each_iteration=False), 4), (lambda data: data.cache(), 4)],
    ids=["shuffle", "cache"],
)
@pytest.mark.daily_cases(1)
def test_stages_behind_it_change_no_number_and_are_told(
    misuse: Callable[[Dataset], Dataset], epochs: int, messages: list[str]
) -> None:
    reference, expected = make(with_all_rows())
    reference.fit(misuse(dataset()), epochs=epochs, verbose=0)
    model, layer = make(small())
    model.fit(misuse(tsps.lookahead(dataset(), model, batches=2)), epochs=epochs, verbose=0)
    check_equal(layer, content(expected))
    _must_warn_once(messages)


def test_a_dataset_of_another_model_changes_no_number_and_is_told(messages: list[str]) -> None:
    other_model, _ = make(small())
    reference, expected = make(with_all_rows())
    reference.fit(dataset(), epochs=3, verbose=0)
    model, layer = make(small())
    model.fit(tsps.lookahead(dataset(), other_model, batches=2), epochs=3, verbose=0)
    check_equal(layer, content(expected))
    _must_warn_once(messages)


def test_too_many_batches_are_refused() -> None:
    model, _ = make(small())
    with pytest.raises(ValueError, match=r"at most 14 for tables with a cache on a device.*batches=15"):
        tsps.lookahead(dataset(), model, batches=15)


def test_keys_that_do_not_exist_are_refused_where_they_are_looked_up() -> None:
    model, layer = make(small())
    wrong = IDS.copy()
    wrong[3 * BATCH, 0] = ROWS
    data = Dataset.from_tensor_slices((wrong, TARGETS)).batch(BATCH)
    with pytest.raises(Exception, match=rf"= {ROWS} is not in \[0, {ROWS}\)"):
        model.fit(tsps.lookahead(data, model, batches=4), verbose=0)
    model.fit(tsps.lookahead(dataset(), model, batches=4), verbose=0)
    assert layer.cache_statistics()["steps"] == 3 + BATCHES


# --- the thread ---


@pytest.mark.nightly
def test_the_thread_ends_with_the_cache() -> None:
    def copiers() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("tsps-copier-")}

    keras.backend.clear_session()
    gc.collect()
    before = copiers()
    model, layer = make(small())
    model.fit(tsps.lookahead(dataset(), model, batches=2), verbose=0)
    assert len(copiers() - before) <= 1
    thread_name = f"tsps-copier-{layer.bindings[0].config.name}"
    assert thread_name in copiers()
    del model, layer
    deadline = time.monotonic() + 20
    while thread_name in copiers() and time.monotonic() < deadline:
        keras.backend.clear_session()
        gc.collect()
        make(small())  # a new cache removes the caches of dropped layers
        time.sleep(0.1)
    assert thread_name not in copiers()


_ENDS = """
import numpy as np, tensorflow as tf, tf_sparse_ps as tsps
keras = tf.keras
model = keras.Sequential([keras.Input((3,), dtype="int64"), tsps.Embedding(None, 4, cache=tsps.DeviceCache(rows=50)),
                          keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
x = np.random.default_rng(0).integers(0, 500, (400, 3))
data = tf.data.Dataset.from_tensor_slices((x, np.ones((400, 1), np.float32))).batch(8).repeat()
model.fit(tsps.lookahead(data, model, batches=8), steps_per_epoch=20, verbose=0)
for _, batch in zip(range(3), tsps.lookahead(data, model, batches=8)):
    pass
print("end")
"""


@pytest.mark.nightly
def test_a_process_ends_while_copies_wait() -> None:
    assert run_child(_ENDS) == "end\n"
