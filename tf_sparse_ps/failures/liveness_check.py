"""Finds out which rank does not come, when this process waits for others longer than ranks wait for each other.

Operations begin when all ranks have come, and name nobody who has not. So a thread of every rank knows for what its
rank waits, in graphs and outside of them. Before the rank has waited for TFSPS_TIMEOUT_S the thread starts a liveness
check in the job's key-value store. All ranks whose processes run answer, from their threads: their step, their
operations, what they are doing, when they last made progress, and what they see of the other processes of their node.
Who is not in the operation is whom the caller waits for.

If one of those has made progress since the wait began, the wait goes on, until TFSPS_TIMEOUT_S after that. Else the
caller says to all for whom it waits, and what these ranks are doing.

A rank looks at the key-value store only when nothing has changed for it since the last look, so ordinary steps cost
nothing.
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
_LOOKS_PER_S = 40.0  # of all ranks together, at the most: the launcher is one process
_SETTLE_S = 0.3  # in which ranks that call at the same moment see who was last
_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a rank says of itself.

    Attributes:
      step: That it is making.
      operations: That it is in.
      others: The states of the processes of its node, by rank.
      doing: Its innermost activity, in words that follow "which is"; "": none.
      line: Of the user's program, where it is; "": none.
      idle_s: Seconds since it last made progress.
    """

    step: int
    operations: Sequence[str]
    others: Mapping[int, str]
    doing: str = ""
    line: str = ""
    idle_s: float = float("inf")

    @classmethod
    def of(cls, text: str) -> Answer:
        """The inverse of `text`."""
        found = json.loads(text)
        return cls(**found | {"others": {int(rank): state for rank, state in found["others"].items()}})

    @property
    def text(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))


