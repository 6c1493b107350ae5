"""The launcher ends with a line on the speed of a job that used tables, and serves its metrics."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher import Launchers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from counter_pages import GONE, Page

from tf_sparse_ps.monitoring.job_watch import JobWatch

CLI = Path(__file__).resolve().parents[1] / "cli"
# A rank without TensorFlow: it makes a table, counts as a layer does, and waits until the launcher has seen it.
RANK = f"""
import urllib.request
sys.path.insert(0, {str(CLI)!r})
from counter_pages import Page
from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table
tables = pathlib.Path(os.environ["TFSPS_DIR"])
tables.mkdir(mode=0o700, exist_ok=True)
def scraped():
    url = "http://127.0.0.1:" + os.environ["PORT"] + "/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read().decode()
def count():
    begun = time.time()
    page = Page(tables / "ctr-n0", 0, os.getpid(), size=1)
    page.store(lookups=1, step=40, updated=begun)
    while 'tsps_ranks_alive{{job="ctr",node="0"}} 1.0' not in scraped():
        time.sleep(0.01)
    assert 'job="other"' not in scraped()
    page.store(lookups=9, step=60, ids_looked_up=2_000_000, samples_trained=5000, waited_ns=10**9, updated=begun + 10)
"""
COUNTS = (
    RANK
    + """
for name in ("ctr-n0", "other-n0"):
    Table.create(tables / name / "words", TableConfig("words", 4, optimizer=optimizers.SGD(learning_rate=0.1))).close()
count()
sys.exit(int(os.environ.get("STATUS", "0")))
"""
)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def group() -> Iterator[Path]:
    """A folder that looks like a group."""
    folder = Path(tempfile.mkdtemp(prefix="tf_sparse_ps-line-", dir="/dev/shm"))
    (folder / "ctr-n0").mkdir()
    (folder / "ctr-n0" / "group").touch()
    yield folder / "ctr-n0"
    shutil.rmtree(folder)


def test_a_job_with_tables_ends_with_its_speed(launch: Launchers) -> None:
    port = free_port()
    job = launch("-np", "1", "--metrics-port", port, program=COUNTS, PORT=port)
    assert job.wait() == 0, job.said
    speed = "2 steps/s, 500 samples/s, 200,000 ids/s"
    wait = "the largest wait, 10% of the time, was for other ranks of this machine"
    assert job.said.splitlines() == [f"tf-sparse-ps: {speed}; {wait}"]


def test_the_line_stands_before_the_reason_of_a_failure(launch: Launchers) -> None:
    port = free_port()
    job = launch("-np", "1", "--metrics-port", port, program=COUNTS, PORT=port, STATUS="3")
    assert job.wait() == 3
    first, second = job.said.splitlines()[:2]
    assert "2 steps/s" in first
    assert "rank 0 failed first" in second


def test_a_job_without_tables_is_quiet(launch: Launchers) -> None:
    job = launch("-np", "2", program="pass")
    assert (job.wait(), job.said) == (0, "")


def test_a_port_in_use_is_refused_before_ranks_start(launch: Launchers) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        job = launch("-np", "1", "--metrics-port", port, program='note("started")')
        assert job.wait() == 2
    assert f"cannot serve metrics at 127.0.0.1:{port}" in job.said
    assert not (launch.folder / "started").exists()


def test_ranks_of_other_launchers_are_not_counted(group: Path) -> None:
    own = os.getsid(0)
    pages = [Page(group, 0, os.getpid()), Page(group, 1, GONE)]
    watch, other = (JobWatch(str(group.parent), lambda sessions=sessions: sessions) for sessions in ([own], [own + 1]))
    begun = time.time()
    for at, steps, ids in ((0, 5, 100), (2, 9, 5_000_100)):
        for page in pages:
            page.store(lookups=1, step=steps, ids_looked_up=ids, rows_read=1, updated=begun + at)
        for each in (watch, other):
            each.look()
    assert watch.line() == "2 steps/s, 2.5 M ids/s"
    assert (watch.has(str(group)), other.has(str(group)), other.line()) == (True, False, "")
    shutil.rmtree(group)
    watch.look()
    assert watch.line() == "2 steps/s, 2.5 M ids/s", "the tables may be removed before the launcher ends"


def test_a_moment_is_no_speed(group: Path) -> None:
    watch = JobWatch(str(group.parent), lambda: [os.getsid(0)])
    page, begun = Page(group, 0, os.getpid()), time.time()
    for at in (0, 0.1):
        page.store(lookups=1, step=1, updated=begun + at)
        watch.look()
    assert watch.line() == ""
