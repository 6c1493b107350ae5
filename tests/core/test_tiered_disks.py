"""Disks that cannot store the rows of a table, from the start or later."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mounts import mounted
from store_support import PACKAGE_PARENT, ones

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import Tiered
from tf_sparse_ps.errors import AccessError, NoSpaceError, TableError, TableExistsError
from tf_sparse_ps.table import Table

MEMORY = 1_770_000  # 1.5 MiB are buffers
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


def numbers(error: pytest.ExceptionInfo[NoSpaceError]) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) bytes", str(error.value))]


def test_a_disk_without_room_for_all_rows(folder: str, create: Callable[..., Table]) -> None:
    disk, rows = f"{folder}/disk", 2**28
    with pytest.raises(NoSpaceError, match=rf"{rows} rows of .*{disk}/group/user has \d+ bytes free") as error:
        create(dim=65536, max_rows=rows, storage=Tiered(disk, "8GiB"))
    record, needed, free = numbers(error)
    space = os.statvfs(disk)
    assert 65536 * 4 < record < 65536 * 4 + 64
    assert needed == pytest.approx(1.6 * rows * record)
    assert free == pytest.approx(space.f_bavail * space.f_frsize, rel=0.2)  # other processes write to this disk
    assert not os.listdir(disk)
    # The table's name is free again.
    assert len(create(max_rows=1000, storage=Tiered(disk, MEMORY))) == 0


def test_a_disk_with_less_room_than_memory(folder: str, create: Callable[..., Table]) -> None:
    with pytest.raises(NoSpaceError, match=r"less room than its memory of 1152921504606846976 bytes: the file system"):
        create(storage=Tiered(f"{folder}/disk", 2**60))
    assert not os.listdir(f"{folder}/disk")


def test_room_for_rows_and_not_for_their_slots(folder: str, create: Callable[..., Table]) -> None:
    with mounted(folder, "size=8m") as disk:
        arguments = {"dim": 64, "max_rows": 15_000, "storage": Tiered(disk, "64MB")}
        table = create("no_slots", optimizer=None, **arguments)
        assert table.stats()["bytes_on_disk"] < 2**20
        with pytest.raises(NoSpaceError, match=r"15000 rows of \d+ bytes can take") as error:
            create("slots", optimizer=optimizers.Adam(learning_rate=1.0), **arguments)
        record, needed, free = numbers(error)
        assert record > 3 * 64 * 4
        assert needed > 2**23 >= free


def test_a_disk_that_fills_up_keeps_what_was_trained(folder: str, create: Callable[..., Table]) -> None:
    plain = create("plain", 64, group="plain", initializer="ones")
    with mounted(folder, "size=16m") as disk:
        table = create(dim=64, storage=Tiered(disk, 2_990_000), initializer="ones")

        def train(first_key: int) -> None:
            keys = np.arange(first_key, first_key + 300)
            table.apply_gradients(keys, ones(300, 64))
            plain.apply_gradients(keys, ones(300, 64))

        for first_key in range(0, 6000, 300):
            train(first_key)
        assert table.stats()["rows_on_disk"] > 3000
        with open(disk / "others", "wb") as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(2**16))
                filler.flush()
        with pytest.raises(NoSpaceError, match="records"):
            deque(map(train, range(6000, 24_000, 300)))
        assert table.step == plain.step
        assert table.verify().ok
        keys = np.sort(table.keys())
        np.testing.assert_array_equal(table.lookup(keys), plain.lookup(keys))
        (disk / "others").unlink()
        for first_key in range(table.step * 300, table.step * 300 + 6000, 300):
            train(first_key)
        np.testing.assert_array_equal(np.sort(table.keys()), np.sort(plain.keys()))
        np.testing.assert_array_equal(table.lookup(table.keys()), plain.lookup(table.keys()))


@pytest.mark.parametrize("path", ["/proc/tables", "/sys/tables", "/dev/null/tables"])
def test_places_where_nothing_can_be_made(create: Callable[..., Table], path: str) -> None:
    with pytest.raises(AccessError, match=rf"cannot make {path}/group for rows on disk: \S+"):
        create(storage=Tiered(path, MEMORY))


def test_a_read_only_disk(folder: str, create: Callable[..., Table]) -> None:
    with mounted(folder, "ro") as disk, pytest.raises(AccessError, match=r"cannot make .*: Read-only file system"):
        create(storage=Tiered(disk, MEMORY))


@pytest.mark.parametrize("path", ["", "/group", "/group/user"])
def test_files_and_links_in_the_way(folder: str, create: Callable[..., Table], path: str) -> None:
    place = Path(f"{folder}/disk{path}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("somebody's")
    with pytest.raises((AccessError, OSError), match=re.escape(str(place))):
        create(storage=Tiered(f"{folder}/disk", MEMORY))
    assert place.read_text() == "somebody's"
    if path:
        place.unlink()
        os.mkdir(f"{folder}/elsewhere")
        place.symlink_to(f"{folder}/elsewhere")
        with pytest.raises(AccessError, match=re.escape(str(place))):
            create(storage=Tiered(f"{folder}/disk", MEMORY))
        assert not os.listdir(f"{folder}/elsewhere")


@as_root
@pytest.mark.parametrize("path", ["group", "group/user"])
def test_a_folder_of_another_user(folder: str, create: Callable[..., Table], path: str) -> None:
    os.makedirs(f"{folder}/disk/{path}")
    os.chown(f"{folder}/disk/{path}", 12345, -1)
    with pytest.raises(AccessError, match=rf"disk/{path}.* user 12345"):
        create(storage=Tiered(f"{folder}/disk", MEMORY))
    assert not os.listdir(f"{folder}/disk/{path}")


def test_a_folder_with_other_files_is_left_alone(folder: str, create: Callable[..., Table]) -> None:
    foreign_file = Path(f"{folder}/disk/group/user/notes")
    foreign_file.parent.mkdir(parents=True)
    foreign_file.write_text("somebody's")
    with pytest.raises(TableExistsError, match="is not empty, and no table's folder"):
        create(storage=Tiered(f"{folder}/disk", MEMORY))
    assert foreign_file.read_text() == "somebody's"


CONTAINER = """
import sys
import numpy as np
from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig, Tiered
from tf_sparse_ps.table import Table
folder, disk, memory = sys.argv[1:]
config = TableConfig("user", 4, max_rows=8000, storage=Tiered(disk, int(memory)))
table = Table.create(f"{folder}/" + 32 * "a" + "-n0/user", config)
keys = np.arange(4000)
table.assign(keys, np.ones((4000, 4), np.float32))
for _ in range(2):
    print(bool(table.stats()["rows_on_disk"] > 3000 and (table.lookup(keys) == 1).all()), flush=True)
    sys.stdin.readline()
