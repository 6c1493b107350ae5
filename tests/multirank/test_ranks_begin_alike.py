"""Ranks that begin with different dense weights are made equal before the first step, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from launch import launched

SHARED = ("table", "trained", "frozen", "normalisation", "optimizer")


@pytest.fixture(scope="module")
def job() -> Iterator[tuple[list[dict[str, Any]], str]]:
    with launched("equal_start_program.py", hosts="localhost:2", ranks=2, by_horovodrun=True) as job:
        assert job.wait() == 0, job.output[-20000:]
        yield [json.loads((job.folder / f"outcomes-{rank}.json").read_text()) for rank in range(2)], job.output


@pytest.fixture(scope="module")
def outcomes(job: tuple[list[dict[str, Any]], str]) -> list[dict[str, Any]]:
    return job[0]


@pytest.mark.parametrize("way", ["synchronous", "flat", "server", "delayed", "run_eagerly"])
def test_ranks_of_different_seeds_have_the_same_weights_after_fit(outcomes: list[dict[str, Any]], way: str) -> None:
    first, second = (outcome["fits"][way] for outcome in outcomes)
    for name in SHARED:
        assert first[name] == second[name], name


@pytest.mark.parametrize("way", ["synchronous", "flat", "server", "delayed"])
def test_in_a_graph_they_train_as_if_all_had_begun_with_those_of_rank_0(
    outcomes: list[dict[str, Any]], way: str
) -> None:
    for rank, outcome in enumerate(outcomes):
        alike = outcome["fits"]["alike, delayed" if way == "delayed" else "alike"]
        assert outcome["fits"][way] == alike, f"rank {rank}"


def test_eagerly_a_rank_whose_weights_differed_has_weight_0_in_the_first_step(outcomes: list[dict[str, Any]]) -> None:
    # Gradients of the weight are 1 and 3 on the two ranks, that of the row of each rank's key is 1; the rate is 0.1.
    for rank, outcome in enumerate(outcomes):
        known = [0.0, rank]  # a variable that `also_average` registers, and one that is no weight
        of_all, of_rank_0 = [[0.8, -0.1, -0.1], [0.6, -0.2, -0.2]], [[0.9, -0.1, 0.0], [0.7, -0.2, -0.1]]
        assert outcome["loops"]["graph"] == [*map(pytest.approx, of_all), known]
        assert outcome["loops"]["eager"] == [*map(pytest.approx, of_rank_0), known]
        assert outcome["loops"]["eager, taped"] == [*map(pytest.approx, of_all), known]  # the tape has already averaged


def test_one_rank_alone_may_load_and_all_train_on(outcomes: list[dict[str, Any]]) -> None:
    first, second = (outcome["loaded_on_rank_0"] for outcome in outcomes)
    for name in SHARED:
        assert first["after"][name] == second["after"][name], name
        assert (first["after"][name] == first["before"][name]) == (name == "frozen"), name
    updates = [
        [value for value in state["optimizer"] if isinstance(value, int)] for state in (first["before"], first["after"])
    ]
    assert updates == [[6], [10]]


def test_broadcast_false_refuses_on_all_ranks_and_trains_what_is_alike(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert "rank 1 in" in outcome["refused"]["said"]
        assert "broadcast=False" in outcome["refused"]["said"]
        assert outcome["refused"]["moved"] == []
    assert outcomes[0]["refused"]["alike"]["trained"] == outcomes[1]["refused"]["alike"]["trained"]


def test_one_line_says_what_was_broadcast(job: tuple[list[dict[str, Any]], str]) -> None:
    lines = [line for line in job[1].splitlines() if "they were broadcast" in line]
    assert all("[0]<stderr>" in line for line in lines)
    # The lines are from four schedules, an eager fit, three loops, and the model that rank 0 had loaded.
    assert len(lines) == 9, lines


def test_ranks_that_have_met_are_as_many_as_their_launcher_started(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert outcome["launchers"]["2"] == "2 ranks"
        assert "OMPI_COMM_WORLD_SIZE=3" in outcome["launchers"]["3"]
        assert "hvd.size() is 2" in outcome["launchers"]["3"]


def test_the_seed_of_tables_is_rank_0s(outcomes: list[dict[str, Any]]) -> None:
    assert {number for outcome in outcomes for number in outcome["seeds"].values()} == {outcomes[0]["seeds"]["job"]}
