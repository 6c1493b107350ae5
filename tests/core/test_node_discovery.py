"""The ranks that share a node, and jobs that are refused."""

from __future__ import annotations

import dataclasses

import pytest

from tf_sparse_ps.node import node_discovery
from tf_sparse_ps.node.node_discovery import Location


def place(host: str, local_rank: int, machine: str = "m", address: str = "10.0.0.1") -> Location:
    return Location(host, local_rank, machine, host, address)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([place("a", 0)], [0]),
        ([place("a", 0), place("a", 1), place("b", 0)], [0, 0, 1]),
        ([place("a", 0), place("b", 0), place("a", 1), place("b", 1)], [0, 1, 0, 1]),
    ],
)
def test_ranks_of_a_host_share_a_node(ranks: list[Location], expected: list[int]) -> None:
    assert node_discovery.nodes(ranks) == expected


def test_two_machines_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"host 'a' have the local ranks \[0, 0\]. Expected: \[0, 1\]"):
        node_discovery.nodes([place("a", 0, "m"), place("a", 0, "n")])


def test_a_name_that_leads_back_to_its_machine_is_refused_when_there_are_others() -> None:
    loop = place("b", 0, "n", "127.0.1.1")
    with pytest.raises(ValueError, match=r"rank 1 the hostname 'b' resolves to 127.0.1.1.*etc/hosts"):
        node_discovery.nodes([place("a", 0), loop])
    assert node_discovery.nodes([place("a", 0), dataclasses.replace(loop, machine="m")]) == [0, 1]
    assert node_discovery.nodes([place("a", 0), dataclasses.replace(loop, address="")]) == [0, 1]


def test_ranks_of_a_host_with_different_folders_of_tables_are_refused() -> None:
    location_0, location_1 = (
        dataclasses.replace(place("a", local_rank), folder=folder, same_folder=folder)
        for local_rank, folder in enumerate(("/x", "/y"))
    )
    with pytest.raises(ValueError, match=r"host 'a' .* TFSPS_DIR differs between them: '/x' on rank 0, '/y' on rank 1"):
        node_discovery.nodes([location_0, location_1])
    same = dataclasses.replace(location_1, same_folder=location_0.same_folder)  # another path to the same folder
    assert node_discovery.nodes([location_0, same]) == [0, 0]


def test_this_process_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_HOSTNAME", "node-7")
    assert node_discovery.mine(3).host == "node-7"
    assert node_discovery.mine(3).local_rank == 3
    assert len(node_discovery.mine(0).machine) == 36
