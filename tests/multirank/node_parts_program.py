"""One rank of a job on two machines that saves, or restores, checkpoints. Each machine writes a part of them.

Arguments: "save" or "restore"; a folder for checkpoints and their expected contents; the folder for results, which is
not used.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import cli, errors
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import directory, fault_points, store, stored_checkpoint, tables, variables
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.table.shards import Shard

keras = _keras.keras
ROWS, DIM, BATCH = 9_000, 4, 64
NAMES = ("sharded", "replicated")


def make_model() -> Any:
    """Returns a compiled model with a sharded table and a replicated one."""
    inputs = keras.Input((2,), dtype="int64")
    placements: tuple[Any, Any] = (Sharded(), "replicated")
    parts = [
        tsps.Embedding(None, DIM, table=tsps.TableConfig(name, DIM, seed=1, placement=placement))(inputs)
        for name, placement in zip(NAMES, placements, strict=True)
    ]
    hidden = keras.layers.BatchNormalization()(keras.layers.Flatten()(keras.layers.Concatenate()(parts)))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", jit_compile=False)
    return model


def train(model: Any, steps: range) -> None:
    """Makes the steps of these numbers, on this rank's batches."""
    for step in steps:
        random = np.random.default_rng([this_rank.rank(), step])
        x = random.integers(0, ROWS, (BATCH if step else 20 * BATCH, 2))
        model.train_on_batch(x, random.normal(size=(len(x), 1)).astype(np.float32))


def content(model: Any) -> dict[str, np.ndarray]:
    """Returns this node's rows and slots, in the order of keys; variables of this rank; the step."""
    result = {"step": np.asarray(tables.committed_step())}
    for binding in tables.of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        order = np.argsort(keys)
        for number, array in enumerate((keys, rows, *slots)):
            result[f"{binding.config.name}.{number}"] = array[order]
    for number, entry in enumerate(variables.collect(model, model.optimizer, {})):
        if entry.kind != "metric":
            result[f"variable.{number}"] = entry.variable.numpy()
    return result


def must_equal(actual: dict[str, np.ndarray], expected: Any) -> None:
    """Fails unless the contents have the same bits."""
    assert actual.keys() == set(expected)
    for name, array in actual.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def must_be_parts(path: Path, expected: dict[str, np.ndarray], kind: str) -> None:
    """Fails unless a checkpoint has a part of each node for each table, and this node's part has what the node had."""
    checked = stored_checkpoint.check(path)
    shard = Shard(this_rank.rank(), 2)
    for number, name in enumerate(NAMES):
        parts = checked.manifest.parts(number)
        assert [part.content for part in parts] == [kind, kind]
        assert [".node-00000." in parts[0].file, ".node-00001." in parts[1].file] == [True, True]
        blocks = list(StoredRows(checked, number, shard).blocks())
        keys, rows = (np.concatenate(arrays) for arrays in zip(*((b.keys, b.rows) for b in blocks), strict=True))
        assert shard.has(keys).all()
        is_ours = shard.has(expected[f"{name}.0"])
        np.testing.assert_array_equal(np.sort(keys), expected[f"{name}.0"][is_ours])
        np.testing.assert_array_equal(rows[np.argsort(keys)], expected[f"{name}.1"][is_ours])
    assert not list(path.glob("node-*")), "the reports of nodes to rank 0 must be removed"


@contextlib.contextmanager
def failing(at: str) -> Iterator[None]:
    """Makes rank 1's disk full when a save reaches a point."""

    def act(point: str) -> None:
        if point == at and this_rank.rank() == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    fault_points.set_action(act)
    yield
    fault_points.set_action(None)


def raises(error: type[Exception], text: str) -> Any:
    """Returns a context in which this rank must get an error."""
    return pytest.raises(error, match=text)


