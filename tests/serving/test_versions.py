"""Layers, merges and kills: every version that is visible is whole, and has the rows of its step."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from table_versions import RULE, make_table, must_equal, must_have, table_content, write

from tf_sparse_ps.serving import fault_points, layer_plan
from tf_sparse_ps.serving.base_writer import BaseWriter
from tf_sparse_ps.serving.version import Version, newest, numbered
from tf_sparse_ps.table import Table

ROUNDS = 40


def change(table: Table, generator: np.random.Generator, keys: int, n: int) -> None:
    """Writes and erases some keys, and makes a step."""
    written = generator.choice(keys, n, replace=False)
    table.assign(written, generator.normal(size=(n, table.config.dim)).astype(np.float32))
    table.erase(generator.choice(keys, n // 6, replace=False))
    table.apply_gradients(written[: n // 3], generator.normal(size=(n // 3, table.config.dim)).astype(np.float32))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in shared memory, for a table."""
    folder = tempfile.mkdtemp(prefix="tsps-test-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("dim", "rows", "most"), [(16, "float32", 400), (33, "int8", 400), (64, "bfloat16", 400)])
def test_layers_are_merged_and_become_a_base(tmp_path: Path, scratch: Path, dim: int, rows: str, most: int) -> None:
    table, generator = make_table(scratch / "group", dim), np.random.default_rng(dim)
    change(table, generator, 30_000, 20_000)
    write(tmp_path / "0", table, rows=rows)
    must_equal(tmp_path / "0", table)
    shapes = []
    for number in range(1, ROUNDS):
        change(table, generator, 30_000, int(generator.integers(20, most)))
        write(tmp_path / str(number), table, tmp_path / str(number - 1), rows=rows)
        must_equal(tmp_path / str(number), table)
        shapes.append(len(Version(tmp_path / str(number)).tables[0].files))
    assert max(shapes) == layer_plan.MOST_LAYERS + 1
    assert 1 in shapes, "no base took the place of the layers"
    # No version has changed since.
    again = make_table(scratch / "again", dim)
    generator = np.random.default_rng(dim)
    change(again, generator, 30_000, 20_000)
    must_equal(tmp_path / "0", again)
    table.close()
    again.close()


def test_the_plan_merges_few_bytes() -> None:
    assert layer_plan.to_merge([1] * 8 + [100]) is None
    assert layer_plan.to_merge([1] * 9 + [100]) == (5, 9)
    assert layer_plan.to_merge([1, 1, 1, 1, 1, 4, 4, 4, 4, 100]) == (1, 5)
    assert not layer_plan.needs_base([10, 15, 100])
    assert layer_plan.needs_base([10, 16, 100])


def run_writer(folder: Path, versions: Path, kill_at: tuple[str, int] | None, seed: int) -> int:
    """Forks a program that changes the table and writes versions. Returns its exit status."""
    child = os.fork()
    if child == 0:
        gc.freeze()  # objects of TensorFlow, if other tests have made some, would wait for its threads
        status = 1
        try:
            passages = {"left": 0 if kill_at is None else kill_at[1]}

            def act(point: str) -> None:
                if kill_at is not None and point == kill_at[0]:
                    passages["left"] -= 1
                    if passages["left"] <= 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            fault_points.set_action(act)
            table, generator = Table.open(folder, "r+"), np.random.default_rng(seed)
            table.bind_optimizer(RULE)
            base_writer = BaseWriter(versions) if seed % 2 else None
            for _ in range(3):
                present = newest(versions)
                number = max(n for n, _ in numbered(versions)) + 1
                change(table, generator, 3000, 120)
                keys, rows, step = table_content(table)
                np.savez(versions / f"expected-{number}.npz", keys=keys, rows=rows, step=step)
                write(versions / str(number), table, present.path, base_writer=base_writer)
            if base_writer is not None:
                base_writer.wait()
            status = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the writer did not end")


@pytest.mark.parametrize("kills", [60, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.daily_cases(1)
def test_killed_writers_leave_whole_versions(tmp_path: Path, scratch: Path, kills: int) -> None:
    table = make_table(scratch / "group", 8)
    change(table, np.random.default_rng(0), 3000, 2500)
    write(tmp_path / "0", table)
    table.close()
    draw, killed, checked, died_at = random.Random(7), 0, set(), set()
    points = [point for point in fault_points.EXPORT_POINTS if point != "model_saved"] + [*fault_points.BASE_POINTS]
    while killed < kills:
        point, passage = draw.choice(points), draw.randint(1, 12 if draw.random() < 0.6 else 3)
        if point in fault_points.BASE_POINTS:
            passage = 1
        status = run_writer(scratch / "group/words", tmp_path, (point, passage), draw.randrange(2**31))
        assert status in (0, -signal.SIGKILL), (point, passage)
        if status:
            killed += 1
            died_at.add(point)
        reader = Table.open(scratch / "group/words")
        for number, folder in numbered(tmp_path):
            if number in checked or number == 0:
                continue
            checked.add(number)
            with np.load(tmp_path / f"expected-{number}.npz") as expected:
                must_have(folder, expected["keys"], expected["rows"], int(expected["step"]), reader)
        reader.close()
        left = [name for name in os.listdir(tmp_path) if name.startswith(".") and not name.endswith(".lock")]
        assert len(left) <= 2, left  # of the version and of its base
        for number, folder in list(numbered(tmp_path))[3:]:
            if number:
                shutil.rmtree(folder)
    assert len(checked) > kills / 3
    assert died_at == set(points)
