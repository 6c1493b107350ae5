"""The cache suite: a table with some rows on a device, against the same table without a cache, and with lookahead.

The suite counts the bytes that travel between host and device. If no device has its own link, a slow one stands in
(`benchmarks/slow_link.py`), and the suite measures how much of its time lookahead hides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness, rules, spans, steps
from benchmarks.slow_link import SlowLink
from tf_sparse_ps.cache import device_store

_SUITE = "cache"


@dataclasses.dataclass(frozen=True)
class _Sizes:
    rows: int
    dim: int
    ids: int
    warmup: int
    counted: int

    @property
    def text(self) -> str:
        return f"{self.rows:,} x {self.dim}, {self.ids:,} Zipf(1.05) ids, Adagrad"


class _Variant:
    """A model of one layer, and its training on an endless dataset."""

    def __init__(self, sizes: _Sizes, cache: tsps.DeviceCache | None, ahead: int, batches: Any, gradient: Any) -> None:
        keras.utils.set_random_seed(1)
        self.layer = tsps.Embedding(sizes.rows, sizes.dim, cache=cache)
        self.model = keras.Sequential([keras.Input((), dtype="int64"), self.layer])
        train = steps.train_step(self.layer, rules.ours())
        data = tf.data.Dataset.from_tensor_slices(batches).repeat()
        self.cached = cache is not None
        elements: Iterator[Any] = iter(tsps.lookahead(data, self.model, batches=ahead) if ahead else data)
        self.step: Callable[[], Any] = lambda: train(next(elements), gradient)

    def count(self, n: int) -> dict[str, float]:
        """Makes n more steps and returns what they add to the statistics of the cache."""
        before = self.layer.cache_statistics()
        for _ in range(n):
            self.step()
        return {name: value - before[name] for name, value in self.layer.cache_statistics().items()}


def _figure(case: str, variant: str, unit: str, value: float) -> harness.Result:
    return harness.Result(_SUITE, case, variant, value, value, value, unit, None)


def run(options: harness.Options) -> list[harness.Result]:
    """Measures bytes between host and device, step times, and how much of a slow link's time is hidden."""
    sizes, batches, gradient = _data(options.quick)
    results = _bytes(sizes, batches, gradient)
    results += _times(sizes, batches, gradient, options)
    return results + _hidden(sizes, batches, gradient)


def _data(quick: bool) -> tuple[_Sizes, Any, Any]:
    sizes = _Sizes(20_000, 8, 4_096, 10, 10) if quick else _Sizes(1_000_000, 64, 106_496, 60, 60)
    batches = np.stack(harness.zipf_ids(sizes.rows, sizes.ids, batches=sizes.warmup + sizes.counted))
    return sizes, batches, tf.constant(np.random.default_rng(1).random((sizes.ids, sizes.dim), np.float32) * 1e-3)


