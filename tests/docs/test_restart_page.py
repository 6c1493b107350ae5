"""The page on restarts, word for word: a rank and the launcher are killed, and the page's command resumes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from pages import DOCS, ROOT, blocks

from tf_sparse_ps._compat._keras import IS_KERAS_3
from tf_sparse_ps.checkpoints import array_file, directory, stored_checkpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows

PAGE = DOCS / "checkpoints.md"
(PROGRAM,) = [block.code for block in blocks(PAGE, "python") if not block.program]
(COMMAND,) = [block.code for block in blocks(PAGE, "sh") if block.code.startswith("until ")]
LAUNCH = f"{sys.executable} -m tf_sparse_ps run"

pytestmark = pytest.mark.skipif(not IS_KERAS_3, reason="the page's program imports keras 3, as all pages do")


def begin(folder: Path) -> subprocess.Popen[str]:
    """Starts the page's command in a folder that has the page's program, as train.py."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(PROGRAM)
    command = COMMAND.replace("tf-sparse-ps run", LAUNCH).replace("python train.py", f"{sys.executable} train.py")
    assert command.count(sys.executable) == 2
    tables = folder / "tables"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TFSPS_DIR": str(tables), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with open(folder / "log", "a") as log:
        return subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def end(job: subprocess.Popen[str], folder: Path, seconds: float = 300) -> None:
    """Waits until the command ends without an error."""
    try:
        assert job.wait(seconds) == 0, (folder / "log").read_text()[-5000:]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)


def ranks(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """Returns the processes that train."""
    processes = []
    for process in psutil.Process(job.pid).children(recursive=True):
        try:
            if process.cmdline()[1:] == ["train.py"]:
                processes.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
            continue
    return processes


def newest(folder: Path) -> stored_checkpoint.StoredCheckpoint | None:
    checkpoint, skipped = directory.CheckpointDirectory(folder / "checkpoints").newest()
    assert skipped == []
    return checkpoint


def content(folder: Path) -> tuple[int, dict[int, bytes], list[np.ndarray]]:
    """Returns step, rows with slots, and dense variables of the newest checkpoint."""
    checkpoint = newest(folder)
    assert checkpoint is not None
    rows = {}
    for block in StoredRows(checkpoint, 0).blocks():
        planes = np.concatenate([block.rows, *block.slots], 1)
        rows |= {int(key): row.tobytes() for key, row in zip(block.keys, planes, strict=True)}
    values = []
    for file in sorted(name.name for name in checkpoint.manifest.files if name.name.endswith(".npz")):
        values += [array for _, array in array_file.read(checkpoint.path / file)[1]]
    return checkpoint.manifest.step, rows, values


def kill(job: subprocess.Popen[str], folder: Path, rank: int | None, at_least: int) -> bool:
    """Kills a rank, or the launcher, when a checkpoint has `at_least` steps. Returns whether training was killed."""
    deadline = time.monotonic() + 240
    while job.poll() is None:
        assert time.monotonic() < deadline, (folder / "log").read_text()[-5000:]
        names = [checkpoint.step for checkpoint in directory.CheckpointDirectory(folder / "checkpoints").find()]
        if names and names[0] >= at_least and len(rank_processes := ranks(job)) == 2:
            (rank_processes[0].parent() if rank is None else rank_processes[rank]).kill()
            assert psutil.wait_procs(rank_processes, 60)[1] == [], "no rank must outlive another rank, or the launcher"
            return True
        time.sleep(0.005)
    return False


@pytest.mark.nightly
def test_the_page_is_followed_through_kills(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    end(begin(whole), whole)
    expected = content(whole)
    assert expected[0] == 3 * 4_096 // 2 // 256
    for attempt in range(3):
        broken = tmp_path / f"broken{attempt}"
        job = begin(broken)
        try:
            kills = sum([kill(job, broken, rank=1, at_least=5), kill(job, broken, rank=None, at_least=10)])
            end(job, broken)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
        restored = len(re.findall(r"restored \S+/checkpoints/step-\d+: step", (broken / "log").read_text()))
        step, rows, values = content(broken)
        assert (step, rows) == expected[:2]
        assert len(values) == len(expected[2])
        for value, expected_value in zip(values, expected[2], strict=True):
            np.testing.assert_array_equal(value, expected_value)
        if kills == restored == 2:
            return
    pytest.fail("training had always ended before it was killed twice")
