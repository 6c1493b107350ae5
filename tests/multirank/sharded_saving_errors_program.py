"""One rank of the test of saves and loads that fail, and of the memory that they take.

Arguments: the names of actions, which run one after another; the folder for results.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sharded_saving_support as support
import tensorflow as tf
import this_rank
from sharded_saving_support import SPREAD, keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _table
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.job.table_binding import number_of
from tf_sparse_ps.layers import rows, saving, sharded_content

ROWS, DIM = 400_000, 64  # 208 MB with a slot
MOST_MIB = 64.0
TIER_MEMORY = 1_840_000  # 1.5 MiB are buffers


def error_of(action: Callable[[], Any]) -> str:
    """Returns the error of an action."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def must_contain(message: str, *parts: str) -> None:
    """Fails unless an error contains all of these texts."""
    assert all(part in message for part in parts), (message, parts)


def alone(folder: Path) -> None:
    """Rank 0 saves, and no other rank does."""
    model = support.make(SPREAD)
    support.train(model, this_rank.rank())
    if this_rank.rank() == 0:
        model.save(str(folder / "model.keras"))
    tsps.collectives.current().barrier("test.others")


def failures(folder: Path) -> None:
    """An error on one rank fails all ranks at once. Later actions work."""
    ranks = tsps.collectives.current()
    rank, last = ranks.rank, ranks.size - 1
    model = support.make(SPREAD, bounded=True)
    support.train(model, rank)
    path = str(folder / "model.weights.h5")

    # The writer's folder does not exist.
    message = error_of(lambda: model.save_weights(str(folder / "missing" / "deeper" / "model.weights.h5")))
    expected = "Error: " if rank == 0 else "StateError: rank 0 could not save to "
    must_contain(message, expected, "missing/deeper")

    (folder / f"file{rank}").touch()
    message = error_of(lambda: model.export(str(folder / "file0" / "exported")))
    must_contain(message, "/file0", "FailedPreconditionError" if rank == 0 else "StateError: rank 0 could not save to ")

    message = error_of(lambda: tsps.export(model, folder / "file0"))
    must_contain(message, "file0 exists, and a version never changes")
    assert ("rank 0: InvalidArgumentError" in message) == (rank != 0), message

    # Keras keeps the files of failed saves open, so each save has another name.
    # A node cannot read its shard: at the beginning, and in the middle.
    sharded_content.CHUNK_BYTES = 1 << 12
    scan, pack, packed = tsps.Table.scan, sharded_content.ShardedContent._pack, [0]

    def fail_at_begin(self: Any, **options: Any) -> Any:
        if rank == last and self.path == support.layer_of(model, "items").bindings[0].path:
            raise StateError("its disk is gone")
        return scan(self, **options)

    def fail_in_the_middle(self: Any, n: int) -> Any:
        packed[0] += 1
        if rank == last and packed[0] == 3:
            raise StateError("its memory is gone")
        return pack(self, n)

    tsps.Table.scan = fail_at_begin  # type: ignore[method-assign]
    message = error_of(lambda: model.save_weights(str(folder / "failed0.weights.h5")))
    must_contain(message, "StateError: ", "its disk is gone")
    assert (f"rank {last}: StateError" in message) == (rank != last), message
    tsps.Table.scan = scan  # type: ignore[method-assign]
    sharded_content.ShardedContent._pack = fail_in_the_middle  # type: ignore[method-assign]
    message = error_of(lambda: model.save_weights(str(folder / "failed1.weights.h5")))
    assert "its memory is gone" in message, message
    packed[0] = 0
    message = error_of(lambda: tsps.export(model, folder / "version"))
    assert "its memory is gone" in message, message
    message = error_of(lambda: support.layer_of(model, "words").get_weights())
    assert message == "nothing", message
    sharded_content.ShardedContent._pack = pack  # type: ignore[method-assign]
    message = error_of(lambda: tsps.export(model, folder / "version"))
    assert message == "nothing", message

    # The writer's disk is full in the middle.
    fill = rows._shown

    def full(content: Any, what: str) -> Any:
        for number, block in enumerate(fill(content, what)):
            if number == 2:
                raise OSError("no space left")
            yield block

    rows._shown = full
    message = error_of(lambda: model.save_weights(str(folder / "failed2.weights.h5")))
    assert "no space left" in message, message
    rows._shown = fill
    sharded_content.CHUNK_BYTES = 8 << 20

    # The ranks pass different paths: that of rank 0 is used.
    own_path = folder / f"rank{rank}.weights.h5"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.save_weights(str(own_path))
    heard = [str(warning.message) for warning in caught if "rank 0 saves the model" in str(warning.message)]
    assert (len(heard), own_path.exists()) == ((0, True) if rank == 0 else (1, False)), heard
    ranks.barrier("test.own")

    # Ranks load different files, or set different weights.
    support.train(model, rank)
    model.save_weights(path)
    message = error_of(lambda: model.load_weights(path if rank == last else str(folder / "rank0.weights.h5")))
    must_contain(message, f"rank {last} has", "rows: rank 0 has")
    message = error_of(lambda: model.layers[1].set_weights([np.full((support.ITEMS, 4), rank, np.float32)]))
    must_contain(message, f"rank {last} has", "values: rank 0 has")
    model.load_weights(path)

    # Values at construction.
    values = np.full((support.ITEMS, 4), float(rank == last), np.float32)
    inputs = keras.Input((4,), dtype="int64")
    table = tsps.TableConfig("given", 4, key_limit=support.ITEMS, placement=SPREAD)
    layer = tsps.Embedding(support.ITEMS, 4, table=table, weights=[values])
    given_model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    given_model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    message = error_of(lambda: support.train(given_model, rank))
    must_contain(message, "`weights` of table", "rank 0 has of checksum")

    # An initializer makes a whole matrix: each node has its own rows of the same matrix.
    table = tsps.TableConfig("whole", 4, key_limit=support.ITEMS, placement=SPREAD, initializer="orthogonal")
    layer = tsps.Embedding(support.ITEMS, 4, table=table)
    rows_found = np.asarray(layer(np.arange(support.ITEMS)))
    np.testing.assert_allclose(rows_found.T @ rows_found, np.eye(4), atol=1e-5)
    np.testing.assert_array_equal(layer.get_weights()[0], rows_found)

    # Functions that were traced for an export see the rows of one node. Others need all ranks.
    words = support.layer_of(model, "words")
    with saving._tracing():
        local = tf.function(lambda ids: words(ids)).get_concrete_function(tf.TensorSpec([None], tf.int64))
    must_contain(error_of(lambda: local(tf.range(9, dtype=tf.int64))), "traced for a SavedModel", f"node {rank} of")
    module = tf.Module()
    module.words, module.look_up = words, tf.function(lambda ids: words(ids))
    module.look_up(tf.range(9, dtype=tf.int64))
    called = module.look_up.get_concrete_function(tf.TensorSpec([9], tf.int64))
    message = error_of(lambda: tf.saved_model.save(module, str(folder / "called"), signatures=called))
    must_contain(message, "untracked" if rank == 0 else "rank 0 could not save to ")
    module.look_up = tf.function(lambda ids: words(ids), input_signature=[tf.TensorSpec([None], tf.int64)])
    tf.saved_model.save(module, str(folder / "module"))
    ids = tf.range(9, dtype=tf.int64)
    loaded = tf.saved_model.load(str(folder / "module"))
    np.testing.assert_array_equal(loaded.look_up(ids), words(ids))


