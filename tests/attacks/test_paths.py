"""Another local user prepares or exchanges files that the library opens, creates and removes."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attacker import attack, attacking
from checkpoint_support import save

import tf_sparse_ps as tsps
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.stored_checkpoint import check
from tf_sparse_ps.errors import AccessError, DamagedFileError, Error
from tf_sparse_ps.folders import PROBE, Folder, Trust
from tf_sparse_ps.node import job_folder
from tf_sparse_ps.table.path_claim import claimed

GROUP = "0" * 32 + "-n0"  # a name that marks the folder as a leftover of an unnamed job
SOON_S = 20.0


def soon(call: Callable[[], object]) -> BaseException | None:
    """Calls a function in a thread, and returns its exception.

    Raises:
      TimeoutError: The function is blocked and does not return soon.
    """
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON_S)
    if not outcome:
        raise TimeoutError("the call does not return")
    return outcome[0]


def tiered(folder: Path, disk: Path) -> None:
    """Makes a tiered table, which removes leftovers from the disk first."""
    config = tsps.TableConfig("user", 8, storage=tsps.Tiered(disk, memory="3MB"))
    tsps.Table.create(folder / "home" / "group" / "user", config).close()


# --- rows on disk ---


def test_a_folder_of_the_other_user_holds_no_rows(public: Path) -> None:
    assert attack(lambda: (public / "tables").mkdir(0o777))
    error = soon(lambda: tiered(public, public / "tables"))
    assert isinstance(error, AccessError)
    assert f"{public}/tables belongs to user nobody, who can replace what is in it" in str(error)
    assert list((public / "tables").iterdir()) == []


def test_a_folder_that_is_exchanged_for_a_link_while_leftovers_are_removed(public: Path) -> None:
    """The other user waits until the job opens the leftover, and then replaces it by a link to the victim's home."""
    disk, target = public / "tables", public / "home"
    disk.mkdir()
    disk.chmod(0o777)  # the folder is refused, whatever it contains

    def exchange() -> None:
        leftover = disk / GROUP / "thesis"
        leftover.mkdir(parents=True)
        (leftover / "table").write_text("0" * 33 + "/nonexistent/x\n")
        os.utime(disk / GROUP, (1, 1))
        libc = ctypes.CDLL(None, use_errno=True)
        events = libc.inotify_init()
        libc.inotify_add_watch(events, os.fsencode(leftover / "table"), 0x20)  # IN_OPEN
        (disk / "ready").touch()
        os.read(events, struct.calcsize("iIII") + 256)
        (disk / GROUP).rename(disk / "aside")
        (disk / GROUP).symlink_to(target)
        time.sleep(60)

    with attacking(exchange):
        while not (disk / "ready").exists():
            time.sleep(0.01)
        assert isinstance(soon(lambda: tiered(public, disk)), AccessError)
        disk.chmod(0o1777)  # now nobody can rename files of others, but the leftover belongs to the attacker
        soon(lambda: tiered(public, disk))
    assert (target / "thesis").read_text() == "precious"


def test_pipes_in_place_of_files_do_not_stop_a_job(public: Path) -> None:
    disk = public / "tables"
    disk.mkdir()
    disk.chmod(0o1777)

    def plant() -> None:
        leftover = disk / GROUP / "x"
        leftover.mkdir(parents=True)
        os.mkfifo(leftover / "table", 0o666)
        os.utime(disk / GROUP, (1, 1))

    assert attack(plant)
    assert soon(lambda: tiered(public, disk)) is None
    assert (disk / GROUP / "x" / "table").is_fifo(), "files of other users must stay"


def test_a_group_folder_that_the_other_user_has_made_first(public: Path) -> None:
    disk = public / "tables"
    disk.mkdir()
    disk.chmod(0o1777)
    for name, make in (("group", lambda path: path.mkdir(0o777)), ("group", lambda path: path.symlink_to("../home"))):
        place = disk / name
        assert attack(lambda make=make, place=place: make(place))
        error = soon(lambda: tiered(public, disk))
        assert isinstance(error, AccessError), error
        assert not (public / "home" / "user").exists()
        assert attack(lambda place=place: place.unlink() if place.is_symlink() else place.rmdir())


# --- tables in memory ---


