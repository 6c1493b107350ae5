"""Specific behaviour of TensorFlow's collectives: how ranks are connected, and what steps leave over."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from free_ports import free_ports
from launch import REPOSITORY, TENSORFLOW, launched

TIMEOUT_S = 60  # for ranks that connect, however busy the machine is
SHORT_TIMEOUT_S = 8  # for ranks that wait for a rank that never comes
LONGEST_S = 150  # a process that has not ended after this time is killed
STUCK_S = 50  # a rank that has not connected this long after its start prints where its threads are
PROGRAM = (
    f"import faulthandler; faulthandler.dump_traceback_later({STUCK_S}); "
    "import tf_sparse_ps as tsps; ranks = tsps.init({}); faulthandler.cancel_dump_traceback_later(); "
    "print(ranks.kind, ranks.rank, ranks.size, flush=True)"
)


@pytest.mark.daily
def test_row_counts_that_all_differ_leave_nothing_behind() -> None:
    with launched("ragged_program.py", hosts="localhost:2", ranks=2, collectives=TENSORFLOW) as job:
        assert job.wait() == 0, job.output[-20000:]
        reports = [json.loads((job.folder / f"{rank}.json").read_text()) for rank in range(2)]
    for report in reports:
        assert report["sizes"] < 80, (
            "at most 8 sizes per power of 2 between 32 bytes and 110 KB, because TensorFlow keeps an instance of each"
        )
        half, end = report["counts"]["250"], report["counts"]["499"]
        # These are 250 steps. TensorFlow's RPC may start a thread or open a file for a moment.
        assert end["threads"] <= half["threads"] + 2
        assert end["files"] <= half["files"] + 2
        assert end["resident"] - half["resident"] < 8 << 20
        assert report["in_flight"] == [], "TFSPS_TIMEOUT_S after it began, it would end all operations"


def start(
    tmp_path: Path, workers: list[str], index: int, program: str = PROGRAM.format(""), timeout_s: int = TIMEOUT_S
) -> subprocess.Popen[str]:
    """Starts a worker without a launcher."""
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("HOROVOD", "TFSPS"))},
        "TF_CONFIG": json.dumps(config),
        "TFSPS_TIMEOUT_S": str(timeout_s),
        "TFSPS_DIR": str(tmp_path),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(*processes: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """Waits for processes; returns the status and the output of each. A failed test shows all outputs."""
    limit = threading.Timer(LONGEST_S, lambda: [process.kill() for process in processes])
    limit.start()
    ended = [(process.communicate()[0], process.returncode) for process in processes]
    limit.cancel()
    for number, (output, status) in enumerate(ended):
        print(f"--- process {number}, status {status}", output, sep="\n")
    return [(status, output) for output, status in ended]


def test_workers_of_tf_config_train_without_a_launcher(tmp_path: Path) -> None:
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    for index, (status, output) in enumerate(end(*(start(tmp_path, workers, index) for index in range(2)))):
        assert status == 0, output
        assert f"tensorflow {index} 2" in output


def test_a_worker_that_never_starts_is_named_within_the_timeout(tmp_path: Path) -> None:
    workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    waiting = (start(tmp_path, workers, index, timeout_s=SHORT_TIMEOUT_S) for index in (0, 2))
    for status, output in end(*waiting):
        assert status == 1, output
        assert f"rank 1 at {workers[1]} did not connect within {SHORT_TIMEOUT_S} s" in output
        assert output.count("Traceback") == 1, output


def test_workers_with_other_clusters_are_told_the_difference(tmp_path: Path) -> None:
    workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    for status, output in end(start(tmp_path, workers, 0), start(tmp_path, workers[:2], 1)):
        assert status == 1, output
        assert "TF_CONFIG differs between ranks" in output


def test_init_after_an_operation_says_where_to_call_it(tmp_path: Path) -> None:
    program = "import tensorflow as tf; tf.zeros([]); " + PROGRAM.format("'tensorflow'")
    ((status, output),) = end(start(tmp_path, [f"127.0.0.1:{port}" for port in free_ports(2)], 0, program))
    assert status == 1
    assert "Call tsps.init() at the top of the program" in output


def test_a_strategy_of_the_users_own_stays_in_charge(tmp_path: Path) -> None:
    """`tsps.init()` changes nothing in a job that has made its own strategy."""
    program = (
        "import tensorflow as tf; strategy = tf.distribute.MultiWorkerMirroredStrategy(); import tf_sparse_ps as tsps\n"
        "print('outside:', tsps.init().kind, flush=True)\n"
        "with strategy.scope(): print('inside:', tsps.init().kind, flush=True)"
    )
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    for status, output in end(*(start(tmp_path, workers, index, program) for index in range(2))):
        assert status == 0, output
        assert "outside: local" in output
        assert "inside: tf.distribute" in output


def test_sigterm_ends_a_rank(tmp_path: Path) -> None:
    """TensorFlow would treat the signal as a notice of preemption."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    ranks = [start(tmp_path, workers, index, PROGRAM.format("") + "; import time; time.sleep(100)") for index in (0, 1)]
    try:
        for index, rank in enumerate(ranks):
            assert rank.stdout is not None
            output = [rank.stdout.readline()]
            while not output[-1].startswith(f"tensorflow {index} 2"):
                assert output[-1], "".join(output)
                output.append(rank.stdout.readline())
        began = time.monotonic()
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        assert [rank.wait(20) for rank in ranks] == [-signal.SIGTERM] * 2
        assert time.monotonic() < began + 10
    finally:
        for rank in ranks:
            rank.kill()


