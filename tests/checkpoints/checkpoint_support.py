"""Checkpoints without tables, for tests of the format, and a program that is killed at a named point of a save."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import numpy as np

from tf_sparse_ps.checkpoints import array_file, fault_points
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.manifest import Manifest

FILES = ("first.npz", "second.npz")


def values(step: int) -> np.ndarray:
    """Returns the values that a checkpoint of this step has in its files."""
    return np.random.default_rng(step).normal(size=(40, 3)).astype(np.float32)


def facts_of(step: int) -> dict[str, object]:
    """Returns the facts that each file of the checkpoint records."""
    return {"step": step, "table_step": step, "id": "id"}


def manifest_of(step: int) -> Manifest:
    """Returns the manifest of a checkpoint without tables. Its `name` and `files` are left out."""
    return Manifest(
        name="",
        step=step,
        table_step=step,
        epoch=0,
        batch=step,
        ranks=1,
        nodes=1,
        job=None,
        id="id",
        run="run",
        chain=(),
        versions={"tf_sparse_ps": "test"},
        tables=(),
        variables=(),
        files=(),
    )


def save(directory: CheckpointDirectory, step: int, keep: int = 3, passed_over: tuple[Path, ...] = ()) -> Path:
    """Saves a checkpoint with `values(step)`, in two files."""
    with directory.saving(step, "a test") as in_progress:
        for number, name in enumerate(FILES):
            array_file.write(in_progress.folder / name, [(number, values(step) + number)], facts_of(step))
            in_progress.add(name)
        in_progress.finish(
            dataclasses.replace(manifest_of(step), name=in_progress.name, files=tuple(in_progress.files))
        )
        directory.prune(in_progress.path, keep, passed_over)
    return in_progress.path


def must_hold(path: Path, step: int) -> None:
    """Asserts that a checkpoint contains what `save` wrote."""
    for number, name in enumerate(FILES):
        facts, arrays = array_file.read(path / name)
        assert facts == facts_of(step)
        ((stored_number, array),) = arrays
        assert stored_number == number
        np.testing.assert_array_equal(array, values(step) + number)


def main() -> None:
    """Arguments: the directory, the step, the fault point, and how many times the program passes it before it dies."""
    folder, step, point, passes = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    passes_left = [passes]

    def act(reached: str) -> None:
        if reached == point:
            if passes_left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            passes_left[0] -= 1

    fault_points.set_action(act)
    save(CheckpointDirectory(folder), step, keep=1)
    print("saved")


if __name__ == "__main__":
    main()
