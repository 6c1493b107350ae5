"""Emulated hosts are separate and slow, and they are removed afterwards, whatever happened on them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import cluster, host_job, hosts, step_model

ROOT = Path(__file__).resolve().parents[2]

MBIT = 8.0


@pytest.fixture
def network() -> Iterator[hosts.Hosts]:
    try:
        with hosts.emulated(2, mbit_per_s=MBIT) as network:
            yield network
    except hosts.HostsUnavailable as reason:
        pytest.skip(str(reason))


def output_of(network: hosts.Hosts, host: int | None, script: str) -> str:
    process = network.start(["sh", "-c", script], host=host, output=subprocess.PIPE)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output.strip()


def namespace(network: hosts.Hosts, host: int | None) -> str:
    return output_of(network, host, "readlink /proc/self/ns/net")


def in_use(namespaces: set[str]) -> set[str]:
    """Returns the namespaces that a process uses."""
    used = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            used.add(os.readlink(link))
        except OSError:  # the process has ended
            continue
    return used & namespaces


def assert_gone(namespaces: set[str]) -> None:
    deadline = time.monotonic() + 60
    while used := in_use(namespaces):
        assert time.monotonic() < deadline, f"processes are left in {used}"
        time.sleep(0.02)
    assert not set(Path("/sys/class/net").glob("switch")) | set(Path("/sys/class/net").glob("port0"))


def test_hosts_have_names_addresses_and_memory_of_their_own(network: hosts.Hosts) -> None:
    assert network.names == ("host0", "host1")
    before = set(os.listdir("/dev/shm"))
    for host in (0, 1):
        output_of(network, host, "touch /dev/shm/of_$(hostname)")
    for host in (0, 1):
        assert output_of(network, host, "hostname; ls /dev/shm") == f"host{host}\nof_host{host}"
        assert output_of(network, host, "getent hosts host0 host1").split() == [
            "10.77.0.1",
            "host0",
            "10.77.0.2",
            "host1",
        ]
    assert output_of(network, None, "ls /dev/shm") == ""
    assert not {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("of_host")}
    assert len({namespace(network, host) for host in (0, 1, None)}) == 3


@pytest.mark.nightly
def test_cable_is_as_slow_as_it_was_ordered(network: hosts.Hosts) -> None:
    size = 1_500_000
    receive = network.start(
        [
            sys.executable,
            "-c",
            "import socket, time\n"
            "server = socket.create_server(('10.77.0.2', 5000))\n"
            "began, size = time.monotonic(), 0\n"
            "print('ready', flush=True)\n"
            "peer, _ = server.accept()\n"
            "while part := peer.recv(65536): size += len(part)\n"
            "print(size, time.monotonic() - began)\n",
        ],
        host=1,
        output=subprocess.PIPE,
    )
    assert receive.stdout is not None
    assert receive.stdout.readline() == "ready\n"
    send = f"import socket; socket.create_connection(('host1', 5000)).sendall(bytes({size}))"
    assert network.start([sys.executable, "-c", send], host=0).wait(120) == 0
    received, seconds = receive.communicate(timeout=120)[0].split()
    assert int(received) == size
    # 1.5 s, less what a burst may take at once.
    assert float(seconds) > 0.6 * size * 8 / (MBIT * 1e6)


def test_nothing_is_left_after_an_error_in_the_block() -> None:
    namespaces: set[str] = set()

    def fail() -> None:
        with hosts.emulated(2) as network:
            network.start(["sleep", "1000"], host=0)
            namespaces.update(namespace(network, host) for host in (0, 1, None))
            raise KeyboardInterrupt

    if reason := hosts.unavailable():
        pytest.skip(reason)
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(namespaces) == 3
    assert_gone(namespaces)


def test_nothing_is_left_when_the_owner_is_killed(network: hosts.Hosts) -> None:
    del network  # the fixture skips the test if hosts cannot be emulated
    program = (
        "import subprocess, sys\n"
        "from benchmarks import hosts\n"
        "with hosts.emulated(1) as network:\n"
        "    network.start(['sleep', '1000'], host=0)\n"
        "    for host in (0, None):\n"
        "        network.start(['readlink', '/proc/self/ns/net'], host=host).wait()\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    namespaces = set(iter(lambda: owner.stdout.readline().strip(), "ready"))
    assert len(namespaces) == 2
    assert in_use(namespaces) == namespaces
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=120)
    assert_gone(namespaces)


@pytest.mark.nightly
def test_nothing_is_left_when_a_rank_fails() -> None:
    if reason := hosts.unavailable():
        pytest.skip(reason)
    pytest.importorskip("horovod")
    namespaces: set[str] = set()
    program = "import os, sys, time\nif os.environ['HOROVOD_RANK'] == '1': sys.exit('out of ideas')\ntime.sleep(1000)\n"

    def fail() -> None:
        with hosts.emulated(2) as network:
            namespaces.update(namespace(network, host) for host in (0, 1, None))
            with host_job.started(network, 1, [sys.executable, "-c", program]) as job:
                job.wait(60)

    with pytest.raises(host_job.JobFailed, match=r"(?s)rank 1 of 2 ended first, with 1\. .*out of ideas"):
        fail()
    assert_gone(namespaces)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in ("ip", "tc") else tool)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(hosts.HostsUnavailable, match="Missing: the program ip, the program tc, root's rights"):
        hosts.emulated(2).__enter__()


def test_a_setup_that_the_kernel_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := hosts.unavailable():
        pytest.skip(reason)
    monkeypatch.setattr(hosts, "_LIMIT", "root no-such-limit {}")
    with pytest.raises(hosts.HostsUnavailable, match="no-such-limit"):
        hosts.emulated(1, mbit_per_s=1).__enter__()


@pytest.mark.parametrize(("count", "rate"), [(0, 1.0), (201, 1.0), (2, 0.0)])
def test_sizes_that_make_no_sense_are_refused(count: int, rate: float) -> None:
    with pytest.raises(ValueError, match="Received"):
        hosts.emulated(count, mbit_per_s=rate).__enter__()


@pytest.mark.nightly
@pytest.mark.multirank
def test_cluster_suite_counts_the_bytes_that_the_model_expects(tmp_path: Path, network: hosts.Hosts) -> None:
    del network  # the fixture skips the test if hosts cannot be emulated
    pytest.importorskip("horovod")
    command = [sys.executable, "-m", "benchmarks", "cluster", "--quick", "--json", str(tmp_path / "r.json")]
    command += ["--variant", "flat", "--variant", "dense-only", "--variant", "sum:sparse_reduction=sum"]
    command += ["--variant", "sharded"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    sent, all_sent = (
        {r["variant"]: r["median"] * 1e6 for r in results if r["parameters"]["figure"] == figure}
        for figure in ("sent", "sent, idle included")
    )
    job = step_model.Job(rows=10_000, ids=256 * 26)
    where = step_model.Cluster(2, 1, 200.0)
    for variant in ("flat", "dense-only", "sharded"):
        # What an idle Horovod sends is estimated: on a busy machine it sends less.
        assert 0.9 * sent[variant] <= step_model.sent_bytes(variant, job, where) <= 1.1 * all_sent[variant]
    assert sent["sum"] == pytest.approx(sent["flat"], rel=0.1)
    assert {r["ratio"] for r in results if r["variant"] == "flat"} == {None}
    rows = {r["variant"]: r["median"] for r in results if r["parameters"]["figure"] == "rows per host"}
    assert rows == {"flat": 10_000, "sum": 10_000, "sharded": 5_000}


def test_variants_are_names_with_options() -> None:
    assert cluster.Variant.parse("flat") == cluster.Variant("flat", "shared", {"topology": "flat"})
    assert cluster.Variant.parse("hierarchical").optimizer == {}
    assert [cluster.Variant.parse(name).engine for name in ("flat", "replicated", "tensorflow")] == [
        "horovod",
        "horovod",
        "tensorflow",
    ]
    sharded = cluster.Variant("sharded", "shared --sharded float32", {"sparse_reduction": "sum"})
    assert cluster.Variant.parse("sharded:sparse_reduction=sum") == sharded
    parsed = cluster.Variant.parse("mine:topology=flat,collectives=horovod,x=3")
    assert parsed == cluster.Variant("mine", "shared", {"topology": "flat", "collectives": "horovod", "x": 3})
    for variant in ("mine", "mine:topology", "mine:=flat", "replicated:topology=flat"):
        with pytest.raises(ValueError, match="Received: "):
            cluster.Variant.parse(variant)


def test_idle_traffic_is_subtracted_for_as_long_as_the_cable_was_not_full() -> None:
    report = cluster.per_step(
        {
            "steps": 10,
            "step_ms": 200.0,
            "idle": {"seconds": 3.0, "sent": [300_000, 900_000], "received": [600_000, 600_000]},
            "busy": {"seconds": 5.0, "sent": [10_000_000, 20_000_000], "received": [25_000_000, 5_000_000]},
        },
        mbit_per_s=100.0,
    )
    # The busiest host receives 25 MB at 12.5 MB/s: 2 of 5 s. In the other 3 s, each host sends 0.2 MB/s while idle.
    assert report["sent"] == pytest.approx((30 - 3 * 0.4) / 2 / 10)
    assert report["received"] == pytest.approx((30 - 3 * 0.4) / 2 / 10)
    assert report["sent, idle included"] == pytest.approx(1.5)
    assert report["idle, sent per second"] == pytest.approx(0.2)
    assert report["floor"] == pytest.approx(200.0)
    assert report["step"] == 200.0
    assert "rows per host" not in report


def test_rows_of_hosts_are_reported_by_their_mean_and_the_fullest_host() -> None:
    passed = {"seconds": 1.0, "sent": [0, 0, 0], "received": [0, 0, 0]}
    figures = {"steps": 1, "step_ms": 1.0, "idle": passed, "busy": passed, "rows": [90, 100, 110]}
    report = cluster.per_step(figures, mbit_per_s=100.0)
    assert report["rows per host"] == 100
    assert report["rows of the fullest host above the mean"] == pytest.approx(10)