def tiered(folder: Path) -> None:
    """A table with most rows on disks is saved, and loaded into a replicated table, and into itself."""
    rank, rows_of_all = this_rank.rank(), 12_000
    keys = np.arange(rows_of_all, dtype=np.int64)
    values = np.repeat(keys[:, None], 4, 1).astype(np.float32)

    def model_of(**options: Any) -> Any:
        inputs = keras.Input((2,), dtype="int64")
        layer = tsps.Embedding(None, 4, table=tsps.TableConfig("rows", 4, **options), name="rows")
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", jit_compile=False)
        model.fit(np.zeros((8, 2), np.int64), np.ones((8, 1), np.float32), verbose=0)
        return model

    model = model_of(placement=SPREAD, storage=tsps.Tiered(folder / f"disk{rank}", memory=TIER_MEMORY))
    (binding,) = support.layer_of(model, "rows").bindings
    with binding.writing(number_of("written")) as writes:
        if writes:
            binding.write_rows(keys, values)
    tsps.collectives.current().barrier("test.written")
    assert binding.reader().stats()["rows_on_disk"] > len(binding.reader()) // 2
    path = str(folder / "tiered.weights.h5")
    model.save_weights(path)
    for loaded_model in (model_of(), model):
        loaded_model.fit(keys[-64:].reshape(32, 2) + rank, np.ones((32, 1), np.float32), verbose=0)
        loaded_model.load_weights(path)
        np.testing.assert_array_equal(support.layer_of(loaded_model, "rows")(keys[::7]), values[::7])
        assert support.layer_of(loaded_model, "rows").bindings[0].reader().keys().max() < rows_of_all, (
            "others are not erased"
        )


