"""A job that runs out of storage keeps its trained tables and prints their path. The next job deletes them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import run_forked

import tf_sparse_ps as tsps

TRAIN = """
import sys
import numpy as np, tensorflow as tf
import tf_sparse_ps as tsps

keras, max_rows, way = tf.keras, int(sys.argv[1]) or None, sys.argv[2]
ids = keras.Input((100,), dtype="int64")
layer = tsps.Embedding(None, 64, table=tsps.TableConfig("words", 64, max_rows=max_rows))
model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))
model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")

def fit(first, steps):
    keys = np.arange(first, first + 10_000 * steps, dtype=np.int64).reshape(-1, 100)
    model.fit(keys, np.ones((len(keys), 1)), batch_size=100, shuffle=False, verbose=0)

fit(0, 1)
if way == "fit":
    fit(0, 60)
try:
    fit(10_000, 60)
except tf.errors.ResourceExhaustedError:
    if way == "catch and give up":
        sys.exit(3)
fit(0, 1)
"""
NEXT = "import tf_sparse_ps as tsps; tsps.job.current()"


def run(root: Path, code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return run_forked(code, [*map(str, args)], TFSPS_DIR=os.fspath(root))


@contextlib.contextmanager
def tmpfs(size: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], capture_output=True
        )
        if mounted.returncode:
            pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def groups(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if entry.is_dir()]


def kept(root: Path, output: str) -> tsps.Table:
    (group,) = groups(root)
    line = next(line for line in output.splitlines() if "ran out of room. Its tables are kept" in line)
    assert f"{group} (" in line
    match = re.search(r"t0000-words with ([\d,]+) rows", line)
    assert match, line
    table = tsps.Table.open(group / "t0000-words")
    assert len(table) == int(match[1].replace(",", "")) >= 10_000
    assert table.verify().ok
    return table


def test_tables_of_a_job_that_filled_its_file_system_are_kept_until_the_next_one() -> None:
    with tmpfs("64m") as root:
        done = run(root, TRAIN, 0, "fit")
        assert done.returncode == 1
        assert "ResourceExhaustedError" in done.stderr
        with kept(root, done.stderr) as table:
            _, _, (accumulator,) = table.entries([0])
            assert accumulator.max() > 0.1, "the rows must be trained"
        following = run(root, NEXT)
        assert following.returncode == 0, following.stderr
        assert re.search(rf"removed {re.escape(table.path.rpartition('/')[0])} \(\d+ MiB\)", following.stderr)
        assert groups(root) == []


def test_whether_a_job_went_on_decides(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    done = run(tmp_path / "a", TRAIN, 25_000, "catch and give up")
    assert done.returncode == 3, done.stderr
    kept(tmp_path / "a", done.stderr).close()
    (tmp_path / "b").mkdir()
    done = run(tmp_path / "b", TRAIN, 25_000, "catch and go on")
    assert done.returncode == 0, done.stderr
    assert groups(tmp_path / "b") == []
    assert "kept" not in done.stderr
