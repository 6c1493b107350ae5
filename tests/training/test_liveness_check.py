"""The verdict of ranks on a rank that does not reach an operation."""

from __future__ import annotations

import time
import types
from typing import Any

import pytest

from tf_sparse_ps.collectives.key_values import KeyValueStore
from tf_sparse_ps.failures import ending
from tf_sparse_ps.failures.liveness_check import Answer, LivenessCheck, _Waiting, verdict
from tf_sparse_ps.failures.members import Member

MEMBERS = [Member(100 + rank, rank // 2, "pid:[1]") for rank in range(4)]
BEGIN = "3 of 4 ranks have waited 5 s in operation 'ring' of step 7"


def answers(*ranks: int, others: dict[int, dict[int, str]] | None = None) -> dict[int, Answer]:
    """Returns the answers of ranks that are in the operation. `others`: the ranks that each of them observes."""
    return {rank: Answer(7, ["ring", "dense"], (others or {}).get(rank, {})) for rank in ranks}


def test_an_answer_survives_being_sent() -> None:
    answer = Answer(3, ["a", "b"], {1: "running", 12: "gone"})
    assert Answer.of(answer.text) == answer


def test_a_rank_whose_neighbour_sees_it() -> None:
    text = verdict("ring", 5.2, 7, answers(0, 1, 3, others={3: {2: "stopped by a signal"}}), MEMBERS)
    assert text == f"{BEGIN} for rank 2 of node 1 (pid 102), which is stopped by a signal"


def test_a_rank_that_nobody_sees() -> None:
    text = verdict("ring", 5, 7, answers(0, 1, 3), MEMBERS)
    assert text == f"{BEGIN} for rank 2 of node 1 (pid 102), which does not answer: it is stopped, dead or unreachable"


@pytest.mark.parametrize(
    ("operations", "where"), [([], "in no operation between ranks"), (["exit"], "in operation 'exit'")]
)
def test_a_rank_that_is_elsewhere(operations: list[str], where: str) -> None:
    received = answers(0, 1, 3, others={3: {2: "running"}}) | {2: Answer(6, operations, {3: "alive"})}
    assert verdict("ring", 5, 7, received, MEMBERS) == (
        f"{BEGIN} for rank 2 of node 1 (pid 102), which is running, in step 6, {where}"
    )


def test_a_rank_that_is_elsewhere_and_alone_on_its_node() -> None:
    received = answers(0, 1, 3) | {2: Answer(6, [], {})}
    assert "rank 2 of node 1 (pid 102), which is alive, in step 6, in no operation" in verdict(
        "ring", 5, 7, received, MEMBERS
    )


def test_nobody_is_missing() -> None:
    text = verdict("ring", 5, 7, answers(0, 1, 2, 3), MEMBERS)
    assert text.startswith("4 of 4 ranks have waited 5 s in operation 'ring' of step 7: all ranks have reached it")


def test_three_are_named_and_the_others_counted() -> None:
    members = [Member(100 + rank, 0, "pid:[1]") for rank in range(7)]
    text = verdict("ring", 5, 7, answers(0, 1), members)
    assert text.count("(pid ") == 3
    assert text.endswith("; and for 2 more")


def test_a_wait_ends_when_another_rank_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "tell", lambda *_: None)
    store = KeyValueStore()
    monkeypatch.setattr(store, "reason", lambda: "rank 2 ended with ValueError: no such shard")
    collectives: Any = types.SimpleNamespace(rank=0, size=3, cross_rank=0, local_rank=0, local_size=1)
    check = LivenessCheck(collectives, store, lambda: 7, lambda: ())
    try:
        check._look([])
        check._look([])
        assert check.found is None, "this rank waits for no other"
        check._look([_Waiting("ring", time.monotonic_ns())])
        assert check.found is None, "the operation may still fail with an error of its own"
        check._look([_Waiting("ring", time.monotonic_ns())])
        assert str(check.found) == "rank 0: rank 2 ended with ValueError: no such shard"
    finally:
        check.stop()