def missing(
    operation: str, answers: Mapping[int, Answer], size: int, awaited: Collection[int] | None = None
) -> list[int]:
    """The ranks that are waited for.

    Args:
      operation: That the caller is in.
      answers: By rank.
      size: Number of ranks.
      awaited: By an operation that is not of all ranks.
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
    """Who is waited for, in words.

    Args:
      operation: That the caller is in.
      seconds: How long.
      step: That it is making.
      answers: By rank.
      members: All ranks.
      awaited: As of `missing`.
      left: Ranks that have come to their end.
    """
    wanted = missing(operation, answers, len(members), awaited)
    there = {rank: answer for rank, answer in answers.items() if operation in answer.operations}
    begin = (
        f"{len(there)} of {len(members)} ranks have waited {seconds:.0f} s in operation '{operation}' of step {step}"
    )
    if line := next((answer.line for answer in there.values() if answer.line), ""):
        begin += f" ({line})"
    if not wanted:
        return f"{begin}: all have come, so the network, or what connects them in one, does not go on"
    named = [f"{name_of(r, members[r])}, {_why(r, answers, r in left)}" for r in wanted]
    more = f"; and for {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"{begin} for " + "; for ".join(named[:_MOST_NAMED]) + more


def _why(rank: int, answers: Mapping[int, Answer], has_left: bool) -> str:
    states = [answer.others[rank] for other, answer in answers.items() if other != rank and rank in answer.others]
    state = f"which is {states[0]}" if states else ""
    if rank not in answers:
        if has_left:
            return "which has come to its end"
        return state or "which does not answer: it is stopped, gone or cut off"
    answer = answers[rank]
    where = " and ".join(f"'{one}'" for one in answer.operations)
    doing = f"in operation {where}" if where else "in no operation between ranks"
    doing += f", {answer.doing}" * bool(answer.doing) + f", at {answer.line}" * bool(answer.line)
    return f"{state or 'which is alive'}, in step {answer.step}, {doing}"


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """What this process waits for longest.

    Attributes:
      operation: Its name.
      begin_ns: Since then, by the monotonic clock.
      wait: Of an operation outside of graphs.
    """

    operation: str
    begin_ns: int
    wait: Wait | None = None

    @classmethod
    def all(cls) -> list[_Waiting]:
        """Those of this process."""
        found = [cls(name, begin) for name, begin, _ in _ops.in_flight()]
        return found + [cls(one.operation, one.begin_ns, one) for one in eager_operations.waits()]

    def __str__(self) -> str:
        return f"{self.seconds():.0f} s in operation '{self.operation}'"

    @property
    def awaited(self) -> tuple[int, ...] | None:
        """See `Wait`."""
        return None if self.wait is None else self.wait.awaited

    def seconds(self) -> float:
        """For how long."""
        return (time.monotonic_ns() - self.begin_ns) * 1e-9

    def silent_s(self) -> float:
        """For how long it has heard nothing of those that it waits for."""
        return (time.monotonic_ns() - eager_operations.begin_of_silence_ns(self.begin_ns)) * 1e-9

    def goes_on(self) -> bool:
        """Whether it has not ended."""
        return self in _Waiting.all()


class LivenessCheck(Watcher):
    """Answers when the liveness is called, and calls it.

    Where no `NodeWatch` sees the other ranks of the node, because there are no tables, it looks whether their processes
    live, too.
    """

    def __init__(
        self,
        collectives: Collectives,
        key_values: KeyValueStore,
        step: Callable[[], int],
        watches: Callable[[], Collection[NodeWatch]],
    ) -> None:
        """Begins. Waits for no other rank.

        Args:
          collectives: Of all ranks.
          key_values: Of the job.
          step: Says which step this process is making; called from a thread.
          watches: Those of the rank, as of now.
        """
        super().__init__("tsps-liveness-check", collectives.rank, key_values)
        self._size, self._step, self._watches = collectives.size, step, watches
        self._members = Members(collectives, key_values)
        self._timeout_s = timeout_s()
        self._look_s = max(min(self._timeout_s / 8, _LONGEST_LOOK_S), self._size / _LOOKS_PER_S)
        # How long before the time is over the liveness is called, so that all have looked by then.
        self._lead_s = min(4 * self._look_s + 1.0, 0.75 * self._timeout_s)
        self._call = ""  # that is open
        self._changed_ns = time.monotonic_ns()  # when operations in graphs have begun or ended, as far as was seen
        self._thread.start()

    def leave(self) -> None:
        """Tells the other ranks that this one needs them no more."""
        self._members.leave()

    def stopped(self) -> RankStopped | None:
        """What to raise for a process of this node that is stopped, if there is one."""
        rank = self._members.stopped()
        if rank is None:
            return None
        name = name_of(rank, self._members.get(rank))
        return RankStopped(f"rank {self._rank}: {name} is stopped; rank {self._rank} is in step {self._step()}")

    def _run(self) -> None:
        before: list[_Waiting] = []
        next_look = time.monotonic() + self._look_s
        while not self._stop.wait(self._look_s if self._watches() else _POLL_S):
            watches = self._watches()
            if not watches and (dead := self._members.dead()) is not None:
                self._report_death(dead)
                return
            if time.monotonic() < next_look:
                continue
            next_look = time.monotonic() + self._look_s
            now = _Waiting.all()
            if now != before:
                self._changed_ns = time.monotonic_ns()
            # While a call is open the answer is kept up to date.
            if (now == before or self._call) and not any(one.found for one in watches):
                self._look(now)
            before = now

    def _look(self, now: list[_Waiting]) -> None:
        self._members.find_near()
        self._call = self._key_values.read(_CHECK)
        if self._call:
            self._answer(self._call)
        if now:
            waiting = min(now, key=lambda one: one.begin_ns)
            if waiting.silent_s() > self._timeout_s - self._lead_s:
                self._ask(waiting)

    def _report_death(self, dead: int) -> None:
        if said := self._key_values.reason():
            self._tell(RankLost, said)
        else:
            name = name_of(dead, self._members.get(dead))
            self._tell(RankDied, f"{name} died; rank {self._rank} is in step {self._step()}")

    def _answer(self, call: str) -> None:
        operations = [one.operation for one in _Waiting.all()]
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
        """Finds out, with the others, whom this rank waits for, unless they come before the time is over."""
        call = self._key_values.read(_CHECK)
        own = f"{_CHECK}.{self._rank}.{time.monotonic_ns()}"
        if not call:
            self._key_values.write(_CHECK, own)
            self._stop.wait(_SETTLE_S)
            call = self._key_values.read(_CHECK)
        self._answer(call)
        while waiting.silent_s() < self._timeout_s and waiting.goes_on():
            if self._stop.wait(min(self._look_s, max(self._timeout_s - waiting.silent_s(), _POLL_S))):
                return
            if call != own:
                if self._others_progressed(call):
                    return
                self._answer(call)
        if call == own:
            if waiting.goes_on():
                # A rank's last answer is as old as its last look: none that has made progress since is missed.
                self._stop.wait(self._look_s)
                self._judge(call, waiting)
            self._key_values.write(_CHECK, "")
        text = ""
        next_answer = time.monotonic()
        while not text and waiting.goes_on() and waiting.silent_s() < self._timeout_s + self._lead_s:
            if self._others_progressed(call):
                return
            if call != own and time.monotonic() > next_answer:
                self._answer(call)
                next_answer = time.monotonic() + self._look_s
            text = self._key_values.reason()
            if self._stop.wait(0 if text else _POLL_S * 4):
                return
        if waiting.goes_on() and not any(one.found for one in self._watches()):
            text = text or f"waited {waiting} of step {self._step()} for other ranks; nobody says for which"
            if waiting.wait is not None:
                waiting.wait.reason = text
            self._tell(RankLost, text)

    def _others_progressed(self, call: str) -> bool:
        """Whether this call has found that ranks which are waited for make progress; notes when that was."""
        if idle_s := self._key_values.read(f"{call}.progress"):
            eager_operations.others_progressed(time.monotonic_ns() - int(float(idle_s) * 1e9))
        return idle_s != ""

    def _judge(self, call: str, waiting: _Waiting) -> None:
        """Lets all ranks know that those who are waited for make progress; or who they are."""
        said = {rank: self._key_values.read(f"{call}.{rank}") for rank in range(self._size)}
        answers = {rank: Answer.of(text) for rank, text in said.items() if text}
        wanted = missing(waiting.operation, answers, self._size, waiting.awaited)
        idle_s = min((answers[rank].idle_s for rank in wanted if rank in answers), default=float("inf"))
        if idle_s < self._timeout_s - self._look_s:
            self._key_values.write(f"{call}.progress", repr(idle_s))
            return
        if waiting.goes_on():
            members = [self._members.get(rank) for rank in range(self._size)]
            left = [rank for rank in wanted if rank not in answers and self._members.has_left(rank)]
            args = (waiting.operation, waiting.seconds(), self._step(), answers, members, waiting.awaited, left)
            self._key_values.write_first(FOUND, verdict(*args))
