"""`metrics` serves what ranks count, under documented names, which the dashboard uses, too."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import ROOT, Run
from counter_pages import Page
from machine import Machine
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tf_sparse_ps.monitoring import exporter
from tf_sparse_ps.monitoring.exporter import JobsCollector
from tf_sparse_ps.monitoring.metric_names import COUNTERS, GAUGES
from tf_sparse_ps.node.rank_counters import NAMES

PAGE = (ROOT / "docs" / "metrics.md").read_text()
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def page(machine: Machine, holder: int) -> Iterator[Page]:
    """The counters of the writer of the running group."""
    group = machine.tables / "run-n0"
    yield Page(group, 0, holder)
    (group / ".counters-0000").unlink()


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        return samples(response.read().decode())


def test_each_scrape_reads_the_counters(page: Page, machine: Machine) -> None:
    rank = {"job": "run", "node": "0", "rank": "0"}
    with exporter.serving(str(machine.tables), 0) as port:
        for ids in (7, 9):
            page.store(ids_looked_up=ids, waited_ns=ids * 500_000_000, bytes_sent=ids * 100)
            found = scrape(port)
            assert found["tsps_ids_looked_up_total", frozenset(rank.items())] == ids
            assert found["tsps_waited_seconds_total", frozenset(rank.items())] == ids / 2
            assert found["tsps_sent_bytes_total", frozenset(rank.items())] == ids * 100
    group = {"job": "run", "node": "0"}
    assert found["tsps_ranks_alive", frozenset(group.items())] == 1
    assert found["tsps_step", frozenset(group.items())] == 1
    assert found["tsps_table_rows", frozenset((group | {"table": "t0000-words"}).items())] == 320
    assert found["tsps_rank_resident_bytes", frozenset(rank.items())] > 1e6
    assert found["tsps_damaged", frozenset({"job": "bad", "node": "0"}.items())] == 1
    assert found["tsps_running", frozenset({"job": "old", "node": "0"}.items())] == 0
    assert found["tsps_folder_free_bytes", frozenset({"folder": str(machine.tables)}.items())] > 0
    exported = {name for name, _ in found}
    assert exported == {counter.name for counter in COUNTERS.values()} | set(GAUGES)


def test_only_chosen_groups_are_exported(page: Page, machine: Machine) -> None:
    collector = JobsCollector(str(machine.tables), lambda path: path.endswith("/run-n0"))
    jobs = {sample.labels["job"] for metric in collector.collect() for sample in metric.samples if "job" in sample[1]}
    assert jobs == {"run"}


def test_a_folder_that_vanishes_has_no_jobs(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(JobsCollector(str(tmp_path / "none")))
    assert not [sample for metric in registry.collect() for sample in metric.samples]


def test_every_metric_is_documented() -> None:
    listed = set(re.findall(r"^\| `(tsps_\w+)` ", PAGE, re.MULTILINE))
    cells = set(re.findall(r"^\| `\w+` \| `(tsps_\w+)` \|", PAGE, re.MULTILINE))
    assert set(GAUGES) == listed
    assert {counter.name for counter in COUNTERS.values()} == cells
    assert set(NAMES) - set(COUNTERS) == {"step"}
    for counter in COUNTERS.values():
        assert counter.name.endswith("_total")
        assert "_ns" not in counter.name


def test_the_dashboard_uses_metrics_that_are_exported() -> None:
    text = (ROOT / "docs" / "grafana.json").read_text()
    used = set(re.findall(r"\btsps_\w+", text))
    exported = {counter.name for counter in COUNTERS.values()} | set(GAUGES)
    assert used <= exported
    assert len(used) > 20
    dashboard = json.loads(text)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    labels = {"job", "node"}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for by in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert set(by.split(", ")) == labels
            assert target["expr"].count("(") == target["expr"].count(")")
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= {"job", "node", "rank", "table", "folder", "instance"}


def test_the_command_serves_until_ctrl_c_without_tensorflow(machine: Machine) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tf_sparse_ps", "metrics", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert f"http://127.0.0.1:{port}/metrics" in process.stderr.readline()
            assert ("tsps_running", frozenset({"job": "old", "node": "0"}.items())) in scrape(port)
            assert "tensorflow" not in Path(f"/proc/{process.pid}/maps").read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()


def test_mistakes_have_status_2(machine: Machine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("metrics", "--port", "0").status == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("metrics", "--port", str(port))
        assert (done.status, f"cannot serve metrics at 127.0.0.1:{port}" in done.err) == (2, True), done
    done = run("metrics", "--address", "no.such.host.invalid")
    assert (done.status, "cannot serve metrics at no.such.host.invalid" in done.err) == (2, True), done
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "prometheus_client" else find(name, *rest)
    )
    done = run("metrics")
    assert (done.status, "pip install 'tf_sparse_ps[metrics]'" in done.err) == (2, True)