def named(folder: Path) -> None:
    """Trains tables of a named job."""
    model = support.make(SPREAD)
    support.train(model, this_rank.rank())
    support.content(model)


def anonymous_mib() -> float:
    """Returns the memory of this process that belongs to no table."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


class Peak:
    """The most memory that is in use within the `with` block, less the memory before it."""

    def __enter__(self) -> Peak:
        self._before = self.most = anonymous_mib()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._end.wait(0.002):
            self.most = max(self.most, anonymous_mib())

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.most -= self._before


def memory(folder: Path) -> None:
    """Measures the memory of a save, an export and a load on each rank, in addition to the table's."""
    ranks = tsps.collectives.current()
    inputs = keras.Input((2,), dtype="int64")
    layer = tsps.Embedding(None, DIM, table=tsps.TableConfig("large", DIM, placement=SPREAD, initializer="zeros"))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", jit_compile=False)
    model.fit(np.zeros((8, 2), np.int64), np.ones((8, 1), np.float32), verbose=0)
    (binding,) = layer.bindings
    small = str(folder / "small.weights.h5")
    model.save_weights(small)  # makes everything that is made only once
    model.load_weights(small)
    with binding.writing(number_of("large")) as writes:
        for start in range(0, ROWS, 1 << 14) if writes else ():
            keys = np.arange(start, min(ROWS, start + (1 << 14)), dtype=np.int64)
            binding.write_rows(keys, np.repeat(keys[:, None], DIM, 1).astype(np.float32))
    n_own = int((_table.owners(np.arange(ROWS, dtype=np.int64), binding.nodes) == binding.node).sum())
    assert len(binding.reader()) == n_own
    ways: dict[str, Callable[[str], Any]] = {"large.weights.h5": model.save_weights, "exported": model.export}
    ways["version"] = functools.partial(tsps.export, model)
    if support._keras.IS_KERAS_3:
        ways["large.keras"] = model.save
    for name, save in ways.items():
        with Peak() as peak:
            save(str(folder / name))
        print(f"{name} has taken {peak.most:.1f} MiB", flush=True)
        assert peak.most < MOST_MIB, (name, peak.most)
    assert (folder / "large.weights.h5").stat().st_size > ROWS * DIM * 8
    tf.keras.backend.clear_session()
    with binding.writing(number_of("zeros")) as writes:
        if writes:
            binding.write_rows(np.arange(100), np.zeros((100, DIM), np.float32))
    with Peak() as peak:
        model.load_weights(str(folder / "large.weights.h5"))
    print(f"loading has taken {peak.most:.1f} MiB", flush=True)
    assert peak.most < MOST_MIB, peak.most
    keys_found = binding.reader().keys()
    _, values, _ = binding.reader().entries(keys_found)
    np.testing.assert_array_equal(values[keys_found > 0], np.repeat(keys_found[keys_found > 0][:, None], DIM, 1))
    assert len(keys_found) == n_own
    ranks.barrier("test.loaded")


def main() -> None:
    this_rank.init()
    actions = {"alone": alone, "wrong": failures, "tiered": tiered, "memory": memory, "named": named}
    for action in sys.argv[1].split(","):
        actions[action](Path(sys.argv[2]))
    tsps.collectives.current().barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