def record(steps: int, *, quick: bool) -> tuple[list[tuple[str, int, int]], float]:
    """Records steps that look one batch ahead; returns their spans, and the link's bytes per second, each way."""
    sizes, batches, gradient = _data(quick)
    with _slow_link(sizes, batches, gradient) as (rate, _):
        variant = _Variant(sizes, tsps.DeviceCache(rows=sizes.rows // 10), 1, batches, gradient)
        variant.count(sizes.warmup)
        spans.start()
        step_spans = []
        for _ in range(steps):
            begun = time.monotonic_ns()
            variant.step()
            step_spans.append(("step", begun, time.monotonic_ns()))
        return [*spans.stop(), *step_spans], rate


def _bytes(sizes: _Sizes, batches: Any, gradient: Any) -> list[harness.Result]:
    results = []
    drifting = _drifting(sizes, len(batches))
    for trace, share, policy, ahead in (
        (batches, 10, "admission", 0),
        (batches, 10, "admission", 1),
        (batches, 10, "admission", 8),
        (batches, 20, "admission", 0),
        (batches, 20, "admission", 8),
        (batches, 10, "lru", 0),
        (drifting, 10, "admission", 0),
        (drifting, 10, "admission", 8),
    ):
        cache = tsps.DeviceCache(rows=sizes.rows * share // 100, policy=policy)
        variant = _Variant(sizes, cache, ahead, trace, gradient)
        variant.count(sizes.warmup)
        counted = variant.count(sizes.counted)
        # Without a cache, every key's row goes down to the device, and its gradient goes up.
        uncached_bytes = counted["keys"] * 2 * 4 * sizes.dim
        name = f"{policy}, {share} % of the rows, {ahead} ahead{', drifting' if trace is drifting else ''}"
        case = f"bytes between host and device, {sizes.text}; no cache: 1"
        moved = (counted["bytes_down"] + counted["bytes_up"]) / uncached_bytes
        results.append(_figure(case, name, "of the bytes without a cache", moved))
        hits = counted["hits"] / counted["keys"]
        results.append(_figure(f"hits of steps, {sizes.text}", name, "of keys", hits))
        print(f"{name}: {moved:.3f} of the bytes, hits {hits:.3f}", flush=True)
        del variant
        gc.collect()
    return results


def _drifting(sizes: _Sizes, n: int) -> Any:
    """Returns batches whose keys drift: every 10 batches, one key in 20 of the vocabulary is replaced."""
    random = np.random.default_rng(2)
    names = np.arange(sizes.rows)
    out = []
    for index, ids in enumerate(harness.zipf_ids(sizes.rows, sizes.ids, batches=n, seed=3)):
        if index % 10 == 0:
            changed = random.choice(sizes.rows, sizes.rows // 20, replace=False)
            names[changed] = names[np.roll(changed, 1)]
        out.append(names[ids])
    return np.stack(out)


def _times(sizes: _Sizes, batches: Any, gradient: Any, options: harness.Options) -> list[harness.Result]:
    rows = sizes.rows // 10
    variants = {"no cache": _Variant(sizes, None, 0, batches, gradient)}
    for name, policy, ahead in (
        ("admission", "admission", 0),
        ("admission, 1 ahead", "admission", 1),
        ("admission, 8 ahead", "admission", 8),
        ("lru", "lru", 0),
    ):
        variants[name] = _Variant(sizes, tsps.DeviceCache(rows=rows, policy=policy), ahead, batches, gradient)
    for variant in variants.values():
        for _ in range(sizes.warmup):
            variant.step()
    device = device_store.resolve_device(None)
    return harness.compare(
        _SUITE,
        f"lookup + backward + update on {device}, 10 % of the rows there, {sizes.text}",
        {name: variant.step for name, variant in variants.items()},
        peer="no cache",
        options=options,
        calls=3 if options.quick else 10,
    )


def _hidden(sizes: _Sizes, batches: Any, gradient: Any) -> list[harness.Result]:
    """Measures, with a link that takes as long as computing, how much of the time of rows copied ahead is hidden."""
    rows = sizes.rows // 10
    with _slow_link(sizes, batches, gradient) as (rate, seconds):
        results = []
        case = f"a link of {rate / 1e6:.0f} MB/s each way, 10 % of the rows, {sizes.text}"
        results.append(_figure(case, "computing alone", "ms", seconds / sizes.counted * 1e3))
        for ahead in (0, 1, 4, 8):
            counted, seconds = _timed(_Variant(sizes, tsps.DeviceCache(rows=rows), ahead, batches, gradient), sizes)
            name = f"{ahead} ahead"
            results.append(_figure(case, name, "ms", seconds / sizes.counted * 1e3))
            line = f"{name}: {seconds / sizes.counted * 1e3:.1f} ms per step"
            if ahead:
                down = counted["copied_ahead"] * 4 * sizes.dim / rate
                late = counted["waited_ns"] / 1e9 + counted["missed"] * 4 * sizes.dim / rate
                hidden = 1 - min(1.0, late / down)
                results.append(_figure(case, f"{name}: hidden", "of the time of rows copied ahead", hidden))
                line += (
                    f", {down / sizes.counted * 1e3:.1f} ms of rows copied ahead, hidden {hidden:.2f}, used "
                    f"{counted['used'] / counted['copied_ahead']:.2f}"
                )
            print(line, flush=True)
    return results


@contextlib.contextmanager
def _slow_link(sizes: _Sizes, batches: Any, gradient: Any) -> Iterator[tuple[float, float]]:
    """Gives the caches that are made within it a link that takes as long as computing.

    Yields:
        The bytes per second of the link, each way, and the seconds that computing takes.
    """
    counted, seconds = _timed(_Variant(sizes, tsps.DeviceCache(rows=sizes.rows // 10), 0, batches, gradient), sizes)
    rate = (counted["bytes_down"] + counted["bytes_up"]) / seconds
    before = device_store.link
    device_store.link = SlowLink(rate)
    try:
        yield rate, seconds
    finally:
        device_store.link = before


def _timed(variant: _Variant, sizes: _Sizes) -> tuple[dict[str, float], float]:
    """Returns what the timed steps of a variant count, and the seconds that they take."""
    variant.count(sizes.warmup)
    begun = time.perf_counter()
    counted = variant.count(sizes.counted)
    return counted, time.perf_counter() - begun
