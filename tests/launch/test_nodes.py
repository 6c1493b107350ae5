"""Several launchers of one job, on one machine: how they connect, and how they end together."""

from __future__ import annotations

import http.server
import json
import os
import queue
import signal
import threading
import time

import pytest
from launcher import SECRET, Launcher, Launchers, environment, free_port, gone, until

from tf_sparse_ps.collectives import exit_report
from tf_sparse_ps.collectives.key_value_server import KeyValueServer
from tf_sparse_ps.errors import LaunchError
from tf_sparse_ps.launch import node_link
from tf_sparse_ps.launch.key_values import Client, Store
from tf_sparse_ps.launch.meeting import Meeting, Node, Terms
from tf_sparse_ps.launch.node_link import NodeLink
from tf_sparse_ps.launch.outcome import Cause, NodeEnd, Outcome, decide

KEY = b"of launchers"
NAP = "note(f'pid-{rank}', str(os.getpid()))\ntime.sleep(300)\n"
PRINT = 'note(f"env-{rank}", json.dumps(dict(os.environ)))\n'


class Nodes:
    """Starts the launchers of a job."""

    def __init__(self, launch: Launchers, nnodes: int = 2, collectives: str = "tensorflow") -> None:
        self.launch, self.nnodes, self.collectives = launch, nnodes, collectives
        self.address = f"127.0.0.1:{free_port()}"

    def start(
        self, node_rank: int, program: str, *more: str, ranks: int = 1, nnodes: int = 0, **values: str
    ) -> Launcher:
        return self.launch(
            *("--nnodes", str(nnodes or self.nnodes), "--node-rank", str(node_rank), "-np", str(ranks)),
            *("--coordinator", self.address, "--collectives", self.collectives, *more),
            program=program,
            **values,
        )


def pids(launch: Launchers, *ranks: int) -> list[int]:
    return [int(text) for text in launch.wait_for(*(f"pid-{rank}" for rank in ranks))]


@pytest.mark.parametrize("collectives", ["tensorflow", "horovod"])
def test_ranks_of_two_nodes_know_each_other(collectives: str, launch: Launchers) -> None:
    if collectives == "horovod":
        pytest.importorskip("horovod")
    nodes = Nodes(launch, collectives=collectives)
    second = nodes.start(1, PRINT, ranks=2)  # the order of the launchers does not matter
    first = nodes.start(0, PRINT, ranks=1)
    assert (first.wait(), second.wait()) == (0, 0), first.said + second.said
    environments_of_ranks = [json.loads(text) for text in launch.wait_for("env-0", "env-1", "env-2")]
    assert [variables["TFSPS_NODE_RANK"] for variables in environments_of_ranks] == ["0", "1", "1"]
    assert [variables["TFSPS_LOCAL_RANK"] for variables in environments_of_ranks] == ["0", "0", "1"]
    assert [variables["TFSPS_LOCAL_SIZE"] for variables in environments_of_ranks] == ["1", "2", "2"]
    assert {variables["TFSPS_SIZE"] for variables in environments_of_ranks} == {"3"}
    assert {variables["TFSPS_KEY_VALUES"] for variables in environments_of_ranks} == {nodes.address}
    if collectives == "tensorflow":
        (cluster,) = {json.dumps(json.loads(variables["TF_CONFIG"])["cluster"]) for variables in environments_of_ranks}
        assert len(set(json.loads(cluster)["worker"])) == 3
        assert [json.loads(variables["TF_CONFIG"])["task"]["index"] for variables in environments_of_ranks] == [0, 1, 2]
    else:
        assert [variables["HOROVOD_HOSTNAME"] for variables in environments_of_ranks] == [
            "127.0.0.1-0",
            "127.0.0.1-1",
            "127.0.0.1-1",
        ]
        assert [variables["HOROVOD_CROSS_RANK"] for variables in environments_of_ranks] == ["0", "1", "0"]
        assert [variables["HOROVOD_CROSS_SIZE"] for variables in environments_of_ranks] == ["2", "2", "1"]
        assert len({variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] for variables in environments_of_ranks}) == 1


def test_a_rank_that_fails_on_another_node_ends_all_and_is_shown_on_both(launch: Launchers) -> None:
    nodes = Nodes(launch)
    first = nodes.start(0, NAP, ranks=2)
    second = nodes.start(1, "wait_for('pid-0'); wait_for('pid-1'); sys.exit('mine')")
    assert (first.wait(), second.wait()) == (1, 1)
    for job in (first, second):
        assert job.said.count("rank 2 (node 1) failed first, with exit status 1 (its last lines):\nmine\n") == 1
    assert all(map(gone, pids(launch, 0, 1)))


