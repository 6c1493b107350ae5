"""`top` shows rates and ranks of running jobs, the last figures of those that have ended, and damage."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import ROOT, Run, validate
from counter_pages import GONE, Page
from machine import Machine, make_trained

from tf_sparse_ps import cli
from tf_sparse_ps.cli import top
from tf_sparse_ps.monitoring import processes, rates, readings, watch
from tf_sparse_ps.node import rank_counters

EVERY = ("--every", "0.05")


@pytest.fixture
def pages(machine: Machine, holder: int) -> Iterator[list[Page]]:
    """Counters of the running group run-n0: its writer, and a rank that is dead."""
    group = machine.tables / "run-n0"
    yield [Page(group, 0, holder), Page(group, 1)]
    for path in group.glob(".counters-*"):
        path.unlink()


def in_each_interval(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Has `act` called in each interval of `top`, with its number."""
    numbers, real = iter(range(100)), time.sleep

    def sleep(seconds: float) -> None:
        act(next(numbers))
        real(seconds)

    monkeypatch.setattr(top.time, "sleep", sleep)


def job_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (job for job in document["jobs"] if job["job"] == name)
    return found


def test_rates_are_differences(
    pages: list[Page], holder: int, monkeypatch: pytest.MonkeyPatch, machine: Machine, run: Run
) -> None:
    pages[0].store(ids_looked_up=10**9, ids_trained=1000, unique_ids=1000, cache_lookups=50, cache_misses=50)
    pages[1].store(ids_looked_up=10**9)

    def act(_: int) -> None:
        pages[0].add(ids_looked_up=500, ids_trained=400, unique_ids=100, rows_written=70, bytes_shared=8000)
        pages[0].add(samples_trained=25, step=5)
        pages[1].add(step=4)
        pages[0].add(cache_lookups=10, cache_misses=1, rows_read_late=1, rows_read_before=3, disk_bytes=64)
        pages[0].add(waited_ns=2_000_000, sending_ns=5_000_000, overlapped_ns=4_000_000, disk_waited_ns=0)

    in_each_interval(monkeypatch, act)
    began = time.monotonic()
    done = run("top", "run", "--json", "--once", *EVERY)
    longest = time.monotonic() - began
    assert done.status == 0
    job, interval = job_of(done.facts, "run"), done.facts["interval_s"]
    assert 0.05 <= interval <= longest
    rows = {"ids_looked_up": 500, "rows_updated": 70, "bytes_shared": 8000, "disk_bytes": 64, "steps": 5, "samples": 25}
    assert 500 / longest <= job["per_second"]["ids_looked_up"] <= 500 / 0.05
    for name, counted in rows.items():
        assert job["per_second"][name] == pytest.approx(job["per_second"]["ids_looked_up"] * counted / 500), name
    assert job["ratios"] == {"unique": 0.25, "device_cache": 0.9, "tier": 0.75, "lookahead": None}
    assert job["waits"]["ranks"] == pytest.approx(2 * job["waits"]["network"])
    assert job["waits"]["ranks"] == pytest.approx(job["per_second"]["ids_looked_up"] / 500 * 0.001), (
        "the mean over two ranks"
    )
    assert job["waits"]["disk"] == 0
    first, second = job["ranks"]
    assert (first["pid"], first["state"], second["state"], second["rss"]) == (holder, "alive", "dead", None)
    assert first["rss"] > 1e6
    assert first["pss"] is None or 0 < first["pss"] <= 2 * first["rss"]
    assert 0 <= first["counters_age_s"] < 60
    assert (job["state"], job["rows"], job["step"]) == ("running", 320, 1)
    assert done.facts["free_bytes"] <= done.facts["size_bytes"]
    assert {each["job"] for each in done.facts["jobs"]} == {"run"}


def test_plain_text_has_all_jobs_in_all_states(pages: list[Page], machine: Machine, run: Run) -> None:
    Page(machine.tables / "old-n0", 0).store(step=7, ids_trained=10, unique_ids=5, updated=time.time() - 3600)
    Page(machine.tables / "bad-n0", 0)
    pages[0].store(activity="saving a checkpoint")
    try:
        done = run("top", "--once", *EVERY)
    finally:
        (machine.tables / "old-n0" / ".counters-0000").unlink()
        (machine.tables / "bad-n0" / ".counters-0000").unlink()
    assert (done.status, done.err) == (0, "")
    blocks = done.out.split("\n\n")
    by_job = {block.split()[1].rstrip(","): block for block in blocks[1:]}
    assert {"run", "old", "bad", "shard", "empty", "tier"} <= set(by_job)
    assert not {"link", "other"} & set(by_job), "groups of others are not read"
    assert "running" in by_job["run"]
    assert "saving a checkpoint" in by_job["run"]
    assert "old, node 0: ended" in by_job["old"]
    assert "unique ids 50%" in by_job["old"], "the last figures of a job that has ended are readable"
    assert "1:00:0" in by_job["old"], "the age of its counters"
    assert "bad, node 0: damaged" in by_job["bad"]
    assert "fault" in by_job["bad"]
    assert "shard, node 1" in by_job["shard"]
    assert str(machine.tables) in blocks[0]
    assert not [line for line in done.out.splitlines() if line != line.rstrip()]


