"""`clean` removes what killed jobs have left, asks before, and never touches a running job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cli_support import ROOT, Run
from machine import HOLDER, OTHER_USER, UNNAMED, Machine, make_table, make_trained, values

from tf_sparse_ps.cli import clean
from tf_sparse_ps.config import Tiered
from tf_sparse_ps.node import job_folder

OTHER_UNNAMED = "f" * 32 + "-n1"


@pytest.fixture
def tables(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of tables: two unnamed jobs that are dead, and a named one that has ended."""
    path = shm / "to-clean"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("TFSPS_DIR", str(path))
    for name in (UNNAMED, "old-n0", "old-n1", "older-n0"):
        make_trained(path / name / "t0000-words").close()
    with make_table(path / OTHER_UNNAMED / "t0000-words", storage=Tiered(shm / "clean-disk", 1 << 21)) as table:
        table.assign(range(8_000), values(8_000))
    yield path
    shutil.rmtree(path)
    shutil.rmtree(shm / "clean-disk", ignore_errors=True)


def left(tables: Path) -> set[str]:
    return {path.name for path in tables.iterdir() if path.is_dir()}


def test_tables_of_dead_unnamed_jobs_are_removed_with_their_rows_on_disk(tables: Path, shm: Path, run: Run) -> None:
    assert list((shm / "clean-disk").rglob("table"))
    done = run("clean", "--yes", "--json")
    assert done.status == 0
    assert {Path(each["path"]).name for each in done.facts["removed"]} == {UNNAMED, OTHER_UNNAMED}
    assert min(each["bytes"] for each in done.facts["removed"]) > 0
    assert left(tables) == {"old-n0", "old-n1", "older-n0"}
    assert not list((shm / "clean-disk").rglob("table"))
    again = run("clean")
    assert (again.status, again.out) == (0, "")
    assert "has no tables of killed jobs" in again.err
    assert run("clean", "--json").facts["removed"] == []


@pytest.mark.parametrize("answer", [True, False])
def test_it_asks(answer: bool, tables: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text) or answer)
    done = run("clean")
    assert asked == ["Remove 2 groups of tables?"]
    assert UNNAMED in done.err, "what is to be removed is listed first"
    assert (UNNAMED in left(tables)) is not answer
    assert done.status == 0
    assert run("clean", "--json").facts["removed"] == [], "there is nothing left, or the answer is no again"


def test_without_an_answer_nothing_is_removed(tables: Path) -> None:
    command = [sys.executable, "-m", "tf_sparse_ps", "clean"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Give --yes" in done.stderr
    assert UNNAMED in left(tables)


def test_a_named_job_is_removed_by_its_name_on_all_its_nodes(tables: Path, run: Run) -> None:
    assert run("clean", "--job", "old", "--yes").status == 0
    assert left(tables) == {UNNAMED, OTHER_UNNAMED, "older-n0"}
    done = run("clean", "--job", "ol", "--yes")
    assert (done.status, "has no tables of job 'ol'" in done.err) == (2, True)


def test_a_running_job_is_never_removed(machine: Machine, run: Run) -> None:
    done = run("clean", "--job", "run", "--yes")
    assert (done.status, "job 'run' is running" in done.err) == (2, True)
    assert (machine.tables / "run-n0" / "t0000-words").is_dir()


def test_a_job_that_starts_after_the_question_keeps_its_tables(
    tables: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old-n0", UNNAMED):
        shutil.rmtree(tables / name)
    holders: list[subprocess.Popen[str]] = []

    def start(text: str, **_: object) -> bool:
        for name in (UNNAMED, "old-n0"):
            holder = subprocess.Popen(
                [sys.executable, "-c", HOLDER, str(tables / name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            holders.append(holder)
        return True

    monkeypatch.setattr(click, "confirm", start)
    monkeypatch.setattr(clean.job_folder, "leftovers", with_first(str(tables / UNNAMED)))
    try:
        done = run("clean")
        assert done.out.split() == ["removed", str(tables / OTHER_UNNAMED)]
        assert run("clean", "--job", "old").status == 2
        assert {UNNAMED, "old-n0", "old-n1"} <= left(tables)
    finally:
        for holder in holders:
            holder.communicate("")


def with_first(path: str):
    """Returns `leftovers` that also returns `path` in the first call, as if its job had still been dead."""
    real, calls = job_folder.leftovers, []

    def leftovers(folder: str) -> list[str]:
        calls.append(folder)
        return [*real(folder), *([path] if len(calls) == 1 else [])]

    return leftovers


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_groups_of_another_user_stay(tables: Path, run: Run) -> None:
    for name in (UNNAMED, "old-n1"):
        os.chown(tables / name, OTHER_USER, OTHER_USER)
    done = run("clean", "--job", "old", "--yes")
    assert (done.status, "belongs to another user" in done.err) == (2, True)
    run("clean", "--yes")
    assert {UNNAMED, "old-n0", "old-n1"} <= left(tables)
