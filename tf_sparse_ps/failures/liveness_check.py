"""`LivenessCheck`: finds out which rank is missing, before this process has waited for it for TFSPS_TIMEOUT_S.

An operation starts when all ranks have reached it, and does not name the ranks that have not. So each rank has a thread
that knows the operations its rank waits in, in graphs and outside of them. Shortly before a wait times out, the thread
starts a liveness check in the job's key-value store. The threads of all running processes answer with their step, their
operations, their activity, the time of their last progress, and the states of the other processes of their node. The
ranks that are not in the caller's operation are the ones that it waits for.

If one of these has made progress since the wait began, the wait continues until TFSPS_TIMEOUT_S after that. Otherwise
the caller reports the missing ranks, and what they are doing, to all ranks.

If the store says why another rank has ended or is missing, no rank waits on. Its thread reports that at the second
look.

A rank looks at the key-value store only if its operations have not changed since its last look, so that ordinary steps
cost nothing.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives, eager_operations
from tf_sparse_ps.collectives.eager_operations import Wait
from tf_sparse_ps.collectives.key_values import FOUND, KeyValueStore
from tf_sparse_ps.collectives.timeout import timeout_s
from tf_sparse_ps.errors import RankDied, RankLost, RankStopped
from tf_sparse_ps.failures import source_line
from tf_sparse_ps.failures.members import Member, Members, name_of
from tf_sparse_ps.failures.node_watch import NodeWatch
from tf_sparse_ps.failures.watcher import Watcher
from tf_sparse_ps.node import activity

_CHECK = "liveness_check"
_POLL_S = 0.05  # a look at a process costs 10 us
_LONGEST_LOOK_S = 5.0
_LOOKS_PER_S = 40.0  # the most looks of all ranks together, because one process serves the store
_SETTLE_S = 0.3  # the time after which ranks that call simultaneously see whose call was the last
_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of a rank to a liveness check.

    Attributes:
      step: The step that the rank is making.
      operations: The operations that the rank is in.
      others: The states of the other processes of its node, by rank.
      doing: The innermost activity of the rank, in words that follow "which is"; "" without one.
      line: The line of the user's program that the rank executes; "" if it is not known.
      idle_s: The seconds since the rank last made progress.
    """

    step: int
    operations: Sequence[str]
    others: Mapping[int, str]
    doing: str = ""
    line: str = ""
    idle_s: float = float("inf")

    @classmethod
    def of(cls, text: str) -> Answer:
        """Returns the answer that `text` represents."""
        fields = json.loads(text)
        return cls(**fields | {"others": {int(rank): state for rank, state in fields["others"].items()}})

    @property
    def text(self) -> str:
        """The answer as a text, for the key-value store."""
        return json.dumps(dataclasses.asdict(self))


def missing(
    operation: str, answers: Mapping[int, Answer], size: int, awaited: Collection[int] | None = None
) -> list[int]:
    """Returns the ranks that the caller waits for.

    Args:
      operation: The operation that the caller is in.
      answers: The answers by rank.
      size: The number of ranks.
      awaited: The awaited ranks of an operation in which not all ranks take part; None: all ranks take part.
    """
    if awaited is not None:
        return sorted(awaited)
    return [rank for rank in range(size) if rank not in answers or operation not in answers[rank].operations]


def verdict(
    operation: str,
    seconds: float,
    step: int,
    answers: Mapping[int, Answer],
    members: Sequence[Member | None],
    awaited: Collection[int] | None = None,
    left: Collection[int] = (),
) -> str:
    """Returns the message that names the missing ranks and what they are doing.

    Args:
      operation: The operation that the caller is in.
      seconds: The time that the caller has waited.
      step: The step that the caller is making.
      answers: The answers by rank.
      members: The processes of all ranks.
      awaited: See `missing`.
      left: The missing ranks whose programs have ended without an error.
    """
    missing_ranks = missing(operation, answers, len(members), awaited)
    waiting = {rank: answer for rank, answer in answers.items() if operation in answer.operations}
    begin = (
        f"{len(waiting)} of {len(members)} ranks have waited {seconds:.0f} s in operation '{operation}' of step {step}"
    )
    if line := next((answer.line for answer in waiting.values() if answer.line), ""):
        begin += f" ({line})"
    if not missing_ranks:
        return f"{begin}: all ranks have reached it, so the network or the library that connects the ranks is stuck"
    named = [f"{name_of(r, members[r])}, {_describe(r, answers, r in left)}" for r in missing_ranks]
    more = f"; and for {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"{begin} for " + "; for ".join(named[:_MOST_NAMED]) + more


