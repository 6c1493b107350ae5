"""Finds out which rank does not come, when an operation between ranks takes longer than ranks wait for each other.

Operations begin when all ranks have come, and name nobody who has not. So a thread of every rank knows which operations
its rank is in. Before the rank has been in one for TFSPS_TIMEOUT_S the thread starts a liveness check in the job's
key-value store; all ranks whose processes run answer, from their threads, with their step, their operations, and what
they see of the other processes of their node. Who is not in the operation is whom the caller waits for. When the time
is over, and they have not come meanwhile, the caller says so to all.

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
from tf_sparse_ps.collectives.key_values import FOUND, KeyValueStore
from tf_sparse_ps.collectives.protocol import timeout_s
from tf_sparse_ps.errors import RankDied, RankLost, RankStopped
from tf_sparse_ps.failures.members import Member, Members, name_of
from tf_sparse_ps.failures.node_watch import NodeWatch
from tf_sparse_ps.failures.watcher import Watcher

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
    """

    step: int
    operations: Sequence[str]
    others: Mapping[int, str]

    @classmethod
    def of(cls, text: str) -> Answer:
        """The inverse of `text`."""
        found = json.loads(text)
        return cls(found["step"], found["operations"], {int(rank): state for rank, state in found["others"].items()})

    @property
    def text(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))


def verdict(operation: str, seconds: float, step: int, answers: Mapping[int, Answer], members: Sequence[Member]) -> str:
    """Who is waited for, in words.

    Args:
      operation: That the caller is in.
      seconds: How long.
      step: That it is making.
      answers: By rank.
      members: All ranks.
    """
    missing = [r for r in range(len(members)) if r not in answers or operation not in answers[r].operations]
    waiting = len(members) - len(missing)
    begin = f"{waiting} of {len(members)} ranks have waited {seconds:.0f} s in operation '{operation}' of step {step}"
    if not missing:
        return f"{begin}: all have come, so the network, or what connects them in one, does not go on"
    named = [f"{name_of(r, members[r])}, {_why(r, answers)}" for r in missing]
    more = f"; and for {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"{begin} for " + "; for ".join(named[:_MOST_NAMED]) + more


def _why(rank: int, answers: Mapping[int, Answer]) -> str:
    states = [answer.others[rank] for other, answer in answers.items() if other != rank and rank in answer.others]
    state = f"which is {states[0]}" if states else ""
    if rank not in answers:
        return state or "which does not answer: it is stopped, gone or cut off"
    where = " and ".join(f"'{one}'" for one in answers[rank].operations)
    doing = f"in operation {where}" if where else "in no operation between ranks"
    return f"{state or 'which is alive'}, in step {answers[rank].step}, {doing}"


@dataclasses.dataclass(frozen=True)
class _Wait:
    """An operation that this process is in.

    Attributes:
      operation: Its name.
      begin_ns: Since then, by the monotonic clock.
    """

    operation: str
    begin_ns: int

    def __str__(self) -> str:
        return f"{self.seconds():.0f} s in operation '{self.operation}'"

    def seconds(self) -> float:
        """For how long."""
        return (time.monotonic_ns() - self.begin_ns) * 1e-9

    def goes_on(self) -> bool:
        """Whether it has not ended."""
        return (self.operation, self.begin_ns) in _in_flight()


def _in_flight() -> list[tuple[str, int]]:
    return [(name, begin) for name, begin, _ in _ops.in_flight()] + eager_operations.in_flight()


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
        """All ranks make theirs together.

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
        self._answered = ""
        self._thread.start()

    def leave(self) -> None:
        """Tells the other ranks that this one needs them no more."""
        self._members.leave()

    def stopped(self) -> RankStopped | None:
        """What to raise for a process of this node that is stopped, if there is one."""
        rank = self._members.stopped()
        if rank is None:
            return None
        name = name_of(rank, self._members.all[rank])
        return RankStopped(f"rank {self._rank}: {name} is stopped; rank {self._rank} is in step {self._step()}")

    def _run(self) -> None:
        before: list[tuple[str, int]] = []
        next_look = time.monotonic() + self._look_s
        while not self._stop.wait(self._look_s if self._watches() else _POLL_S):
            watches = self._watches()
            if not watches and (dead := self._members.dead()) is not None:
                self._report_death(dead)
                return
            if time.monotonic() < next_look:
                continue
            next_look = time.monotonic() + self._look_s
            now = _in_flight()
            if now == before and not any(one.found for one in watches):
                self._look(now)
            before = now

    def _look(self, in_flight: list[tuple[str, int]]) -> None:
        if call := self._key_values.read(_CHECK):
            self._answer(call)
        if in_flight:
            wait = _Wait(*min(in_flight, key=lambda one: one[1]))
            if wait.seconds() > self._timeout_s - self._lead_s:
                self._ask(wait)

    def _report_death(self, dead: int) -> None:
        if said := self._key_values.reason():
            self._tell(RankLost, said)
        else:
            name = name_of(dead, self._members.all[dead])
            self._tell(RankDied, f"{name} died; rank {self._rank} is in step {self._step()}")

    def _answer(self, call: str) -> None:
        if call == self._answered:
            return
        self._answered = call
        operations = [name for name, _ in _in_flight()]
        answer = Answer(self._step(), operations, self._members.states())
        self._key_values.write(f"{call}.{self._rank}", answer.text)

    def _ask(self, wait: _Wait) -> None:
        """Finds out, with the others, whom this rank waits for, unless they come before the time is over."""
        call = self._key_values.read(_CHECK)
        own = f"{_CHECK}.{self._rank}.{wait.begin_ns}"
        if not call:
            self._key_values.write(_CHECK, own)
            self._stop.wait(_SETTLE_S)
            call = self._key_values.read(_CHECK)
        self._answer(call)
        while wait.seconds() < self._timeout_s and wait.goes_on():
            if self._stop.wait(_POLL_S * 4):
                return
        if call == own and wait.goes_on():
            self._key_values.write_first(FOUND, self._verdict(call, wait))
        text = ""
        while not text and wait.goes_on() and wait.seconds() < self._timeout_s + self._lead_s:
            text = self._key_values.reason()
            if self._stop.wait(0 if text else _POLL_S * 4):
                return
        if call == own:
            self._key_values.write(_CHECK, "")
        if wait.goes_on() and not any(one.found for one in self._watches()):
            text = text or f"waited {wait} of step {self._step()} for other ranks; nobody says for which"
            self._tell(RankLost, text)

    def _verdict(self, call: str, wait: _Wait) -> str:
        said = {r: self._key_values.read(f"{call}.{r}") for r in range(self._size)}
        answers = {r: Answer.of(text) for r, text in said.items() if text}
        return verdict(wait.operation, wait.seconds(), self._step(), answers, self._members.all)