def keep(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Stores the contents for the job that restores."""
    np.savez(folder / f"{name}-{this_rank.rank()}.npz", **arrays)


def save_to_one_directory(model: Any, folder: Path) -> None:
    """Each machine writes its part of checkpoints in one directory, while training continues."""
    checkpointer = tsps.Checkpointer(folder / "shared", model, model.optimizer, keep=4)
    may_continue = threading.Event()
    if this_rank.rank() == 1:
        fault_points.set_action(lambda point: point == "file_written" and not may_continue.wait(60) and sys.exit(1))
    train(model, range(3))
    first = content(model)
    path = Path(checkpointer.save())
    assert path == folder / "shared" / path.name
    train(model, range(3, 6))
    assert checkpointer.is_saving, "on both ranks: the part of rank 1 is not there yet"
    assert not path.exists()
    may_continue.set()
    checkpointer.wait()
    fault_points.set_action(None)
    must_be_parts(path, first, "all")
    # The next save is an increment, and each machine has a part of it, too.
    train(model, range(6, 7))
    path = Path(checkpointer.save())
    second = content(model)
    checkpointer.wait()
    must_be_parts(path, second, "all" if not stored_checkpoint.look(path).builds_on else "changes")
    assert len(stored_checkpoint.look(path).builds_on) == 1
    # The disk of another machine is full: all ranks get the error, and the next save works.
    for point in ("file_written", "part_written"):
        train(model, range(7, 8))
        with failing(point):
            failed = checkpointer.save()
            train(model, range(8, 9))
            assert checkpointer.latest() == str(path), "who calls it alone does not wait for what will not come"
            with raises(errors.NotSavedError, r"rank 1: OSError: .*No space left"):
                checkpointer.wait()
        assert not Path(failed).exists()
    # An error after the checkpoint is complete loses nothing.
    train(model, range(9, 10))
    with failing("part_reported"):
        path = Path(checkpointer.save())
        third = content(model)
        with pytest.warns(UserWarning, match="was saved, and then: rank 1: OSError"):
            checkpointer.wait()
    must_be_parts(path, third, "changes")
    train(model, range(9, 10))
    keep(folder, "shared", content(model))
    path = Path(checkpointer.save())
    checkpointer.wait()
    assert len(stored_checkpoint.check(path).builds_on) == 3
    if this_rank.rank() == 0:
        assert cli.main(["checkpoint", "verify", str(folder / "shared")]) == 0
        shutil.copytree(folder / "shared", folder / "compacted")
        assert cli.main(["checkpoint", "compact", str(folder / "compacted"), "--keep", "1"]) == 0
    leftovers = [path.name for path in (folder / "shared").iterdir() if path.name.startswith((".saving", ".removing"))]
    assert leftovers == []
    # One machine does not see the directory.
    alone = tsps.Checkpointer(folder / "alone", model, model.optimizer)
    if this_rank.rank() == 1:
        alone._directory._path = folder / "another disk"
    text = r"all machines must see one directory, or have one each \(per_node=True\)"
    with raises(errors.StateError, text):
        alone.save()


def url_of(folder: Path) -> str:
    """Returns a URL that both machines see."""
    return f"file://{folder}/store/run1"


def save_to_url(model: Any, folder: Path) -> None:
    """Each machine uploads its part of checkpoints."""
    url, staging = url_of(folder), folder / "staging"
    checkpointer = tsps.Checkpointer(url, model, model.optimizer, staging=staging)
    for number, kind in enumerate(("all", "changes")):
        train(model, range(20 + number, 21 + number))
        expected = content(model)
        path = checkpointer.save()
        checkpointer.wait()
        assert path.startswith(f"{url}/step-")
        must_be_parts(Path(path.removeprefix("file://")), expected, kind)
    for point in ("file_sent", "part_written"):
        train(model, range(22, 23))
        with failing(point):
            checkpointer.save()
            with raises(errors.NotSavedError, rf"was not saved to {url}: rank 1: OSError: .*No space left"):
                checkpointer.wait()
        assert checkpointer.latest() == path
    keep(folder, "url", content(model))
    checkpointer.save()
    checkpointer.wait()
    tsps.collectives.current().barrier("test.url")
    assert list(staging.iterdir()) == [], "files are left on a machine"
    # One machine does not see the store.
    alone: Any = tsps.Checkpointer(f"{url}-alone", model, model.optimizer, staging=staging)
    if this_rank.rank() == 1:
        alone._directory.store = store.Store(f"{url}-other")
    with raises(errors.StateError, "all machines must see one directory"):
        alone.save()


def save_to_own_directories(model: Any, folder: Path) -> None:
    """Each machine writes everything that its ranks restore, to its own directory."""
    own_folder = folder / f"own-{this_rank.rank()}"
    checkpointer = tsps.Checkpointer(own_folder, model, model.optimizer, keep=2, per_node=True)
    paths = []
    for number, step in enumerate((5, 11, 12, 13)):
        train(model, range(step, step + 1))
        if number == 2:  # one machine's disk is full: no machine has the checkpoint, though one may have a folder
            for point in ("file_written", "renamed"):
                with failing(point):
                    checkpointer.save()
                    train(model, range(14, 15))
                    with raises(errors.NotSavedError, r"rank 1: OSError: .*No space left"):
                        checkpointer.wait()
            continue
        paths.append(Path(checkpointer.save()))
        keep(folder, f"own{len(paths)}", content(model))
        checkpointer.wait()
    checked = stored_checkpoint.check(paths[-1])
    assert sorted(own_folder.glob("step-*")) == paths, "what others do not have is still there"
    assert len(checked.builds_on) == 2
    assert checked.manifest.node == this_rank.rank()
    assert cli.main(["checkpoint", "verify", str(own_folder)]) == 0
    assert cli.main(["checkpoint", "diff", str(own_folder)]) == 1
    assert (
        cli.main(["checkpoint", "export", str(own_folder), "--to", str(folder / f"exported-{this_rank.rank()}")]) == 0
    )
    for number, name in enumerate(NAMES):
        (part,) = checked.manifest.parts(number)
        assert part.content == "changes"
        stored = StoredRows(checked, number)
        assert stored.shard == (Shard(this_rank.rank(), 2) if name == "sharded" else None)
        keys = np.concatenate([block.keys for block in stored.blocks()])
        np.testing.assert_array_equal(np.sort(keys), content(model)[f"{name}.0"])
    ids = tsps.collectives.current().allgather_object(checked.manifest.id, "test.ids")
    assert ids[0] == ids[1]
    # Machines with per_node=True must not share a directory.
    same_directory = tsps.Checkpointer(folder / "both", model, model.optimizer, per_node=True)
    with raises(errors.NotSavedError, r"is being written by .*leave per_node=True out"):
        same_directory.save()
    with raises(errors.StateError, "training has begun"):
        tsps.Checkpointer(
            own_folder if this_rank.rank() else folder / "none", model, model.optimizer, per_node=True
        ).restore()


def restore(folder: Path) -> None:
    """Restores several checkpoints, one after another."""
    model = make_model()
    ranks = tsps.collectives.current()

    def restored(name: str, **options: Any) -> str | None:
        ranks.barrier("test.restore")
        return tsps.Checkpointer(folder / name, model, model.optimizer, **options).restore()

    def expected(name: str) -> Any:
        return dict(np.load(folder / f"{name}-{this_rank.rank()}.npz"))

    own_name, other_name = f"own-{this_rank.rank()}", f"own-{1 - this_rank.rank()}"
    staging = folder / "staging"
    ranks.barrier("test.url")
    assert tsps.Checkpointer(url_of(folder), model, model.optimizer, staging=staging).restore() is not None
    ranks.barrier("test.url")
    must_equal(content(model), expected("url"))
    assert list(staging.iterdir()) == [], "files are left on a machine"
    for name in ("shared", "compacted"):
        assert restored(name) is not None
        must_equal(content(model), expected("shared"))
    with raises(errors.UnsupportedError, r"the rows of node \d of 2 alone.*the same order"):
        restored(other_name, per_node=True)
    with raises(ValueError, "per_node"):
        restored(own_name, per_node=this_rank.rank() == 0)
    assert restored(own_name, per_node=True) is not None
    must_equal(content(model), expected("own3"))
    newest = directory.CheckpointDirectory(folder / own_name).find()[0].path
    if this_rank.rank() == 1:
        (file,) = newest.glob("t0000-*.tfsps")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert restored(own_name, per_node=True) is not None
    assert any("is not whole" in str(warning.message) or "passed over" in str(warning.message) for warning in caught)
    must_equal(content(model), expected("own2"))
    if this_rank.rank() == 1:
        shutil.rmtree(newest)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert restored(own_name, per_node=True) is not None
    lacks = any(f"{newest} is passed over: another node does not have it" in str(warning.message) for warning in caught)
    assert lacks == (this_rank.rank() == 0)
    must_equal(content(model), expected("own2"))
    if this_rank.rank() == 0:  # an increment needs, on each machine, what it builds on
        shutil.rmtree(directory.CheckpointDirectory(folder / own_name).find()[-1].path)
    before = sorted((folder / own_name).glob("step-*"))
    with raises(errors.StateError, r"is whole on all nodes: \{'node 0': \{.*it builds on .*'node 1': \{.*another node"):
        restored(own_name, per_node=True)
    assert sorted((folder / own_name).glob("step-*")) == before


def main() -> None:
    this_rank.init()
    keras.utils.set_random_seed(7)
    folder = Path(sys.argv[2])
    if sys.argv[1] == "save":
        model = make_model()
        save_to_one_directory(model, folder)
        save_to_url(model, folder)
        save_to_own_directories(model, folder)
    else:
        restore(folder)
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