"""


def test_rows_of_a_container_are_nobodys_leftover(folder: str, create: Callable[..., Table]) -> None:
    """The container's shared memory is not visible from here, only the disk."""
    disk = f"{folder}/disk"
    os.mkdir(f"{folder}/its")
    command = [sys.executable, "-c", CONTAINER, f"{folder}/its", disk, str(MEMORY)]
    environment = {**os.environ, "PYTHONPATH": os.fspath(PACKAGE_PARENT)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as container:
        try:
            assert container.stdout.readline() == "True\n"
            os.rename(f"{folder}/its", f"{folder}/hidden")
            create("one", storage=Tiered(disk, MEMORY))
            (rows,) = Path(disk).glob("a*-n0/user/*/records.*")
            print("", file=container.stdin, flush=True)
            assert container.stdout.readline() == "True\n"
        finally:
            container.kill()
    create("two", storage=Tiered(disk, MEMORY))
    assert not rows.parents[2].exists()


def test_the_folder_of_a_job_that_is_about_to_make_its_first_table_stays(
    folder: str, create: Callable[..., Table]
) -> None:
    begins, over = (Path(f"{folder}/disk/{digit * 32}-n1") for digit in "ab")
    begins.mkdir(parents=True), over.mkdir()
    os.utime(over, (0, 0))
    create(storage=Tiered(f"{folder}/disk", MEMORY))
    assert begins.exists()
    assert not over.exists()


def test_a_folder_that_is_removed_under_a_table(folder: str, create: Callable[..., Table]) -> None:
    table = create(storage=Tiered(f"{folder}/disk", MEMORY), max_rows=8000)
    table.assign(np.arange(4000), ones(4000))
    shutil.rmtree(f"{folder}/disk")
    here = table.lookup(np.arange(3900, 4000))
    assert (here == 1).all()
    with pytest.raises(TableError, match=f"{folder}/disk/group/user"):
        table.lookup(np.arange(4000))
    assert not table.verify().ok
