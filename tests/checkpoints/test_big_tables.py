"""Tables of more than 2^31 bytes and floats are saved and restored. A job attaches to a big table within a second."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).resolve().parent
WIDTH = 128
LEFT = 3 << 30  # bytes of memory that these tests leave to other processes


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="tsps-test-big-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def room() -> int:
    """The number of bytes that a table may use on this machine."""
    return min(psutil.virtual_memory().available, shutil.disk_usage("/dev/shm").free) - LEFT


def begin(
    command_name: str, shared_memory: Path, path: Path, rows: int, rule: str, job: str = ""
) -> subprocess.Popen[str]:
    """Starts `big_table_program.py`."""
    shared_memory.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TFSPS_DIR": str(shared_memory)}
    if job:
        environment["TFSPS_JOB"] = job
    command = [sys.executable, str(HERE / "big_table_program.py"), command_name, str(path), str(rows), str(WIDTH), rule]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> str:
    """Waits for the program, asserts that it succeeded, and returns its output."""
    try:
        output, _ = process.communicate(timeout=1500)
    finally:
        process.kill()
    assert process.returncode == 0, output[-5000:]
    print(output)
    return output


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        pytest.param(2**31 // (4 * WIDTH) + 5_000, "adagrad", id="bytes"),
        pytest.param(2**31 // WIDTH + 5_000, "sgd", id="floats"),
    ],
)
def test_a_big_table_is_saved_and_restored(tmp_path: Path, shared_memory: Path, rows: int, rule: str) -> None:
    bytes_ = rows * (WIDTH * 4 * (1 + (rule == "adagrad")) + 40)
    if room() < bytes_:
        pytest.skip(f"{bytes_ >> 20} MiB of memory are wanted, {room() >> 20} MiB are free")
    try:
        saved = end(begin("save", shared_memory / "first", tmp_path, rows, rule))
        assert int(re.search(r"saved (\d+) bytes", saved)[1]) > 2**31 * (4 if rule == "sgd" else 2)  # type: ignore[index]
        assert list((shared_memory / "first").glob("*-n0")) == [], "memory holds one table only"
        output = end(begin("restore", shared_memory / "other", tmp_path, rows, rule))
        assert f"{rows} rows are as they were" in output
    finally:
        shutil.rmtree(tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_big_named_group_is_attached_again_at_once_after_a_kill(tmp_path: Path, shared_memory: Path) -> None:
    sizes = [size for size in (10_000_000_000, 2_000_000_000) if size * 1.05 < room()]
    if not sizes:
        pytest.skip("there is no memory for a table of 2 GB")
    rows = sizes[0] // (2 * 4 * WIDTH)
    job = begin("fill", shared_memory, tmp_path, rows, "adagrad", "big")
    try:
        assert job.stdout is not None
        line_filled = next(line for line in job.stdout if line.startswith("filled") or "Error" in line)
        assert int(re.search(r"filled (\d+) bytes", line_filled)[1]) > sizes[0]  # type: ignore[index]
        time.sleep(0.5)
        assert job.poll() is None
    finally:
        job.kill()
        job.wait()
    output = end(begin("attach", shared_memory, tmp_path, rows, "adagrad", "big"))
    seconds = re.search(r"attached in (\S+) s, opened in (\S+) s, at step (\d+)", output)
    assert seconds is not None
    print(f"a group of {sizes[0] // 10**9} GB: {seconds[0]}")
    assert int(seconds[3]) > 1
    assert float(seconds[1]) < 1.0
    assert float(seconds[2]) < 1.0
