"""`libtsps_serving.so`: programs in C look up rows of served tables."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from table_versions import make_table, write

import tf_sparse_ps as tsps

PACKAGE = Path(tsps.__file__).parent
PROGRAM = Path(__file__).resolve().parents[2] / "examples/serving_in_c/lookup.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled as its comment says."""
    path = tmp_path_factory.mktemp("c") / "lookup"
    library = PACKAGE / "lib"
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{PACKAGE / 'include'}", f"-L{library}", "-ltsps_serving"]
    command = [
        os.environ.get("CC", "cc"),
        os.fspath(PROGRAM),
        *flags,
        f"-Wl,-rpath,{library}",
        "-o",
        os.fspath(path),
    ]
    subprocess.run(command, check=True, timeout=60)
    return path


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(os.fspath, command)], capture_output=True, text=True, timeout=60)


def test_the_example_prints_rows(program: Path, tmp_path: Path) -> None:
    table = make_table(tmp_path / "group", 5)
    table.assign(np.arange(3000), np.random.default_rng(1).normal(size=(3000, 5)).astype(np.float32))
    write(tmp_path / "1", table)
    table.assign([7, 5000], np.ones((2, 5), np.float32))
    table.erase([8])
    write(tmp_path / "2", table, tmp_path / "1")
    keys = [7, 8, 5000, 2999, -4]
    done = run(program, tmp_path / "2", "words", *map(str, keys))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [int(line[0]) for line in lines] == keys
    assert [line[1] for line in lines] == ["present", "absent", "present", "present", "absent"]
    rows = np.array([[float(value) for value in line[2:]] for line in lines], np.float32)
    np.testing.assert_array_equal(rows, table.lookup(keys))
    np.testing.assert_array_equal(rows, tsps.ServingTable.open(tmp_path / "2").lookup(keys))
    table.close()


def test_errors_are_texts(program: Path, tmp_path: Path) -> None:
    table = make_table(tmp_path / "group", 5, key_limit=10)
    table.assign([3], np.ones((1, 5), np.float32))
    write(tmp_path / "1", table)
    table.close()
    done = run(program, tmp_path / "1", "others", "3")
    assert (done.returncode, done.stderr) == (1, f"{tmp_path}/1 has no table others. It has: words\n")
    done = run(program, tmp_path / "2", "words", "3")
    assert (done.returncode, done.stderr) == (1, f"{tmp_path}/2 is not the folder of a version\n")
    done = run(program, tmp_path / "1", "words", "3", "10")
    assert done.returncode == 1
    assert "keys[1] = 10 is not in [0, 10) of table " in done.stderr
    assert run(program).returncode == 2


def test_the_library_needs_neither_python_nor_tensorflow() -> None:
    assert shutil.which("ldd")
    needed = run("ldd", PACKAGE / "lib/libtsps_serving.so").stdout
    assert "libc.so" in needed
    assert "python" not in needed
    assert "tensorflow" not in needed