@pytest.mark.nightly
def test_a_rank_of_node_0_that_is_killed(launch: Launchers) -> None:
    nodes = Nodes(launch)
    first, second = nodes.start(0, NAP), nodes.start(1, NAP)
    rank_pids = pids(launch, 0, 1)
    os.kill(rank_pids[0], signal.SIGKILL)
    assert (first.wait(), second.wait()) == (137, 137)
    assert "rank 0 (node 0) failed first, killed by SIGKILL: see what it wrote above" in first.said
    assert "rank 0 (node 0) failed first, killed by SIGKILL; it wrote nothing to stderr" in second.said
    assert gone(rank_pids[1])


def test_a_node_whose_ranks_are_done_still_tells_how_the_job_ended(launch: Launchers) -> None:
    nodes = Nodes(launch)
    first = nodes.start(0, "wait_for('done-1'); wait_for('fail'); sys.exit(4)")
    second = nodes.start(1, "note('done-1')")
    launch.wait_for("done-1")
    time.sleep(1.0)
    assert second.process.poll() is None
    (launch.folder / "fail").touch()
    assert (first.wait(), second.wait()) == (4, 4)


@pytest.mark.parametrize("which", [0, 1])
def test_ctrl_c_on_one_machine_ends_the_others(which: int, launch: Launchers) -> None:
    nodes = Nodes(launch)
    jobs = [nodes.start(k, NAP) for k in range(2)]
    rank_pids = pids(launch, 0, 1)
    jobs[which].process.send_signal(signal.SIGINT)
    assert [job.wait(20) for job in jobs] == [130, 130]
    assert all(f"the launcher of node {which} got SIGINT" in job.said for job in jobs)
    assert all(map(gone, rank_pids))


@pytest.mark.nightly
@pytest.mark.parametrize("which", [0, 1])
def test_ranks_of_all_machines_have_the_grace_after_a_signal_to_one(which: int, launch: Launchers) -> None:
    saves = """
def save(number, _):
    time.sleep(6)  # after a failure, this would be too long
    note(f"saved-{rank}")
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
"""
    nodes = Nodes(launch)
    jobs = [nodes.start(k, saves + NAP) for k in range(2)]
    pids(launch, 0, 1)
    jobs[which].process.send_signal(signal.SIGTERM)
    assert [job.wait(40) for job in jobs] == [143, 143]
    launch.wait_for("saved-0", "saved-1", timeout_s=0.1)
    assert all(f"the launcher of node {which} got SIGTERM" in job.said for job in jobs)


@pytest.mark.daily_cases(1)
@pytest.mark.parametrize("which", [0, 1])
def test_ctrl_c_where_ranks_are_done_ends_the_others(which: int, launch: Launchers) -> None:
    nodes = Nodes(launch)
    jobs = [nodes.start(k, "note('done')" if k == which else NAP) for k in range(2)]
    (pid,) = pids(launch, 1 - which)
    launch.wait_for("done")
    time.sleep(1.0)
    assert [job.process.poll() for job in jobs] == [None, None]
    jobs[which].process.send_signal(signal.SIGINT)
    assert [job.wait(20) for job in jobs] == [130, 130]
    assert gone(pid)


def test_a_launcher_that_cannot_reach_node_0s_any_more_ends_its_ranks(launch: Launchers) -> None:
    nodes = Nodes(launch)
    first, second = nodes.start(0, NAP), nodes.start(1, NAP)
    rank_pids = pids(launch, 0, 1)
    first.process.kill()
    assert second.wait(20) == 1
    assert "node 1 cannot reach the launcher of node 0 any more (nobody listens there any more)" in second.said
    until(lambda: all(map(gone, rank_pids)), 10.0)


# --- how launchers connect ---


def test_node_ranks_that_did_not_come_are_named(launch: Launchers) -> None:
    nodes = Nodes(launch, nnodes=4)
    second = nodes.start(2, NAP, "--timeout", "60")
    first = nodes.start(0, NAP, "--timeout", "2")
    assert (first.wait(), second.wait()) == (1, 1)
    for job in (first, second):
        assert "node ranks 1, 3 of 4 did not connect within 2 s" in job.said
        assert f"--coordinator {nodes.address}" in job.said


def test_node_0_that_did_not_come_is_named(launch: Launchers) -> None:
    nodes = Nodes(launch)
    job = nodes.start(1, NAP, "--timeout", "1")
    assert job.wait() == 1
    assert (
        f"node rank 0 did not connect within 1 s: no launcher answers at {nodes.address} (Connection refused)"
        in job.said
    )