def test_the_folder_of_jobs_that_the_other_user_has_made_first(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (
        lambda path: path.mkdir(0o777),
        lambda path: path.symlink_to(public / "home"),
        lambda path: os.mkfifo(path, 0o666),
    ):
        path = public / f"tables-{make.__code__.co_firstlineno}"
        assert attack(lambda make=make, path=path: make(path))
        monkeypatch.setenv("TFSPS_DIR", str(path))
        assert isinstance(soon(job_folder.prepare), AccessError)
    assert (public / "home").stat().st_mode & 0o777 == 0o700


def test_a_table_below_a_folder_that_others_can_write(public: Path) -> None:
    (public / "open").mkdir()
    (public / "open").chmod(0o777)
    path = public / "open" / "group" / "user"
    error = soon(lambda: tsps.Table.create(path, tsps.TableConfig("user", 8)))
    assert isinstance(error, AccessError)
    assert "can be written by everybody" in str(error)


def test_the_other_user_can_neither_read_nor_write_a_table(public: Path) -> None:
    with tsps.Table.create(public / "group" / "user", tsps.TableConfig("user", 8)) as table:
        table.assign([1], np.ones((1, 8), np.float32))
        files = [file for file in (public / "group").rglob("*") if file.is_file()]
        assert len(files) > 3

        def read() -> None:
            assert not any(os.access(file, os.R_OK) for file in files)
            list((public / "group").iterdir())

        assert not attack(read)
        with Folder.open(public, Trust.OWN) as folder, folder.own("group") as group:
            assert os.fstat(group.descriptor).st_mode & 0o777 == 0o700


# --- checkpoints and exports ---


@pytest.mark.parametrize("name", ["manifest.json", "first.npz"])
def test_a_pipe_in_place_of_a_file_of_a_checkpoint_is_damage(public: Path, name: str) -> None:
    team = public / "team"
    team.mkdir()
    saved = save(CheckpointDirectory(team / "checkpoints"), 1)
    saved.chmod(0o777)
    file = saved / name
    assert file.exists()
    assert attack(lambda: (file.rename(saved / "aside"), os.mkfifo(file, 0o666)))
    error = soon(lambda: check(saved))
    assert isinstance(error, DamagedFileError), error
    assert isinstance(soon(lambda: CheckpointDirectory(team / "checkpoints").newest()), Error | None)
    for command in (["list"], ["verify"]):
        program = [sys.executable, "-m", "tf_sparse_ps", "checkpoint", *command, str(team / "checkpoints")]
        subprocess.run(program, timeout=60, capture_output=True, check=False)


def test_leftovers_of_the_other_user_stay_and_links_in_own_ones_are_not_followed(public: Path) -> None:
    team = public / "team"
    team.mkdir()
    team.chmod(0o1777)
    home = public / "home"

    def plant() -> None:
        (team / ".removing-step-000000000001-aaaaaaaa").symlink_to(home)
        (team / ".saving-step-000000000001-bbbbbbbb").mkdir()
        (team / ".saving-step-000000000001-bbbbbbbb" / "file").touch()
        (team / f"{PROBE}theirs").symlink_to(home / "thesis")

    assert attack(plant)
    own_leftover, probe = team / ".removing-step-000000000002-cccccccc", team / f"{PROBE}mine"
    own_leftover.mkdir()
    (own_leftover / "link").symlink_to(home)
    probe.touch()
    assert soon(lambda: save(CheckpointDirectory(team), 3)) is None
    assert not own_leftover.exists()
    assert not probe.exists()
    assert (team / ".saving-step-000000000001-bbbbbbbb" / "file").exists()
    assert (home / "thesis").read_text() == "precious"


def test_a_lock_file_that_is_another_name_of_a_victims_file(public: Path) -> None:
    shared = public / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    victim = public / "home" / "thesis"
    os.link(victim, shared / ".checkpoints.lock")  # the sysctl protected_hardlinks forbids this to other users
    with claimed(str(shared / "checkpoints"), "a test"):
        pass
    assert victim.read_text() == "precious"


def test_a_partial_file_that_is_a_link_to_a_victims_file(public: Path) -> None:
    shared = public / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    victim = public / "home" / "thesis"
    assert attack(lambda: (shared / ".user.tfsps.partial").symlink_to(victim))
    with tsps.Table.create(public / "home" / "group" / "user", tsps.TableConfig("user", 8)) as table:
        error = soon(lambda: table.export_parameter_file(shared / "user.tfsps"))
    assert isinstance(error, Error), error
    assert victim.read_text() == "precious"


# --- logs of the launcher ---


@pytest.mark.parametrize("kind", ["link", "pipe", "folder of the other user"])
def test_logs(public: Path, kind: str) -> None:
    logs = public / "logs"

    def plant() -> None:
        if kind == "folder of the other user":
            logs.mkdir(0o777)
        elif kind == "link":
            (logs / "rank-0.log").symlink_to(public / "home" / "thesis")
        else:
            os.mkfifo(logs / "rank-0.log", 0o666)

    if kind != "folder of the other user":
        logs.mkdir()
        logs.chmod(0o1777)
    assert attack(plant)
    run = [
        sys.executable,
        "-m",
        "tf_sparse_ps",
        "run",
        "-np",
        "1",
        "--log-dir",
        str(logs),
        "--collectives",
        "tensorflow",
    ]
    done = subprocess.run([*run, "/bin/true"], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2), done
    assert str(logs) in done.stderr
    assert "Traceback" not in done.stderr
