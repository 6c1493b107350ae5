"""Sparse-parameter files, and damaged or foreign files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from store_support import PACKAGE_PARENT, ones

from tf_sparse_ps import _table, errors, optimizers
from tf_sparse_ps.table import Table


@pytest.fixture
def filled(create):
    user = create(optimizer=optimizers.Adagrad(learning_rate=0.5))
    rng = np.random.default_rng(1)
    user.apply_gradients(rng.integers(-(2**62), 2**62, 10_000), rng.normal(size=(10_000, 4)).astype(np.float32))
    return user


def content(table):
    keys = np.sort(table.keys())
    return keys, *table.entries(keys)


def assert_equal(a, b):
    for x, y in zip(content(a), content(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_export_and_load(filled, create, folder):
    assert filled.export_parameter_file(f"{folder}/file") == 10_000
    other_table = create("other", optimizer=None)
    assert other_table.load_parameter_file(f"{folder}/file") == 10_000
    assert_equal(filled, other_table)
    assert filled.stats()["optimizer"] == other_table.stats()["optimizer"]
    bare = create("bare", optimizer=optimizers.SGD(learning_rate=1.0))
    with pytest.raises(errors.StateError, match="slots=False"):
        bare.load_parameter_file(f"{folder}/file")
    bare.load_parameter_file(f"{folder}/file", slots=False)
    np.testing.assert_array_equal(bare.lookup(filled.keys()), filled.lookup(filled.keys()))
    with pytest.raises(errors.InvalidArgumentError, match="rows of 4 floats"):
        create("wide", 5).load_parameter_file(f"{folder}/file")
    with Table.open(filled.path) as reader, pytest.raises(errors.StateError, match="mode"):
        reader.load_parameter_file(f"{folder}/file")


def test_save_and_restore(filled, folder):
    before = content(filled)
    filled.save(f"{folder}/saved")
    filled.erase(before[0][:10])
    filled.apply_gradients(before[0][20:40], ones(20))
    filled.apply_gradients([1, 2, 3], ones(3))
    step = filled.step
    assert filled.restore(f"{folder}/saved") == 10_000
    for x, y in zip(before, content(filled), strict=True):
        np.testing.assert_array_equal(x, y)
    assert filled.step == step


def test_a_file_of_rows_too_wide_for_its_header_is_refused(create, folder):
    for dim in (0, 65_537, 2**32 + 4):
        with pytest.raises(errors.InvalidArgumentError, match=rf"dim must be in \[1, 65536\]. Received: {dim}"):
            _table.ParameterFileWriter(
                path=f"{folder}/file",
                dim=dim,
                n_rows=0,
                key_limit=0,
                step=0,
                optimizer="none",
                slot_init=[],
                initializer=create(f"t{dim}").core_initializer(),
            )


def test_an_empty_table(create, folder):
    user = create()
    assert user.export_parameter_file(f"{folder}/file") == 0
    assert create("other").load_parameter_file(f"{folder}/file") == 0


def test_a_progress_bar_appears_after_two_seconds_only(filled, folder, capsys):
    filled.export_parameter_file(f"{folder}/file")
    assert "export" not in capsys.readouterr().err


def broken(kind: str, path: Path) -> type[Exception]:
    data = bytearray(path.read_bytes())
    if kind == "missing":
        path.unlink()
        return errors.NotFoundError
    if kind == "truncated":
        path.write_bytes(data[:-100])
    elif kind == "header only":
        path.write_bytes(data[:50])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "foreign":
        path.write_bytes(b"\x89HDF" + bytes(data[4:]))
    elif kind == "damaged header":
        data[30] ^= 1
        path.write_bytes(data)
    elif kind == "damaged block":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif kind == "too long":
        path.write_bytes(data + b"x")
    elif kind == "a folder":
        path.unlink()
        path.mkdir()
        return errors.TableError
    return errors.DamagedFileError


@pytest.mark.parametrize(
    "kind",
    [
        "missing",
        "truncated",
        "header only",
        "empty",
        "foreign",
        "damaged header",
        "damaged block",
        "too long",
        "a folder",
    ],
)
def test_a_file_that_is_not_what_it_should_be(filled, create, folder, kind):
    path = Path(folder, "saved", "user.tfsps")
    filled.save(path.parent)
    error = broken(kind, path)
    before = content(filled)
    with pytest.raises(error) as caught:
        filled.restore(path.parent)
    assert os.fspath(path) in str(caught.value)
    for x, y in zip(before, content(filled), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_group_that_is_not_what_it_should_be(create, folder):
    user = create()
    path = user.path
    user.close()
    control = Path(folder, "group", "group")
    data = control.read_bytes()
    control.write_bytes(b"foreign " + data[8:])
    with pytest.raises(errors.DamagedFileError, match="group"):
        Table.open(path)
    control.write_bytes(data[:100])
    with pytest.raises(errors.DamagedFileError, match="group"):
        Table.open(path)
    control.write_bytes(data)
    Table.open(path).close()
    os.rename(f"{folder}/group", f"{folder}/real")
    os.symlink(f"{folder}/real", f"{folder}/group")
    with pytest.raises(errors.AccessError, match=r"symbolic link|symlink"):
        Table.open(path)


BLOCKED_SAVE = """
import sys
from tf_sparse_ps.table import Scan, Table

blocks = Scan.__iter__
def wait(scan):
    print("writing", flush=True)
    sys.stdin.readline()
    yield from blocks(scan)
Scan.__iter__ = wait
Table.open(sys.argv[1]).save(sys.argv[2])
"""


@pytest.fixture
def saving(filled, folder):
    """A process in the middle of `filled.save(<folder>/saved)`."""
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED_SAVE, filled.path, f"{folder}/saved"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.fspath(PACKAGE_PARENT)},
    ) as process:
        assert process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def test_a_second_save_to_a_path_is_refused_while_the_first_is_at_it(filled, create, folder, saving):
    with pytest.raises(errors.WriterLockedError, match=r"saved/user\.tfsps: another writer") as refused:
        filled.save(f"{folder}/saved")
    filled.save(f"{folder}/saved-by-another-rank")
    saving.communicate("\n", timeout=60)
    assert saving.returncode == 0
    other_table = create("other", optimizer=None)
    other_table.load_parameter_file(f"{folder}/saved/user.tfsps")
    assert_equal(filled, other_table)
    filled.save(f"{folder}/saved")  # the exception of the first call is still referenced
    assert os.listdir(f"{folder}/saved") == ["user.tfsps"]
    del refused


def test_what_a_killed_save_leaves_is_gone_after_the_next_one(filled, folder, saving):
    saving.kill()
    saving.wait()
    assert len(os.listdir(f"{folder}/saved")) == 1
    filled.save(f"{folder}/saved")
    assert os.listdir(f"{folder}/saved") == ["user.tfsps"]
    filled.restore(f"{folder}/saved")
