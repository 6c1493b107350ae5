"""Damage anywhere in a chain of increments: the newest checkpoint that does not need it is restored."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import damage_support
import increments_program as program
import pytest

from tf_sparse_ps.checkpoints import stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The directories of two runs of twelve steps. Each contains a chain of five checkpoints, and an older one."""
    tables = tempfile.mkdtemp(prefix="tsps-test-damaged-", dir="/dev/shm")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    paths = []
    for number in range(2):
        path = tmp_path_factory.mktemp(f"run{number}")
        command = [sys.executable, str(HERE / "increments_program.py"), str(path), tables, "12", "-", "0", "-"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
        paths.append(path)
    yield paths[0], paths[1]
    shutil.rmtree(tables)


def damage_at_random(base: Path, runs: tuple[Path, Path], times: int, seed: int) -> Iterator[str]:
    """Damages one checkpoint or replaces it by that of another run, and asserts which checkpoint is found.

    Yields a description of the damage.
    """
    names = sorted(folder.name for folder in runs[0].iterdir())
    assert [folder.name for folder in sorted(runs[1].iterdir())] == names
    chain = [stored_checkpoint.look(runs[0] / name).manifest.chain for name in names]
    draw = random.Random(seed)
    for number in range(times):
        folder = base / "tried"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(runs[0], folder)
        damaged = draw.choice(names[1:])
        if number % 9 == 8:
            shutil.rmtree(folder / damaged)
            shutil.copytree(runs[1] / damaged, folder / damaged)
            done = "that of another run"
        else:
            done = damage_support.at_random(folder / damaged, number, draw)
        # Checkpoints that build on the damaged one are passed over. One of another run is complete if it has all rows.
        is_complete = done.startswith("that of another run") and not chain[names.index(damaged)]
        good = [
            name
            for name, links in zip(names, chain, strict=True)
            if damaged not in [link.name for link in links] and (name != damaged or is_complete)
        ]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)  # not ResourceWarning: garbage of an earlier test may raise it
            newest, skipped = CheckpointDirectory(folder).newest()
        assert newest is not None, done
        assert newest.path.name == good[-1], f"{damaged}: the damage was not found: {done}"
        assert len(skipped) == len(caught) == len(names) - 1 - names.index(good[-1]), done
        program.must_hold(newest)
        yield f"{damaged}: {done}"


@pytest.mark.parametrize("times", [60, pytest.param(4000, marks=pytest.mark.nightly)])
def test_what_needs_damaged_parts_is_passed_over(tmp_path: Path, runs: tuple[Path, Path], times: int) -> None:
    assert len(list(damage_at_random(tmp_path, runs, times, seed=times))) == times


def test_the_test_fails_if_what_is_built_on_is_not_looked_at(
    tmp_path: Path, runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(self: Any, path: Path) -> Any:
        checkpoint = self._read_alone(path)
        content = checkpoint.manifest
        chain = [StoredCheckpoint(path.parent / link.name, content, b"") for link in content.chain]
        return checkpoint._replace(builds_on=tuple(chain))

    monkeypatch.setattr(stored_checkpoint.CheckpointReader, "read", blind)
    with pytest.raises(AssertionError, match="was not found"):
        list(damage_at_random(tmp_path, runs, 100, seed=1))
