"""Ranks that come to differ while they train, or one of which fails alone, refuse the step together and name why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from launch import ONE_NODE, TWO_NODES, launched

Outcomes = list[dict[str, Any]]
RATE = ["the ranks of this job would train apart", "the learning rate of dense weights: rank 0 has 0.05", "rank 1 has"]
# The ways that run daily, on one node of two ranks. Nightly tests run all ways, on one node and on two, of four ranks.
_DAILY = "rate;rows of rank 0;dense;look-up;interrupted;two batches per step;two writes;rate, dense;control"


def _outcomes(hosts: str, ranks: int, ways: str = "") -> Iterator[Outcomes]:
    with launched("agreement_program.py", ways, hosts=hosts, ranks=ranks) as job:
        assert job.wait() == 0, job.output[-20000:]
        yield [json.loads((job.folder / f"outcomes-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def quick() -> Iterator[Outcomes]:
    yield from _outcomes("localhost:2", 2, _DAILY)


@pytest.fixture(scope="module", params=[ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    yield from _outcomes(request.param, 4)


def _refused(outcomes: Outcomes, way: str, steps: list[int], words: list[str]) -> None:
    """Fails unless all ranks refuse the steps of these numbers, with these words, and make all others."""
    for rank, outcome in enumerate(outcomes):
        outcomes_of_steps = outcome[way]["said"]
        for i, text in enumerate(outcomes_of_steps):
            assert (text != "made") == (i in steps), f"rank {rank}, step {i}: {text}"
        for i in steps:
            for word in words:
                assert word in outcomes_of_steps[i], f"rank {rank}, step {i}: {outcomes_of_steps[i]}"


def _alike(outcomes: Outcomes, way: str, key: str = "state") -> None:
    assert all(outcome[way][key] == outcomes[0][way][key] for outcome in outcomes), [
        outcome[way][key] for outcome in outcomes
    ]


def _check_rate(outcomes: Outcomes, way: str) -> None:
    _refused(outcomes, way, [2], [*RATE, "MetricAverage"])
    assert all(outcome[way]["unmoved"] for outcome in outcomes)
    _alike(outcomes, way)


def _check_rows(outcomes: Outcomes, way: str) -> None:
    words = ["outside of steps to table 'embedding", "BroadcastVariables(root=that rank)", "must be made on all ranks"]
    _refused(outcomes, way, [1], words)
    _alike(outcomes, way)
    _alike(outcomes, way, "end")
    assert all(abs(value - 3.0) < 1.0 for row in outcomes[0][way]["state"][2] for value in row)


def _check_dense(outcomes: Outcomes, way: str) -> None:
    _refused(outcomes, way, [1], ["variable '", "on rank 1 is not that of rank 0", "Weights must be set on all ranks"])
    _alike(outcomes, way)


def _check_look_up(outcomes: Outcomes, way: str) -> None:
    _refused(outcomes, way, [0, 3], ["rank 1: table ", "ids[2,1] = 5000 is not in [0, 16)"])
    _alike(outcomes, way)
    assert all("ids[0,0] = 5000" in outcome[way]["alone"] for outcome in outcomes)


def _check_interrupted(outcomes: Outcomes) -> None:
    _refused(outcomes, "interrupted", [1], ["KeyboardInterrupt"])
    _alike(outcomes, "interrupted")


def _check_two_batches(outcomes: Outcomes) -> None:
    assert all(outcome["two batches per step"]["read"] == [[*range(6)], [*range(6, 10)]] for outcome in outcomes)
    _alike(outcomes, "two batches per step")


@pytest.mark.daily
def test_ranks_that_differ_refuse_the_step_and_name_what_differs(quick: Outcomes) -> None:
    _check_rate(quick, "rate")
    _check_rate(quick, "rate, dense")
    _check_rows(quick, "rows of rank 0")
    _check_dense(quick, "dense")


@pytest.mark.daily
def test_a_look_up_that_fails_on_one_rank_is_refused_by_all(quick: Outcomes) -> None:
    _check_look_up(quick, "look-up")


@pytest.mark.daily
def test_ranks_go_on_after_an_interrupt_within_a_step(quick: Outcomes) -> None:
    _check_interrupted(quick)


@pytest.mark.daily
def test_ranks_resume_after_the_last_batch_of_two_per_step(quick: Outcomes) -> None:
    _check_two_batches(quick)


@pytest.mark.daily
def test_a_rank_waits_for_the_write_that_all_make(quick: Outcomes) -> None:
    assert [outcome["two writes"]["read"] for outcome in quick] == [2.0, 2.0]


@pytest.mark.daily
def test_without_the_comparison_ranks_part(quick: Outcomes) -> None:
    first, second = (outcome["control"] for outcome in quick)
    assert first["said"] == second["said"] == ["made"] * 3
    assert first["state"] != second["state"]


@pytest.mark.parametrize(
    "way",
    [
        "rate",
        "rate, flat",
        "rate, clipped",
        "rate, eager",
        "rate, sharded",
        "rate, dense",
        "rate, dense, eager",
        "rate, dense, buckets",
    ],
)
def test_a_learning_rate_of_one_rank_is_refused(outcomes: Outcomes, way: str) -> None:
    _check_rate(outcomes, way)


def test_an_option_of_one_rank_is_refused_before_the_first_step(outcomes: Outcomes) -> None:
    words = ["ValueError", "`beta_1` of the wrapped optimizer: rank 0 has 0.9, rank 1 has 0.5"]
    _refused(outcomes, "option", [0], words)


@pytest.mark.parametrize("way", ["rows of rank 0", "rows of the last leader"])
def test_rows_that_one_rank_has_written_are_refused_until_they_are_broadcast(outcomes: Outcomes, way: str) -> None:
    _check_rows(outcomes, way)


def test_rows_of_any_root_can_be_broadcast_before_the_first_step(outcomes: Outcomes) -> None:
    _alike(outcomes, "rows before")
    assert outcomes[0]["rows before"]["state"][2] == [[7.0] * 4] * 16


@pytest.mark.parametrize("way", ["dense", "dense, dense"])
def test_dense_weights_that_one_rank_has_set_are_refused_until_they_are_broadcast(outcomes: Outcomes, way: str) -> None:
    _check_dense(outcomes, way)


def test_best_weights_that_one_rank_has_restored_are_refused(outcomes: Outcomes) -> None:
    for outcome in outcomes:
        assert "the ranks of this job would train apart" in outcome["best weights"]["said"][0]


@pytest.mark.parametrize("way", ["look-up", "look-up, flat", "look-up, eager", "look-up, clipped"])
def test_a_look_up_that_fails_on_one_rank_is_refused_in_every_topology(outcomes: Outcomes, way: str) -> None:
    _check_look_up(outcomes, way)


def test_a_look_up_that_failed_without_a_step_is_an_error_of_the_next_one(outcomes: Outcomes) -> None:
    for outcome in outcomes:
        first, second = outcome["look-up without a step"]["said"]
        assert outcome["look-up without a step"]["zeros"] == 0.0
        assert "an earlier lookup of a training step failed, so the step was not made: table " in first
        assert second == "read"


def test_interrupts_within_a_step_of_all_ranks_or_one(outcomes: Outcomes) -> None:
    _check_interrupted(outcomes)
    for rank, outcome in enumerate(outcomes):
        first, second, third, after = outcome["interrupted on rank 1"]["said"]
        assert (first, after) == ("made", "made")
        assert second == ("KeyboardInterrupt: " if rank == 1 else "made")
        assert "on rank 1 is not that of rank 0" in third
    _alike(outcomes, "interrupted on rank 1")


def test_batches_of_steps_of_two_are_not_read_again(outcomes: Outcomes) -> None:
    _check_two_batches(outcomes)


def test_a_rank_waits_for_the_write_that_all_ranks_make(outcomes: Outcomes) -> None:
    assert [outcome["two writes"]["read"] for outcome in outcomes] == [2.0] * 4


def test_ranks_of_a_delayed_schedule_are_compared_where_they_meet(outcomes: Outcomes) -> None:
    _refused(outcomes, "at averages", [5], RATE)


def test_without_the_comparison_they_part(outcomes: Outcomes) -> None:
    assert all(outcome["control"]["said"] == ["made"] * 3 for outcome in outcomes)
    assert outcomes[0]["control"]["state"] != outcomes[1]["control"]["state"]
