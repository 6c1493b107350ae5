"""Checkpoints without tables, for tests of the format, and a program that saves one and is killed at a named point."""

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
    """What a checkpoint of this step has in its files."""
    return np.random.default_rng(step).normal(size=(40, 3)).astype(np.float32)


def facts_of(step: int) -> dict[str, object]:
    """What each of its files says of it."""
    return {"step": step, "table_step": step, "id": "id"}


def manifest_of(step: int) -> Manifest:
    """Of a checkpoint without tables; its `name` and `files` are left out."""
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
    with directory.saving(step, "a test") as one:
        for number, name in enumerate(FILES):
            array_file.write(one.folder / name, [(number, values(step) + number)], facts_of(step))
            one.add(name)
        one.finish(dataclasses.replace(manifest_of(step), name=one.name, files=tuple(one.files)))
        directory.prune(one.path, keep, passed_over)
    return one.path


def must_hold(path: Path, step: int) -> None:
    """A checkpoint has what `save` wrote."""
    for number, name in enumerate(FILES):
        facts, arrays = array_file.read(path / name)
        assert facts == facts_of(step)
        ((found, array),) = arrays
        assert found == number
        np.testing.assert_array_equal(array, values(step) + number)


def main() -> None:
    """Arguments: the directory, the step, the point to be killed at, and how many times it is passed before."""
    folder, step, point, passes = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    left = [passes]

    def act(reached: str) -> None:
        if reached == point:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    fault_points.set_action(act)
    save(CheckpointDirectory(folder), step, keep=1)
    print("saved")


if __name__ == "__main__":
    main()
