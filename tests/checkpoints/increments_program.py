"""A job without TensorFlow that trains, saves increments, compacts and restores, and that tests kill.

The content of its table after k steps follows from k. A test therefore knows what the checkpoint that it finds after a
kill must contain.

Arguments: the directory of checkpoints, or its URL; the folder of its table, in shared memory; the number of steps, or
0 to run until it is killed; the fault point at which it is killed, or "-"; how many times it passes that point before
it dies; the flaw of a control test, or "-".
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tf_sparse_ps import optimizers
from tf_sparse_ps.checkpoints import array_file, compaction, directory, fault_points, stored_checkpoint
from tf_sparse_ps.checkpoints.captured import Captured
from tf_sparse_ps.checkpoints.directories import open_directory
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.increments import Increments
from tf_sparse_ps.checkpoints.manifest import Manifest
from tf_sparse_ps.checkpoints.save_in_progress import SaveInProgress
from tf_sparse_ps.checkpoints.store_directory import StoreSave
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.checkpoints.writers import CheckpointWriter
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table, parameter_files
from tf_sparse_ps.urls import is_url

DIM, KEYS, ROWS_FIRST = 4, 3000, 2000
CONFIG = TableConfig("user", DIM, optimizer=optimizers.SGD(learning_rate=1.0), initializer="zeros")
Content = dict[int, float]


def change(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys that a step trains, and those that are erased after it."""
    random = np.random.default_rng(step)
    n = ROWS_FIRST if step == 1 else 40
    return random.choice(KEYS, n, replace=False), random.choice(KEYS, 9, replace=False)


def content(step: int) -> Content:
    """Returns the content of the table after a step: for each key the value that fills its row."""
    rows: Content = {}
    for number in range(1, step + 1):
        trained, erased = change(number)
        for key in trained.tolist():
            rows[key] = rows.get(key, 0.0) - number
        for key in erased.tolist():
            rows.pop(key, None)
    return rows