def test_two_launchers_with_one_node_rank(launch: Launchers) -> None:
    nodes = Nodes(launch, nnodes=3)
    first = nodes.start(0, NAP)
    twins = [nodes.start(1, NAP, ranks=2) for _ in range(2)]
    assert [job.wait() for job in (first, *twins)] == [2, 2, 2]
    for job in (first, *twins):
        assert "two launchers have --node-rank 1: one on 127.0.0.1, with 2 ranks, and one on 127.0.0.1" in job.said


def test_different_numbers_of_nodes(launch: Launchers) -> None:
    nodes = Nodes(launch)
    first, second = nodes.start(0, NAP), nodes.start(2, NAP, nnodes=3)
    assert (first.wait(), second.wait()) == (2, 2)
    for job in (first, second):
        assert "different --nnodes: 2 with --node-rank 0, 3 with --node-rank 2" in job.said


def test_a_launcher_that_is_interrupted_while_it_waits_ends_the_others(launch: Launchers) -> None:
    nodes = Nodes(launch, nnodes=3)
    first, second = nodes.start(0, NAP), nodes.start(1, NAP)
    address = nodes.address.partition(":")
    client = Client(address[0], int(address[2]), environment(launch.folder)[SECRET].encode())

    def met() -> bool:
        try:
            return client.get("node-1") is not None
        except OSError:
            return False

    until(met)
    second.process.send_signal(signal.SIGINT)
    assert (first.wait(), second.wait()) == (1, 130)
    assert "the launcher of node 1 was interrupted" in first.said


def meeting(node_rank: int, port: int, store: Store | None = None, **other: object) -> Meeting:
    terms = Terms(**{"nnodes": 2, "collectives": "horovod", **other})
    return Meeting(node_rank, terms, ("127.0.0.1", port), 10.0, lambda _: None, store, KEY, "job")


def test_launchers_that_chose_different_collectives() -> None:
    store = Store()
    server = KeyValueServer("127.0.0.1", 0, store, {"launch": KEY})
    try:
        meeting(0, server.server_port, store)
        with pytest.raises(LaunchError, match="horovod with --node-rank 0, tensorflow with --node-rank 1"):
            meeting(1, server.server_port, collectives="tensorflow").hold(Node("127.0.0.1", 1), lambda _: None)
    finally:
        server.close()


def test_a_node_that_knows_itself_by_an_address_of_its_own_only() -> None:
    store = Store()
    server = KeyValueServer("127.0.0.1", 0, store, {"launch": KEY})
    store.put("node-1", Node("10.0.0.2", 1).text)
    try:
        with pytest.raises(LaunchError, match=r"node rank 0 has the address 127.0.1.1.*etc/hosts"):
            meeting(0, server.server_port, store).hold(Node("127.0.1.1", 1), lambda _: None)
    finally:
        server.close()


def test_a_machine_whose_name_leads_back_to_itself_with_horovod() -> None:
    store = Store()
    server = KeyValueServer("127.0.0.1", 0, store, {"launch": KEY})
    store.put("node-1", Node("10.0.0.2", 1, named="127.0.1.1").text)
    try:
        with pytest.raises(LaunchError, match=r"node rank 1 \(10.0.0.2\), .* resolves to 127.0.1.1, where Horovod"):
            meeting(0, server.server_port, store).hold(Node("10.0.0.1", 1, named="10.0.0.1"), lambda _: None)
        assert "127.0.1.1" in (store.get("abort") or "")
    finally:
        server.close()


def test_node_0_on_another_machine_than_the_coordinator() -> None:
    store, other_store = Store(), Store()
    server = KeyValueServer("127.0.0.1", 0, other_store, {"launch": KEY})
    try:
        with pytest.raises(LaunchError, match="does not lead to this machine"):
            meeting(0, server.server_port, store).hold(Node("127.0.0.1", 1), lambda _: None)
    finally:
        server.close()


@pytest.mark.parametrize("answer", ["[1, 2]", "{}", "not JSON", ""])
def test_a_foreign_server_at_the_coordinators_address(answer: str, launch: Launchers) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        nodes = Nodes(launch)
        nodes.address = f"127.0.0.1:{server.server_port}"
        job = nodes.start(1, NAP, "--timeout", "1")
        status = job.wait()
        server.shutdown()
    assert status == 1
    assert "Traceback" not in job.said
    assert f"the server at {nodes.address} is not a key-value store of this job" in job.said


def test_launchers_with_different_secrets(launch: Launchers) -> None:
    nodes = Nodes(launch)
    first = nodes.start(0, NAP, "--timeout", "5")
    second = nodes.start(1, NAP, **{SECRET: "another one of a test"})
    assert second.wait() == 2
    assert (
        "belongs to a job with another TFSPS_SECRET. Another job may have the coordinator's port. If not, set"
        in second.said
    )
    assert first.wait() == 1


