"""The verdict of ranks on a rank that does not reach an operation."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import eager_operations
from tf_sparse_ps.collectives.key_values import FOUND, KeyValueStore
from tf_sparse_ps.errors import CollectivesError, RankLost
from tf_sparse_ps.failures import ending
from tf_sparse_ps.failures.liveness_check import _CHECK, _SETTLE_S, Answer, LivenessCheck, _Waiting, verdict
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
    monkeypatch.setattr(store, "certain_reason", lambda: "rank 2 ended with ValueError: no such shard")
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


def test_a_rank_that_has_reported_a_lost_rank_begins_no_operation() -> None:
    program_ends = threading.Event()
    program_ends.set()
    count = tf.Variable(0, dtype=tf.int64)
    try:
        ending.tell(RankLost("rank 0: rank 1 is late"), 0, program_ends)
        expected_text = "'ring' did not begin: rank 0: rank 1 is late"
        with pytest.raises(CollectivesError, match=expected_text), eager_operations.running("ring"):
            pytest.fail("the wait has begun")
        with pytest.raises(tf.errors.UnavailableError, match=expected_text):
            _ops.mark(tf.zeros([]), "ring", "begin", count)
        assert "ring" not in [waiting.operation for waiting in _Waiting.all()]
    finally:
        eager_operations.refuse("")
        _ops.refuse_collectives("")


class LocalStore(KeyValueStore):
    """A rank's access to a store in this process. `reaches(method, key)`: whether the request reaches the store."""

    def __init__(self, texts: dict[str, str], reaches: Callable[[str, str], bool]) -> None:
        super().__init__()
        self._texts, self._reaches = texts, reaches

    def _request(self, method: str, key: str, body: bytes | None) -> str | None:
        if not self._reaches(method, key):
            return None
        if body is not None:
            self._texts[key] = body.decode()
        return self._texts.get(key, "")


def found_by_three_ranks(monkeypatch: pytest.MonkeyPatch, *reaches: Callable[[str, str], bool]) -> str:
    """Returns what ranks 0 to 2 report while they wait for rank 3. `reaches`: of each rank, see `LocalStore`."""
    monkeypatch.setenv("TFSPS_TIMEOUT_S", "3")
    monkeypatch.setattr(ending, "tell", lambda *_: None)
    waiting = _Waiting("ring", time.monotonic_ns())
    monkeypatch.setattr(_Waiting, "all", lambda: [waiting])
    texts: dict[str, str] = {}
    checks = []
    try:
        for rank in range(3):
            collectives: Any = types.SimpleNamespace(rank=rank, size=4, cross_rank=rank, local_rank=0, local_size=1)
            checks.append(LivenessCheck(collectives, LocalStore(texts, reaches[rank]), lambda: 7, lambda: ()))
        deadline = time.monotonic() + 20
        while FOUND not in texts and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        for check in checks:
            check.stop()
    return texts[FOUND]


def always(method: str, key: str) -> bool:
    """Lets a request reach the store."""
    return True


def test_a_rank_that_starts_a_check_later_than_the_others_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy rank may look before there is a check, and start its own when the others have agreed on one."""
    has_started = False

    def late(method: str, key: str) -> bool:
        nonlocal has_started
        if (method, key) == ("PUT", _CHECK):
            time.sleep(3 * _SETTLE_S)
            has_started = True
        return key != _CHECK or has_started

    found = found_by_three_ranks(monkeypatch, always, always, late)
    assert found.startswith("3 of 4 ranks have waited 3 s in operation 'ring' of step 7 ")
    assert found.endswith(" for rank 3, which does not answer: it is stopped, dead or unreachable")


def test_a_check_starts_when_the_store_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that serves the store may be busy for longer than a request waits, which is 1 s."""
    begin = time.monotonic()

    def silent(method: str, key: str) -> bool:
        return time.monotonic() > begin + 1.5

    found = found_by_three_ranks(monkeypatch, silent, silent, silent)
    assert found.startswith("3 of 4 ranks have waited 3 s in operation 'ring' of step 7 ")
