"""One rank of several nodes that train sharded tables and publish them. Argument: the folder for versions."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import event_records
import numpy as np
import sharded_saving_support as support
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps.serving import fault_points, layer_plan
from tf_sparse_ps.serving.version import Version, numbered

keras = tf.keras
EVERY = 4
NAMES = ("words", "items", "near")  # the last one is replicated


def main() -> None:
    """Publishes while ranks train, with erasures, an error and two calls of fit; compares each version."""
    this_rank.init()
    layer_plan.MOST_OF_BASE = layer_plan.OVERDUE = 100.0  # in tables this small, headers have most of the bytes
    ranks, folder = tsps.collectives.current(), Path(sys.argv[1])
    model = support.make(tsps.Sharded())
    record = Record(model)
    export = tsps.callbacks.Export(folder / "serve", every_steps=EVERY, keep=100)
    watch = tsps.callbacks.TableMetrics(folder / "metrics", every_steps=EVERY)
    fit(model, [record, export, watch], seed=0)
    fit(model, [record, export, watch], seed=1)
    ranks.barrier("test.published")
    if ranks.rank == 0:
        record.must_have_been_published(folder / "serve")
        kinds = kinds_of(folder / "serve", "t0000-words")
        assert kinds[0] == ["base"], kinds
        assert any("layer" in files for files in kinds), kinds
        figures_are_of_both_nodes(folder / "metrics", model)
    by_the_clock(model, folder / "clock")
    an_error_passes(model, folder / "failed")
    exported_layers(model, folder)
    ranks.barrier("test.end")
    print("rank is done")


def figures_are_of_both_nodes(folder: Path, model: Any) -> None:
    """Rank 0 has written the figures of both nodes, each of which has a part of the rows."""
    job, *nodes = (event_records.read(folder / run) for run in ("", "node-0", "node-1"))
    assert list(job["job/samples_per_second"]) == [4, 8, 12, 16, 20, 24]
    table = support.layer_of(model, "words").bindings[0].path.rpartition("/")[2]
    rows = [node[f"{table}/rows"][24] for node in nodes]
    assert min(rows) > 0
    assert rows[0] == len(support.layer_of(model, "words").bindings[0].reader().keys())
    for step, samples in job["job/samples_per_second"].items():
        parts = [node["per_second/samples"][step] for node in nodes]
        assert abs(sum(parts) - samples) < 1e-3 * samples
        assert nodes[0][f"{table}/row_norm"][step][:, 2].sum() > 0


class Record(keras.callbacks.Callback):
    """Notes all rows at each step that is published, and erases some keys before."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.seen: list[tuple[int, dict[str, Any]]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self._model.optimizer.iterations)
        if step % EVERY == EVERY - 1:
            support.layer_of(self._model, "words").erase(np.arange(step, 200, 7))
        if step % EVERY == 0:
            self.seen.append((committed(self._model), rows_of_all_nodes(self._model)))

    def must_have_been_published(self, directory: Path) -> None:
        """Compares each version with what was noted."""
        versions = sorted(numbered(directory))
        assert len(versions) == len(self.seen), (versions, len(self.seen))
        for (step, content), (_, folder) in zip(self.seen, versions, strict=True):
            must_equal(folder, step, content)


def committed(model: Any) -> int:
    """Returns the committed step of the tables."""
    return int(support.layer_of(model, "words").bindings[0].reader().step)


def rows_of_all_nodes(model: Any) -> dict[str, Any]:
    """Returns the keys, in order, and the rows of each table. Every rank calls it."""
    ranks = tsps.collectives.current()
    result = {}
    for name in NAMES:
        (binding,) = support.layer_of(model, name).bindings
        reader = binding.reader()
        keys = np.sort(reader.keys())
        is_asked = ranks.rank == 0 or (binding.placement == "sharded" and ranks.local_rank == 0)
        parts = ranks.allgather_object((keys, reader.lookup(keys)) if is_asked else None, f"test.{name}")
        all_keys, rows = (np.concatenate(arrays) for arrays in zip(*(p for p in parts if p is not None), strict=True))
        order = np.argsort(all_keys)
        result[name] = all_keys[order], rows[order]
    return result


def must_equal(folder: Path, step: int, content: dict[str, Any]) -> None:
    """Compares a version with `rows_of_all_nodes`."""
    assert Version(folder).manifest.step == step
    for name in NAMES:
        keys, rows = content[name]
        served = tsps.ServingTable.open(folder, name, verify=True)
        found = np.sort(np.concatenate([np.empty(0, np.int64), *served.key_parts()]))
        np.testing.assert_array_equal(found, keys)
        np.testing.assert_array_equal(served.lookup(keys), rows)


def kinds_of(directory: Path, asset: str) -> list[list[str]]:
    """Returns the kinds of a table's files in each version."""
    tables = [next(t for t in Version(path).tables if t.asset == asset) for _, path in sorted(numbered(directory))]
    return [[Path(file.path).name.split("-")[0] for file in table.files] for table in tables]


def fit(model: Any, callbacks: list[Any], seed: int, batches: int = 12) -> None:
    """Makes some steps, with batches of this rank. Few keys change in each."""
    random = np.random.default_rng((seed, tsps.collectives.current().rank))
    x = random.integers(0, support.ITEMS, (batches * 8, support.WIDTH))
    model.fit(x, np.ones((len(x), 1), np.float32), batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)


def by_the_clock(model: Any, directory: Path) -> None:
    """The ranks agree when a version is due."""
    fit(model, [tsps.callbacks.Export(directory, every_seconds=0.001)], seed=2)
    content = rows_of_all_nodes(model)
    if tsps.collectives.current().rank == 0:
        must_equal(max(numbered(directory))[1], committed(model), content)


def an_error_passes(model: Any, directory: Path) -> None:
    """Rank 0 cannot write the first version: training continues on all ranks, and the next version is tried."""
    failed = []

    def fail(point: str) -> None:
        if point == "folder_made" and not failed:
            failed.append(point)
            raise OSError("the disk is full")

    fault_points.set_action(fail)
    rank = tsps.collectives.current().rank
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, [tsps.callbacks.Export(directory, every_steps=EVERY)], seed=3)
    fault_points.set_action(None)
    assert (rank == 0) == any("the disk is full" in str(warning.message) for warning in caught)
    content = rows_of_all_nodes(model)
    if rank == 0:
        assert [number for number, _ in sorted(numbered(directory))] == [1, 2]
        must_equal(max(numbered(directory))[1], committed(model), content)


def exported_layers(model: Any, folder: Path) -> None:
    """`tsps.export` writes what has changed since a version, or, if that is not known, what differs."""
    earlier = max(numbered(folder / "clock"))[1]  # an earlier version, whose marks are known; only rank 0 reads it
    rank = tsps.collectives.current().rank
    tsps.export(model, folder / "layers/1", base=earlier if rank == 0 else "elsewhere")
    fit(model, [], seed=4, batches=2)
    tsps.export(model, folder / "layers/2", base=folder / "layers/1")
    tsps.export(model, folder / "layers/3", base=folder / "layers/2")
    content = rows_of_all_nodes(model)
    if rank == 0:
        must_equal(folder / "layers/2", committed(model), content)
        must_equal(folder / "layers/3", committed(model), content)
        kinds = kinds_of(folder / "layers", "t0000-words")
        assert kinds[1][0] == "layer", kinds
        assert kinds[2] == kinds[1], "nothing has changed"


main()