def test_a_removed_job_stays_with_its_last_rates(
    shm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shm / "to-watch"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TFSPS_DIR", str(folder))
    table = make_trained(folder / "gone-n0" / "t0000-words")
    page = Page(folder / "gone-n0", 0, os.getpid(), size=1)

    def act(number: int) -> None:
        if number == 0:
            page.add(ids_looked_up=1000, step=3)
        else:
            table.close()
            shutil.rmtree(folder / "gone-n0", ignore_errors=True)

    in_each_interval(monkeypatch, act)
    try:
        assert cli.main(["top", "gone", "--json", "--count", "3", *EVERY]) == 0
    finally:
        shutil.rmtree(folder)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for document in documents:
        validate("top", document)
    running, *ended = [job_of(document, "gone") for document in documents]
    assert running["state"] == "running"
    assert running["per_second"]["ids_looked_up"] > 0
    for job in ended:
        assert (job["state"], job["ranks"][0]["state"]) == ("ended", "dead")
        assert job["per_second"] == running["per_second"]
        assert job["ranks"][0]["counters"]["ids_looked_up"] == 1000


def test_a_process_is_known_by_its_pid_and_its_start() -> None:
    own = processes.find(os.getpid())
    assert own is not None
    assert processes.find_same(os.getpid(), own.started) == own
    assert processes.find_same(os.getpid(), own.started - 1) is None, "the pid is of another process"
    assert processes.find_same(GONE, 0) is None
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert processes.find(child.pid) is None, "a zombie has ended"


def test_ranks_of_another_pid_namespace_are_unknown(machine: Machine, holder: int, run: Run) -> None:
    group = machine.tables / "run-n0"
    Page(group, 0, GONE)  # the pid that the writer has elsewhere
    try:
        assert [rank.state for rank in readings.read_group(str(group)).ranks] == ["unknown"]
        assert "another PID namespace" in run("top", "run", "--once", *EVERY).out
    finally:
        (group / ".counters-0000").unlink()


def test_counters_of_another_process_are_no_rate(machine: Machine, holder: int) -> None:
    group = machine.tables / "run-n0"
    try:
        Page(group, 0, holder).store(ids_looked_up=100)
        before = rank_counters.read(str(group))
        Page(group, 0, os.getpid()).store(ids_looked_up=300)
        after = rank_counters.read(str(group))
    finally:
        (group / ".counters-0000").unlink()
    assert rates.between(before, after, 1.0) is None
    both = rates.between([*before, *after], after, 2.0)
    assert both is not None
    assert both.ids == 0


def test_a_wait_that_began_before_takes_no_more_than_all_the_time(machine: Machine, holder: int) -> None:
    group = machine.tables / "run-n0"
    page = Page(group, 0, holder)
    try:
        page.store(waited_ns=0)
        before = rank_counters.read(str(group))
        page.store(waited_ns=90 * 10**9, disk_waited_ns=10**8)
        after = rank_counters.read(str(group))
    finally:
        (group / ".counters-0000").unlink()
    found = rates.between(before, after, 1.0)
    assert found is not None
    assert found.waits == {"ranks": 1.0, "network": 0.0, "disk": pytest.approx(0.1)}


def test_pss_is_read_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    now = [1000.0]

    def read(pid: int) -> int:
        reads.append(pid)
        now[0] += 0.1  # it takes this long
        return 5

    monkeypatch.setattr(processes, "_pss", read)
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    reader = processes.PssReader()
    for _ in range(28):
        assert reader.of(7, 1) == 5
        now[0] += 1.0
    assert len(reads) == 1
    now[0] += 3.0
    reader.of(7, 1)
    assert reads == [7, 7], "once in 300 times the time that it takes"


def test_an_unknown_job_and_mistakes_have_status_2(machine: Machine, run: Run) -> None:
    done = run("top", "none", "--once", *EVERY)
    assert (done.status, done.out) == (2, "")
    assert "has no tables of a job 'none'. Its jobs: " in done.err
    assert "old" in done.err
    for words in (["--every", "0"], ["--every", "nan"], ["--once", "--count", "2"], ["--plain", "--json"]):
        done = run("top", *words)
        assert (done.status, done.out) == (2, ""), words
        assert done.err
    with pytest.raises(FileNotFoundError, match="none"):
        watch.Watch(str(machine.tables), "none").look()


def test_a_machine_without_tables(shm: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("TFSPS_DIR", str(shm / "nowhere"))
    done = run("top", "--once", *EVERY)
    assert (done.status, "no jobs with tables" in done.out) == (0, True)
    assert run("top", "--json", "--once", *EVERY).facts["jobs"] == []


def test_a_terminal_gets_a_live_view_until_ctrl_c(machine: Machine, holder: int) -> None:
    main, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tf_sparse_ps", "top", "run", *EVERY],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
        stdout=end,
        start_new_session=True,
    )
    os.close(end)
    text, until = b"", time.monotonic() + 60
    try:
        while text.count(b"run, node 0: running") < 3 and time.monotonic() < until:
            text += os.read(main, 4096)
        process.send_signal(signal.SIGINT)
        while time.monotonic() < until:
            try:
                text += os.read(main, 4096)
            except OSError:  # the command has ended
                break
        assert process.wait(60) == 130
    finally:
        process.kill()
        os.close(main)
    assert text.count(b"run, node 0: running") >= 3
    assert b"\x1b[1A" in text, "a view replaces the one before"