def _describe(rank: int, answers: Mapping[int, Answer], has_left: bool) -> str:
    """Returns a relative clause that describes what a missing rank is doing."""
    states = [answer.others[rank] for other, answer in answers.items() if other != rank and rank in answer.others]
    state = f"which is {states[0]}" if states else ""
    if rank not in answers:
        if has_left:
            return "which has reached the end of its program"
        return state or "which does not answer: it is stopped, dead or unreachable"
    answer = answers[rank]
    where = " and ".join(f"'{operation}'" for operation in answer.operations)
    doing = f"in operation {where}" if where else "in no operation between ranks"
    doing += f", {answer.doing}" * bool(answer.doing) + f", at {answer.line}" * bool(answer.line)
    return f"{state or 'which is alive'}, in step {answer.step}, {doing}"


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """An operation that this process waits in.

    Attributes:
      operation: The name of the operation.
      begin_ns: The time at which the wait began, by the monotonic clock.
      wait: The wait, if the operation runs outside of graphs; else None.
    """

    operation: str
    begin_ns: int
    wait: Wait | None = None

    @classmethod
    def all(cls) -> list[_Waiting]:
        """Returns all operations that this process waits in."""
        in_graphs = [cls(name, begin) for name, begin, _ in _ops.in_flight()]
        return in_graphs + [cls(wait.operation, wait.begin_ns, wait) for wait in eager_operations.waits()]

    def __str__(self) -> str:
        return f"{self.seconds():.0f} s in operation '{self.operation}'"

    @property
    def awaited(self) -> tuple[int, ...] | None:
        """See `Wait`."""
        return None if self.wait is None else self.wait.awaited

    def seconds(self) -> float:
        """Returns the duration of the wait."""
        return (time.monotonic_ns() - self.begin_ns) * 1e-9

    def silent_s(self) -> float:
        """Returns the time since the last known progress of the awaited ranks."""
        return (time.monotonic_ns() - eager_operations.begin_of_silence_ns(self.begin_ns)) * 1e-9

    def is_running(self) -> bool:
        """Returns whether the wait has not ended."""
        return self in _Waiting.all()