def test_tensorflow_may_connect_to_the_server_of_the_meeting_first(tmp_path: Path) -> None:
    """Rank 1's TensorFlow connects before rank 0 closes that server, whose threads then wait for Python's lock.

    If the connection stays open, TensorFlow 2.15 waits for an answer without end, and TensorFlow 2.21 for 20 s.
    """
    slow = (
        "import socket, threading, time\n"
        "from tf_sparse_ps.collectives.key_value_server import KeyValueServer\n"
        "connected, serve, close = threading.Event(), KeyValueServer.finish_request, KeyValueServer.close\n"
        "def late(server, request, address):\n"
        "    if request.recv(3, socket.MSG_PEEK | socket.MSG_WAITALL) == b'PRI':  # HTTP/2\n"
        "        connected.set(), time.sleep(100)\n"
        "    serve(server, request, address)\n"
        "KeyValueServer.finish_request = late\n"
        "KeyValueServer.close = lambda server: (print('connected:', connected.wait(30), flush=True), close(server))\n"
    )
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    programs = [slow + PROGRAM.format(""), PROGRAM.format("")]
    ended = end(*(start(tmp_path, workers, index, program) for index, program in enumerate(programs)))
    assert "connected: True" in ended[0][1], "the test did not test anything"
    for index, (status, output) in enumerate(ended):
        assert status == 0, output
        assert f"tensorflow {index} 2" in output


def test_rank_0_may_hold_pythons_lock_for_long(tmp_path: Path) -> None:
    """The store of a job without a launcher does not answer meanwhile. Rank 1 looks there every 5 s, in each wait."""
    program = PROGRAM.format("") + (
        "\nimport ctypes, time\n"
        "ranks.barrier('before')\n"
        "if ranks.rank == 0: ctypes.PyDLL(None).sleep(30)\n"
        "began = time.monotonic()\n"
        "ranks.barrier('a'), ranks.barrier('b')\n"
        "print(f'waited {time.monotonic() - began:.0f} s')\n"
    )
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    ended = end(*(start(tmp_path, workers, index, program) for index in range(2)))
    assert [status for status, _ in ended] == [0, 0]
    waited = re.search(r"waited (\d+) s", ended[1][1])
    assert waited
    assert int(waited[1]) >= 29


@pytest.mark.parametrize("gone", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_worker_that_ends_before_it_is_connected_ends_the_others_in_time(tmp_path: Path, gone: int) -> None:
    """TensorFlow would wait an hour for the worker, and hold Python's lock meanwhile."""
    come_and_go = (
        "from tf_sparse_ps.collectives import cluster_config, meeting; import os; "
        "meeting.meet(cluster_config.find(), 60); os._exit(3)"  # it is there long before the other has TensorFlow
    )
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    programs = [come_and_go if index == gone else PROGRAM.format("") for index in range(2)]
    began = time.monotonic()
    ended = end(*(start(tmp_path, workers, index, program, SHORT_TIMEOUT_S) for index, program in enumerate(programs)))
    assert ended[gone][0] == 3, ended[gone][1]
    status, output = ended[1 - gone]
    assert status == 1
    assert f"rank {1 - gone} of 2 ends. All ranks had started, but then TensorFlow did not connect them" in output
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("kind", ["local", "horovod"])
def test_other_collectives_beside_it_are_refused(tmp_path: Path, kind: str) -> None:
    if kind == "horovod":
        pytest.importorskip("horovod")
    program = PROGRAM.format("") + f"; tsps.DistributedOptimizer('sgd', collectives={kind!r})"
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    for status, output in end(*(start(tmp_path, workers, index, program) for index in range(2))):
        assert status == 1, output
        assert "Received" in output
