"""A launcher removes the tables that its own dead ranks have left, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from launcher import Launchers, environment

from tf_sparse_ps.node import job_folder

# Makes groups, and leaves them as a leader does that dies, or keep them because it ran out of space.
MAKE = """
from tf_sparse_ps import _table
tables = pathlib.Path(os.environ["TFSPS_DIR"])
def make(name, kept=False):
    group = _table.Group.create(str(tables / name), "0" * 32)
    group.open_writer()
    if kept:
        group.close_writer()
    else:
        (tables / name / ".exchange-0123").mkdir()
    return group
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "tables").iterdir() if path.name != ".lock"}


def unnamed() -> str:
    return f"{uuid.uuid4().hex}-n0"


@pytest.mark.parametrize("end", ["killed", "told to end"])
def test_what_dead_ranks_leave_is_removed(end: str, launch: Launchers) -> None:
    (launch.folder / "tables").mkdir(0o700)
    open_one, kept_one, of_others = unnamed(), unnamed(), unnamed()
    program_of_others = "import json, os, pathlib\n" + MAKE + f"make({of_others!r})\nos._exit(1)"
    subprocess.run([sys.executable, "-c", program_of_others], env=environment(launch.folder), timeout=60, check=False)
    program = f"""
{MAKE}
if rank == 0:
    groups = [make({open_one!r}), make({kept_one!r}, kept=True), make("named-n0")]
    note("made")
    {"os.kill(os.getpid(), signal.SIGKILL)" if end == "killed" else "time.sleep(300)"}
wait_for("made")
sys.exit(1) if {end != "killed"} else time.sleep(300)
"""
    job = launch("-np", "2", program=program)
    assert job.wait() == (137 if end == "killed" else 1), job.said
    assert names(launch.folder) == {kept_one, of_others, "named-n0"}


def test_a_table_that_somebody_writes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir(0o700)
    monkeypatch.setenv("TFSPS_DIR", str(tmp_path / "tables"))
    name = unnamed()
    code = f"import os, pathlib, sys\n{MAKE}\ngroup = make({name!r})\nprint(os.getpid(), flush=True)\nsys.stdin.read()"
    writer = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout is not None
        pid = json.loads(writer.stdout.readline())
        assert pid == writer.pid
        job_folder.remove_groups_of({pid})
        assert names(tmp_path) == {name}
        os.kill(pid, signal.SIGKILL)
        writer.wait(10)
        job_folder.remove_groups_of({pid + 1})
        assert names(tmp_path) == {name}
        job_folder.remove_groups_of({pid})
        assert names(tmp_path) == set()
    finally:
        writer.kill()
        writer.communicate()


def test_there_may_be_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFSPS_DIR", str(tmp_path / "none"))
    job_folder.remove_groups_of({1})
    assert not (tmp_path / "none").exists()