def test_launchers_find_their_secret_in_the_home_folder(launch: Launchers) -> None:
    home = launch.folder / "home"
    home.mkdir(mode=0o755)
    nodes = Nodes(launch)
    jobs = [nodes.start(rank, PRINT, HOME=str(home), **{SECRET: ""}) for rank in (0, 1)]
    assert [job.wait() for job in jobs] == [0, 0], jobs[0].said + jobs[1].said
    file = home / ".tf_sparse_ps" / "secret"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    secret = file.read_text()
    assert len(secret) == 64
    # The ranks have another secret, the same on both nodes.
    (of_ranks,) = {json.loads(text)[SECRET] for text in launch.wait_for("env-0", "env-1")}
    assert len(of_ranks) == 64
    assert of_ranks != secret
    file.chmod(0o644)
    job = nodes.start(0, NAP, HOME=str(home), **{SECRET: ""})
    assert job.wait() == 2
    assert f"{file} can be read by others. Run `chmod 600 {file}`. Set TFSPS_SECRET to one random value" in job.said


def test_a_short_secret_is_refused(launch: Launchers) -> None:
    job = launch("-np", "1", program=NAP, **{SECRET: "short"})
    assert job.wait() == 2
    assert "TFSPS_SECRET has 5 characters, but it needs at least 16" in job.said


# --- what launchers report to each other ---


def test_a_launcher_without_a_sign_of_life_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_link, "LOST_S", 0.2)
    store, events = Store(), threading.Event()

    class Events:
        def put(self, cause: Cause) -> None:
            self.cause = cause
            events.set()

    link, events_seen = NodeLink(0, [Node("a", 1), Node("b", 1)], store, "job"), Events()
    link.watch(events_seen)  # type: ignore[arg-type]
    assert events.wait(10)
    assert "the launcher of node 1 (b) has not been heard of" in events_seen.cause.text
    monkeypatch.setattr(node_link, "_ENDING_S", 0.2)
    outcome = link.finish(NodeEnd({0: -15}, [], {}), events_seen.cause, str, queue.SimpleQueue())
    assert outcome == Outcome(1, None, events_seen.cause.text)


def test_the_store_of_another_job_at_that_address_is_not_taken_for_this_ones() -> None:
    store, events = Store(), threading.Event()
    store.put("job", json.dumps({"id": "new"}))

    class Events:
        def put(self, cause: Cause) -> None:
            self.cause = cause
            events.set()

    link, events_seen = NodeLink(1, [Node("a", 1), Node("b", 1)], store, "old"), Events()
    link.watch(events_seen)  # type: ignore[arg-type]
    assert events.wait(10)
    assert "another job has taken its place" in events_seen.cause.text
    assert store.get("alive-1") is None


def test_who_failed_first() -> None:
    ends = {0: NodeEnd({0: 1, 1: -15}, [0], {0: ["zero"]}), 1: NodeEnd({2: -6, 3: 0}, [2], {2: ["two"]})}
    by_time = decide(Cause(0, 0, 1), ends, "")
    assert (by_time.status, by_time.rank, list(by_time.lines)) == (1, 0, ["zero"])
    by_itself = decide(Cause(0, 0, 1), ends, "rank 2 ended with ValueError: mine")
    assert (by_itself.status, by_itself.rank, list(by_itself.lines)) == (134, 2, ["two"])
    assert by_itself.text == "rank 2 (node 1) failed first, killed by SIGABRT"
    # A rank that the launcher ended, or that ended without an error, did not fail first.
    for named in (1, 3):
        decision = decide(Cause(0, 0, 1), ends, f"rank {named} said this")
        assert decision.rank == 0
        assert decision.text.endswith(f"with exit status 1, for this reason: rank {named} said this")
    lost = decide(Cause(1, 2, 9), {0: ends[0]}, "")
    assert lost.text == "rank 2 (node 1) failed first, with exit status 9"
    assert decide(None, ends, "rank 0 said this") == Outcome()
    report = exit_report.preempted(3, "SIGTERM", 143)
    preempted = decide(Cause(0, 1, 143), {0: NodeEnd({0: 143, 1: 143}, [1], {})}, report)
    assert (preempted.status, preempted.rank) == (143, None)
    assert preempted.text == "the job ended with status 143 because rank 3 got SIGTERM"
    assert decide(Cause(0, 0, 1), ends, report).rank == 0  # it failed after it was preempted
    for outcome in (by_time, lost):
        assert Outcome.of(outcome.dump()).told(shown=False) == outcome.told(shown=False)
    assert NodeEnd.of(ends[1].dump()) == ends[1]