class _Dense:
    """Stands for the dense variables: contains the step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def write(self, folder: Path, stamp: dict[str, Any]) -> Iterator[str]:
        array_file.write(folder / "variables.npz", [(0, np.asarray([self._step]))], stamp)
        yield "variables.npz"


def rows_of(checked: stored_checkpoint.StoredCheckpoint) -> Content:
    """Returns the rows of a checkpoint."""
    rows: Content = {}
    for block in StoredRows(checked, 0).blocks():
        for key, row in zip(block.keys.tolist(), block.rows, strict=True):
            assert key not in rows, "the checkpoint contains a key twice"
            assert (row == row[0]).all(), "a row mixes two values"
            rows[key] = float(row[0])
    return rows


def must_hold(checked: stored_checkpoint.StoredCheckpoint) -> None:
    """Asserts that a checkpoint contains what the table had at its step, and nothing else."""
    step = checked.manifest.step
    assert rows_of(checked) == content(step), f"{checked.path} is not what there was at step {step}"
    _, arrays = array_file.read(checked.path / "variables.npz")
    assert [array.tolist() for _, array in arrays] == [[step]]


class Job:
    """Trains one table and saves it."""

    def __init__(self, checkpoints: str, folder: Path) -> None:
        """Restores the newest checkpoint, if the directory has one."""
        self.directory = open_directory(checkpoints, folder if is_url(checkpoints) else None)
        self.table = Table.create(f"{folder}/group-{os.getpid()}/user", CONFIG)
        self.step, self._saving, self._marks = 0, None, ""
        self._increments = Increments(True)
        newest, self._passed_over = self.directory.newest_here()
        if newest is not None:
            for block in StoredRows(newest, 0).blocks():
                self.table.assign(block.keys, block.rows)
                fault_points.reach("rows_restored")
            self.step = newest.manifest.step
            self.table._group.set_step(self.step)
        self.directory.done_reading()

    def train(self) -> None:
        """Makes one step."""
        self.step += 1
        trained, erased = change(self.step)
        self.table.apply_gradients(trained, np.full((len(trained), DIM), self.step, np.float32))
        self.table.erase(erased)

    def save(self, background: bool) -> None:
        """Saves this step."""
        self.wait()
        with contextlib.ExitStack() as stack:
            save = stack.enter_context(self.directory.saving(self.step, "a test"))
            builds_on = self._increments.next_builds_on(self.directory)
            mark = self.table.mark_changes()
            facts: dict[str, Any] = {"name": "user", "id": self.table.uuid}
            scan = self.table.scan(since=self._increments.marks["user"] if builds_on else None)
            header = parameter_files.header(self.table, scan, shard=None, slots=True)
            manifest = Manifest(
                name="",
                step=self.step,
                table_step=self.step,
                epoch=0,
                batch=self.step,
                ranks=1,
                nodes=1,
                job=None,
                id=os.urandom(8).hex(),
                run=str(os.getpid()),
                chain=(),
                versions={},
                tables=(facts,),
                variables=({"name": "step", "kind": "extra", "dtype": "int64", "shape": [1]},),
                files=(),
            )
            captured = [Captured("t0000-user.tfsps", scan, header)]

            def prune(saved: Path) -> None:
                self.directory.prune(saved, 2, self._passed_over)

            writer = CheckpointWriter(save, manifest, builds_on, [_Dense(self.step)], captured, then=prune)
            writing = SaveInProgress(save, stack.pop_all(), writer, captured)
        writing.start(in_background=background)
        self._saving = (writing, mark, self.step)
        if not background:
            writing.wait()

    def wait(self) -> None:
        """Waits until the save is complete, and prints its step."""
        if self._saving is None:
            return
        writing, mark, step = self._saving
        self._saving = None
        error = writing.result()
        if error is not None:
            raise error
        self._increments.saved(writing.manifest, {"user": mark})
        print(f"saved {step}", flush=True)

    def compact(self) -> None:
        """Compacts the newest checkpoint."""
        self.wait()
        compaction.compact(self.directory.name)


def _flaw(name: str) -> None:
    if name == "no rename":  # files are written in the checkpoint's final folder
        saving = CheckpointDirectory.saving

        @contextlib.contextmanager
        def in_place(self: CheckpointDirectory, step: int, writer: str) -> Iterator[directory.Save]:
            with saving(self, step, writer) as save:
                os.rename(save.folder, save.path)
                yield directory.Save(save.path, save.path)

        CheckpointDirectory.saving = in_place  # type: ignore[method-assign]
    elif name == "old marks":  # no increment contains the changes of one step in five
        saved = Increments.saved

        def late(self: Increments, manifest: Manifest | None, marks: Any) -> None:
            uuid, _, generation = marks["user"].rpartition(":")
            later = {"user": f"{uuid}:{int(generation) + 1}"}
            saved(self, manifest, later if manifest is not None and manifest.step % 5 == 0 else marks)

        Increments.saved = late  # type: ignore[method-assign]
    elif name == "manifest first":
        upload = StoreSave.upload

        def finish(self: StoreSave, content: Manifest) -> None:
            self._store.put(f"{self.name}/manifest.json", content.encode())
            fault_points.reach("manifest_sent")
            upload(self)

        StoreSave.upload = lambda *_: None  # type: ignore[method-assign]
        StoreSave.finish = finish  # type: ignore[method-assign]
    else:
        assert name == "-"


def main() -> None:
    """Runs the job with the program's arguments."""
    checkpoints, folder, steps, point, passes, flaw = sys.argv[1:]
    warnings.simplefilter("error")
    passes_left = [int(passes)]

    def act(reached: str) -> None:
        if reached == point:
            if passes_left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            passes_left[0] -= 1

    _flaw(flaw)
    fault_points.set_action(act)
    job = Job(checkpoints, Path(folder))
    print(f"began {job.step}", flush=True)
    last = job.step + int(steps) if int(steps) else None
    while job.step != last:
        job.train()
        job.save(background=job.step % 3 != 0)
        if job.step % 7 == 0:
            job.compact()
    job.wait()
    print("done", flush=True)


if __name__ == "__main__":
    main()
