"""The environment of ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launcher import LONGEST_S, Launchers

from tf_sparse_ps.collectives import launchers
from tf_sparse_ps.collectives.key_values import KeyValueStore
from tf_sparse_ps.launch import environment
from tf_sparse_ps.launch.meeting import Node, interface_of

PRINT = 'note(f"env-{rank}", json.dumps(dict(os.environ)))'


def environments(folder: Path, size: int) -> list[dict[str, str]]:
    return [json.loads((folder / f"env-{rank}").read_text()) for rank in range(size)]


def test_ranks_of_nodes_with_different_numbers() -> None:
    placements = environment.placements([Node("a", 1), Node("b", 3), Node("c", 2)])
    assert [placement.rank for placement in placements] == [0, 1, 2, 3, 4, 5]
    assert {placement.size for placement in placements} == {6}
    assert [placement.node_rank for placement in placements] == [0, 1, 1, 1, 2, 2]
    assert [(placement.local_rank, placement.local_size) for placement in placements] == [
        (0, 1),
        (0, 3),
        (1, 3),
        (2, 3),
        (0, 2),
        (1, 2),
    ]
    assert [(placement.cross_rank, placement.cross_size) for placement in placements] == [
        (0, 3),
        (1, 3),
        (0, 2),
        (0, 1),
        (2, 3),
        (1, 2),
    ]


def test_two_nodes_on_one_machine_have_two_names() -> None:
    assert environment.host_names([Node("a", 1), Node("b", 1)]) == ["a", "b"]
    assert environment.host_names([Node("a", 1), Node("b", 1), Node("a", 1)]) == ["a-0", "b", "a-2"]


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("127.0.1.1") == "lo"
    assert interface_of("192.0.2.1") is None  # an address for documentation, which no interface has


def test_threads_are_divided_unless_they_are_set() -> None:
    cores = len(os.sched_getaffinity(0))
    assert "OMP_NUM_THREADS" not in environment.common({}, 1)
    several = environment.common({"TF_NUM_INTRAOP_THREADS": "7"}, 2)
    assert several["OMP_NUM_THREADS"] == str(max(1, cores // 2))
    assert several["TF_NUM_INTRAOP_THREADS"] == "7"
    assert environment.common({"TF_CPP_MIN_LOG_LEVEL": "0"}, 1)["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert environment.common({}, 1)["TF_CPP_MIN_LOG_LEVEL"] == "2"


def test_ranks_of_tensorflow(launch: Launchers) -> None:
    job = launch("-np", "3", "--collectives", "tensorflow", program=PRINT, OMP_NUM_THREADS="5", MINE="x")
    assert job.wait() == 0, job.said
    environments_of_ranks = environments(launch.folder, 3)
    for rank, variables in enumerate(environments_of_ranks):
        assert {variables[f"TFSPS_{name}"] for name in ("SIZE", "LOCAL_SIZE")} == {"3"}
        assert {variables[f"TFSPS_{name}"] for name in ("RANK", "LOCAL_RANK")} == {str(rank)}
        assert variables["TFSPS_NODE_RANK"] == "0"
        assert (variables["OMP_NUM_THREADS"], variables["MINE"]) == ("5", "x")
        assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": rank}
        assert not any(name.startswith("HOROVOD_") for name in variables)
    assert len({variables["TFSPS_KEY_VALUES"] for variables in environments_of_ranks}) == 1
    (cluster,) = {json.dumps(json.loads(variables["TF_CONFIG"])["cluster"]) for variables in environments_of_ranks}
    workers = json.loads(cluster)["worker"]
    assert len(set(workers)) == 3
    assert all(worker.startswith("127.0.0.1:") for worker in workers)


def test_ranks_of_horovod(launch: Launchers) -> None:
    pytest.importorskip("horovod")
    job = launch("-np", "2", "--collectives", "horovod", program=PRINT)
    assert job.wait() == 0, job.said
    for rank, variables in enumerate(environments(launch.folder, 2)):
        expected = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2, "CROSS_RANK": 0, "CROSS_SIZE": 1}
        assert {name: int(variables[f"HOROVOD_{name}"]) for name in expected} == expected
        assert variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
        assert variables["HOROVOD_GLOO_RENDEZVOUS_PORT"].isdigit()
        assert variables["HOROVOD_GLOO_IFACE"] == "lo"
        assert variables["HOROVOD_CONTROLLER"] == variables["HOROVOD_CPU_OPERATIONS"] == "gloo"
        assert (variables["TFSPS_RANK"], variables["TFSPS_SIZE"]) == (str(rank), "2")
        assert "TF_CONFIG" not in variables


def test_ranks_share_a_store_that_is_new_in_every_job(launch: Launchers) -> None:
    program = """
from tf_sparse_ps.collectives.key_values import KeyValueStore
store = KeyValueStore.of_launcher()
note(f"first-{rank}-" + os.environ["RUN"], store.read("mark"))
wait_for(f"first-{1 - rank}-" + os.environ["RUN"])
store.write("mark", "from a rank") if rank else None
while not store.read("mark"):
    time.sleep(0.01)
"""
    for run in "ab":
        assert launch("-np", "2", program=program, RUN=run).wait(LONGEST_S) == 0
        assert launch.wait_for(f"first-0-{run}", f"first-1-{run}") == ["", ""]


def test_the_store_of_this_launcher_comes_before_horovods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "host-h")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", "1")
    monkeypatch.delenv("TFSPS_KEY_VALUES", raising=False)
    assert KeyValueStore.of_launcher()._address == ("host-h", 1)
    monkeypatch.setenv("TFSPS_KEY_VALUES", "host-t:2")
    assert KeyValueStore.of_launcher()._address == ("host-t", 2)
    monkeypatch.setenv("TFSPS_KEY_VALUES", "nonsense")
    assert KeyValueStore.of_launcher()._address == ("host-h", 1)


def test_a_horovod_job_of_this_launcher_is_one_of_horovod_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TFSPS_SIZE", "TFSPS_LOCAL_SIZE", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TFSPS_SIZE", "4")
    monkeypatch.setenv("TFSPS_LOCAL_SIZE", "2")
    launch_found = launchers.find()
    assert launch_found is not None
    assert (launch_found.by, launch_found.size, launch_found.on_one_machine) == ("tf-sparse-ps run", 4, False)
    assert launchers.find_horovodrun() is None
    monkeypatch.setenv("HOROVOD_SIZE", "4")
    assert launchers.find_horovodrun() is None, "without a rank it is no job of Horovod's"
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "4")
    by_horovod = launchers.find_horovodrun()
    assert by_horovod is not None
    assert (by_horovod.by, by_horovod.on_one_machine) == ("horovodrun", True)
    again = launchers.find()
    assert again is not None
    assert again.by == "tf-sparse-ps run"
