"""The kernels suite: the ops alone, on 213k Zipf ids of 1M rows, against TensorFlow's own ops for the same work."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks import harness
from tf_sparse_ps import _ops

_ADAGRAD_START, _EPSILON, _RATE = 0.1, 1e-7, 0.01


class _Store:
    """A filled table, and the same rows as dense TensorFlow variables."""

    def __init__(self, folder: Path, rows: int, dim: int) -> None:
        self.group = str(folder / "group")
        self.path, self.uuid = f"{self.group}/t0000-bench", uuid.uuid4().hex
        _ops.create_group(self.group, uuid.uuid4().hex)
        _ops.create_table(self.path, self.uuid, dim=dim, initializer="uniform", initializer_args=(-0.05, 0.05))
        _ops.bind_optimizer(self.path, self.uuid, "adagrad", [_ADAGRAD_START])
        self.carrier = tf.zeros([0, dim])
        self.hyper = tf.constant([_RATE, _EPSILON])
        self.step = tf.Variable(0, dtype=tf.int64)
        values = np.random.default_rng(0).uniform(-0.05, 0.05, (rows, dim)).astype(np.float32)
        for start in range(0, rows, 1 << 18):
            part = slice(start, start + (1 << 18))
            keys = np.arange(rows)[part]
            _ops.assign(self.path, self.uuid, tf.constant(keys), tf.constant(values[part]))
        self.dense = tf.Variable(values)
        self.accumulator = tf.Variable(tf.fill([rows, dim], _ADAGRAD_START))

    def lookup(self, ids: tf.Tensor) -> _ops.Lookup:
        return _ops.lookup([ids], [self.path], [self.uuid], [self.carrier], [0])

    def apply(self, keys: tf.Tensor, grads: tf.Tensor) -> None:
        step = self.step.assign_add(1)
        _ops.lib.tsps_apply(step, [self.path], [self.uuid], [keys], [grads], [self.hyper], _ops.NOBODY)

    def dense_apply(self, keys: tf.Tensor, grads: tf.Tensor) -> None:
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self.dense.handle,
            accum=self.accumulator.handle,
            lr=_RATE,
            epsilon=_EPSILON,
            grad=grads,
            indices=keys,
        )


def run(options: harness.Options) -> list[harness.Result]:
    """Measures every op at two widths."""
    results = []
    for dim in (16, 64):
        rows, count = (10_000, 2_130) if options.quick else (1_000_000, 213_000)
        with tempfile.TemporaryDirectory(prefix="tfsps-bench-", dir=_memory_folder()) as folder:
            store = _Store(Path(folder), rows, dim)
            results += _compare(options, store, rows, dim, count)
            _ops.close_group(store.group)
    return results


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _compare(options: harness.Options, store: _Store, rows: int, dim: int, count: int) -> list[harness.Result]:
    sizes = f"{rows:,} x {dim}, {count:,} ids"
    batches = [tf.constant(ids) for ids in harness.zipf_ids(rows, count, batches=6)]
    gradients = [tf.constant(gradient) for gradient in harness.normal_gradients(count, dim)]
    lookups = [store.lookup(ids) for ids in batches]
    sums = [
        _ops.segment_sum([gradients[k % 3]], lookup.inverses, lookup.keys, [0])[0] for k, lookup in enumerate(lookups)
    ]
    results: list[harness.Result] = []

    def add(case: str, peer: str, calls: int = 7, **variants: tuple[object, list[tuple[tf.Tensor, ...]]]) -> None:
        prepared = {}
        for name, (function, arguments) in variants.items():
            traced, next_arguments = tf.function(function, reduce_retracing=True), harness.Cycle(arguments)
            prepared[name] = lambda traced=traced, next_arguments=next_arguments: traced(*next_arguments())
        results.extend(
            harness.compare(
                "kernels",
                f"{case}, {sizes}",
                prepared,
                peer=peer,
                options=options,
                calls=calls,
                foreign=[name for name in prepared if not name.startswith("tsps_")],
            )
        )

    ids = [(batch,) for batch in batches]
    add(
        "lookup",
        "gather",
        gather=(lambda batch: tf.gather(store.dense, batch), ids),
        unique_gather=(lambda batch: _unique_gather(store.dense, batch), ids),
        tsps_lookup=(lambda batch: store.lookup(batch), ids),
    )
    to_sum = [(gradients[k % 3], lookup.inverses[0], lookup.keys[0]) for k, lookup in enumerate(lookups)]
    add(
        "segment-sum",
        "unsorted_segment_sum",
        unsorted_segment_sum=(lambda g, i, k: tf.math.unsorted_segment_sum(g, i, tf.size(k)), to_sum),
        tsps_segment_sum=(lambda g, i, k: _ops.segment_sum([g], [i], [k], [0]), to_sum),
    )
    pairs = [(lookups[k].keys[0], sums[k], lookups[k - 1].keys[0], sums[k - 1]) for k in range(len(lookups))]
    add(
        "merge of two ranks",
        "unique_segment_sum",
        unique_segment_sum=(_merge_with_tensorflow, pairs),
        tsps_merge=(_merge_with_ours, pairs),
    )
    updates = [(lookup.keys[0], total) for lookup, total in zip(lookups, sums, strict=True)]
    add(
        "Adagrad on unique keys",
        "sparse_apply_adagrad",
        sparse_apply_adagrad=(store.dense_apply, updates),
        tsps_apply=(store.apply, updates),
    )
    return results


def _unique_gather(dense: tf.Variable, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    keys, inverse = tf.unique(ids)
    return tf.gather(tf.gather(dense, keys), inverse), keys, inverse


def _merge_with_tensorflow(*sets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    keys, positions = tf.unique(tf.concat(sets[::2], 0))
    counts = tf.math.unsorted_segment_sum(tf.ones_like(positions), positions, tf.size(keys))
    totals = tf.math.unsorted_segment_sum(tf.concat(sets[1::2], 0), positions, tf.size(keys))
    return keys, totals / tf.cast(counts, tf.float32)[:, None]


def _merge_with_ours(*sets: tf.Tensor) -> _ops.Merged:
    keys, grads = tf.concat(sets[::2], 0), tf.concat(sets[1::2], 0)
    return _ops.merge([keys], [grads], [tf.ones_like(keys, tf.int32)], 2, "frequency")