class LivenessCheck(Watcher):
    """A thread that starts liveness checks and answers those of other ranks.

    If no `NodeWatch` watches the other ranks of the node, because no table is trained, the thread also watches whether
    their processes are alive.
    """

    def __init__(
        self,
        collectives: Collectives,
        key_values: KeyValueStore,
        step: Callable[[], int],
        watches: Callable[[], Collection[NodeWatch]],
    ) -> None:
        """Starts the thread, without waiting for other ranks.

        Args:
          collectives: The collectives of all ranks.
          key_values: The job's key-value store.
          step: Returns the step that this process is making. The thread calls it.
          watches: Returns the `NodeWatch` objects of this process.
        """
        super().__init__("tsps-liveness-check", collectives.rank, key_values)
        self._size, self._step, self._watches = collectives.size, step, watches
        self._members = Members(collectives, key_values)
        self._timeout_s = timeout_s()
        self._look_s = max(min(self._timeout_s / 8, _LONGEST_LOOK_S), self._size / _LOOKS_PER_S)
        # A check starts this long before a wait times out, so that all ranks have answered by then.
        self._lead_s = min(4 * self._look_s + 1.0, 0.75 * self._timeout_s)
        self._call = ""  # the liveness check in progress
        self._changed_ns = time.monotonic_ns()  # the time of the last look that saw operations begin or end
        self._reason = ""  # why another rank has ended, as of the last look
        self._thread.start()

    def leave(self) -> None:
        """Records that this rank ends without an error, so that the others do not report its end."""
        self._members.leave()

    def stopped(self) -> RankStopped | None:
        """Returns the error for a process of this node that is stopped, or None."""
        rank = self._members.stopped()
        if rank is None:
            return None
        name = name_of(rank, self._members.get(rank))
        return RankStopped(f"rank {self._rank}: {name} is stopped; rank {self._rank} is in step {self._step()}")

    def _run(self) -> None:
        before: list[_Waiting] = []
        next_look = time.monotonic() + self._look_s
        next_find, find_s = 0.0, _POLL_S
        while not self._stop.wait(self._look_s if self._watches() else _POLL_S):
            watches = self._watches()
            if not watches:
                if time.monotonic() > next_find:  # soon, because a rank may die in its first steps
                    self._members.find_near()
                    find_s = min(2 * find_s, self._look_s)
                    next_find = time.monotonic() + find_s
                if (dead := self._members.dead()) is not None:
                    self._report_death(dead)
                    return
            if time.monotonic() < next_look:
                continue
            next_look = time.monotonic() + self._look_s
            now = _Waiting.all()
            if now != before:
                self._changed_ns = time.monotonic_ns()
            # During a check, the answer is kept up to date.
            if (now == before or self._call) and not any(watch.found for watch in watches):
                self._look(now)
            before = now

    def _look(self, now: list[_Waiting]) -> None:
        self._members.find_near()
        self._call = self._key_values.read(_CHECK)
        if self._call:
            self._answer(self._call)
        if now:
            if self._has_lost_rank():
                return
            waiting = min(now, key=lambda candidate: candidate.begin_ns)
            if waiting.silent_s() > self._timeout_s - self._lead_s:
                self._ask(waiting)

    def _has_lost_rank(self) -> bool:
        """Returns whether a rank has ended or is missing, and reports it at the second look.

        The operation may not fail by itself: it may wait for a rank that waits for the lost one. Until the second look,
        it can end with an error of its own. A keeper of the store that does not answer may only be late.
        """
        before, self._reason = self._reason, self._key_values.certain_reason()
        lost = before != "" and self._reason != ""
        if lost:
            self._tell(RankLost, self._reason)
        return lost

    def _report_death(self, dead: int) -> None:
        if reason := self._key_values.reason():
            self._tell(RankLost, reason)
        else:
            name = name_of(dead, self._members.get(dead))
            self._tell(RankDied, f"{name} died; rank {self._rank} is in step {self._step()}")

    def _answer(self, call: str) -> None:
        operations = [waiting.operation for waiting in _Waiting.all()]
        idle_s = (time.monotonic_ns() - max(activity.last_progress_ns(), self._changed_ns)) * 1e-9
        answer = Answer(
            self._step(),
            operations,
            self._members.states(),
            activity.current(),
            source_line.of_main_thread(),
            idle_s,
        )
        self._key_values.write(f"{call}.{self._rank}", answer.text)

    def _ask(self, waiting: _Waiting) -> None:
        """Starts or joins a liveness check, and reports the missing ranks if the wait times out."""
        own_call = f"{_CHECK}.{self._rank}.{time.monotonic_ns()}"
        call = self._key_values.read(_CHECK) or self._start(own_call)
        self._answer(call)
        while waiting.silent_s() < self._timeout_s and waiting.is_running():
            if self._stop.wait(min(self._look_s, max(self._timeout_s - waiting.silent_s(), _POLL_S))):
                return
            # A slow rank may have started another check after _SETTLE_S. All ranks answer the last one.
            call = self._key_values.read(_CHECK) or call or self._start(own_call)
            if self._others_progressed(call):
                return
            self._answer(call)
        if call == own_call:
            if waiting.is_running():
                # The last answer of a rank may be as old as its last look. After this wait, all answers are new enough.
                self._stop.wait(self._look_s)
                self._judge(call, waiting)
            self._key_values.write(_CHECK, "")
        text = ""
        next_answer = time.monotonic()
        while not text and waiting.is_running() and waiting.silent_s() < self._timeout_s + self._lead_s:
            if self._others_progressed(call):
                return
            if call != own_call and time.monotonic() > next_answer:
                self._answer(call)
                next_answer = time.monotonic() + self._look_s
            text = self._key_values.reason()
            if self._stop.wait(0 if text else _POLL_S * 4):
                return
        if waiting.is_running() and not any(watch.found for watch in self._watches()):
            text = text or (
                f"waited {waiting} of step {self._step()} for other ranks. No rank has reported which one is missing. "
                "Look at the output of all ranks"
            )
            if waiting.wait is not None:
                waiting.wait.reason = text
            self._tell(RankLost, text)

    def _start(self, own_call: str) -> str:
        """Starts a liveness check. Returns the check in progress, which may be another rank's; "" without an answer."""
        self._key_values.write(_CHECK, own_call)
        self._stop.wait(_SETTLE_S)
        return self._key_values.read(_CHECK)

    def _others_progressed(self, call: str) -> bool:
        """Returns whether a check has found progress of the awaited ranks, and records when they made it."""
        if idle_s := self._key_values.read(f"{call}.progress"):
            eager_operations.others_progressed(time.monotonic_ns() - int(float(idle_s) * 1e9))
        return idle_s != ""

    def _judge(self, call: str, waiting: _Waiting) -> None:
        """Reports to all ranks that the missing ranks make progress, or else which ranks are missing."""
        texts = {rank: self._key_values.read(f"{call}.{rank}") for rank in range(self._size)}
        answers = {rank: Answer.of(text) for rank, text in texts.items() if text}
        missing_ranks = missing(waiting.operation, answers, self._size, waiting.awaited)
        idle_s = min((answers[rank].idle_s for rank in missing_ranks if rank in answers), default=float("inf"))
        if idle_s < self._timeout_s - self._look_s:
            self._key_values.write(f"{call}.progress", repr(idle_s))
            return
        if waiting.is_running():
            members = [self._members.get(rank) for rank in range(self._size)]
            left = [rank for rank in missing_ranks if rank not in answers and self._members.has_left(rank)]
            args = (waiting.operation, waiting.seconds(), self._step(), answers, members, waiting.awaited, left)
            self._key_values.write_first(FOUND, verdict(*args))
