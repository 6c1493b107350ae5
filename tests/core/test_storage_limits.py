"""If storage runs out, the error says so and the table is unchanged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

_MIB = 1 << 20
# Fills a table until the error is raised. Then the rows can still be read and written.
_FILL = """
    import sys
    import numpy as np
    from tf_sparse_ps.config import TableConfig
    from tf_sparse_ps.errors import NoSpaceError
    from tf_sparse_ps.table import Table

    table = Table.create(sys.argv[1] + "/group/t", TableConfig("t", 64, initializer="zeros"))
    written = 0
    try:
        while True:
            keys = np.arange(written, written + 4096)
            table.assign(keys, np.full((4096, 64), 7, np.float32))
            written += 4096
    except NoSpaceError as error:
        assert len(table) == written, (len(table), written)
        assert written > 0
        for start in range(0, written, 4096):  # in parts, because little memory is left
            assert (table.lookup(np.arange(start, start + 4096)) == 7).all()
        table.assign([0], np.full((1, 64), 8, np.float32))
        assert table.verify().ok
        print(error)
"""

# Trains new keys until the error is raised, fills the rest of the disk, and continues with present keys.
_TRAIN_ON = """
    import sys
    import numpy as np
    from tf_sparse_ps import optimizers
    from tf_sparse_ps.config import TableConfig
    from tf_sparse_ps.errors import NoSpaceError
    from tf_sparse_ps.table import Table

    config = TableConfig("t", 64, initializer="zeros", optimizer=optimizers.Adagrad(learning_rate=1.0))
    table = Table.create(sys.argv[1] + "/group/t", config)
    gradients = np.ones((2048, 64), np.float32)
    steps = 0
    try:
        while True:
            table.apply_gradients(np.arange(2048) + steps * 2048, gradients)
            steps += 1
    except NoSpaceError:
        pass
    with open(sys.argv[1] + "/filler", "wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError as error:
            print(error)
    assert steps > 2
    for n in (2048, 1, 2048):  # as large as the largest step so far, or smaller
        assert table.apply_gradients(np.arange(n), gradients[:n]) == steps + 1
        steps += 1
    assert table.verify().ok
"""

# Makes and trains 200 tables, and opens their group again, like a process that trains with the op library and reads
# with `Table.open`.
_MANY = """
    import sys
    import numpy as np
    from tf_sparse_ps import _table, optimizers, table
    from tf_sparse_ps.config import TableConfig

    group = sys.argv[1] + "/group"
    tables = []
    for i in range(200):
        config = TableConfig(f"t{i}", 64, initializer="zeros", optimizer=optimizers.Adam(learning_rate=1.0))
        tables.append(table.Table.create(f"{group}/{config.name}", config))
    again = _table.Group.open(group)
    assert table.step({each: ([i], np.ones((1, 64), np.float32), None) for i, each in enumerate(tables)}) == 1
    for i, each in enumerate(tables):
        assert np.allclose(each.lookup([i]), -1, atol=1e-3)
        assert (again.lookup(again.find_table(f"t{i}"), np.array([i])) == each.lookup([i])).all()
"""


def _run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=120)


def _fill(folder: Path, prepare: str = "") -> subprocess.CompletedProcess[str]:
    return _run(prepare + textwrap.dedent(_FILL), folder)


@contextlib.contextmanager
def _tmpfs(folder: Path, size: str) -> Iterator[Path]:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 16 MiB."""
    with _tmpfs(tmp_path, "16m") as folder:
        yield folder


@pytest.fixture(params=["this disk", "1t", "4t"])
def large_file_system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on the disk, or on a tmpfs that reports a given size."""
    on_disk = request.param == "this disk"
    with contextlib.nullcontext(tmp_path) if on_disk else _tmpfs(tmp_path, request.param) as folder:
        yield folder


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """The cgroup.procs file of a memory cgroup limited to 192 MiB (version 1 or 2)."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(root) / f"tsps-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text(str(192 * _MIB))
            except OSError:
                folder.rmdir()
                continue
            yield folder / "cgroup.procs"
            folder.rmdir()
            return
    pytest.skip("cannot make a memory cgroup: needs root and a writable cgroup file system")


def test_a_full_file_system_is_an_error_and_the_table_stays_whole(small_tmpfs: Path) -> None:
    done = _fill(small_tmpfs)
    assert done.returncode == 0, done.stderr
    assert "the file system has" in done.stdout
    assert str(small_tmpfs) in done.stdout


def test_known_keys_are_trained_on_a_full_file_system(small_tmpfs: Path) -> None:
    done = _run(textwrap.dedent(_TRAIN_ON), small_tmpfs)
    assert done.returncode == 0, done.stderr
    assert "No space left" in done.stdout


def test_a_cgroup_too_small_for_the_table_is_an_error_not_a_kill(memory_cgroup: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        shared = Path(f"/dev/shm/tsps-cgroup-{os.getpid()}")
        shared.mkdir()
        stack.callback(lambda: subprocess.run(["rm", "-rf", str(shared)], check=True))
        done = _fill(shared, f"import os; open({str(memory_cgroup)!r}, 'w').write(str(os.getpid()))\n")
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "the memory cgroup allows" in done.stdout


@pytest.mark.daily_cases(1)
def test_two_hundred_tables_with_adam_find_address_space_twice_in_a_process(large_file_system: Path) -> None:
    done = _run(textwrap.dedent(_MANY), large_file_system)
    assert done.returncode == 0, done.stderr
