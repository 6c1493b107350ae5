"""What the launchers of a job tell each other while its ranks run, through the store of node 0.

    alive-<k>   launcher k's sign of life, every few seconds
    cause       a `Cause`, created by the launcher that is first to end its ranks; the others then end theirs
    ended-<k>   a `NodeEnd`: node k's ranks have ended
    outcome     an `Outcome`, from node 0, for all
    left-<k>    launcher k has read it

A launcher that cannot reach the store any more ends its ranks; so does node 0's if a launcher shows no sign of life.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_sparse_ps.launch.key_values import Texts
from tf_sparse_ps.launch.meeting import Node
from tf_sparse_ps.launch.outcome import Cause, NodeEnd, Outcome, decide

_POLL_S = 0.5
_SIGN_OF_LIFE_S = 2.0
LOST_S = 30.0  # without an answer, or a sign of life
_REFUSED_S = 3.0  # where the machine answers, and nobody listens: that launcher is gone
_ENDING_S = 20.0  # that other nodes may take to end their ranks
_READING_S = 5.0  # that other launchers may take to read the outcome


class NodeLink:
    """One launcher's part."""

    def __init__(self, node_rank: int, nodes: Sequence[Node], texts: Texts, job: str) -> None:
        """After the launchers have met.

        Args:
          node_rank: This launcher's.
          nodes: All.
          texts: The store.
          job: Tells this job's store from another's at the same address.
        """
        self._me, self._nodes, self._texts, self._job = node_rank, nodes, texts, job
        self._cause: Cause | None = None
        self._lost = False  # the store cannot be reached any more
        self._interrupts = 0
        self._closed = threading.Event()

    def watch(self, events: queue.SimpleQueue[Any]) -> None:
        """Puts a `Cause` of elsewhere into a queue, from a thread, as soon as there is one."""
        watch = self._watch_nodes if self._me == 0 else self._watch_store
        threading.Thread(target=watch, args=(events,), name="node-link", daemon=True).start()

    def tell(self, cause: Cause) -> None:
        """Says why this launcher ends its ranks, unless another has said so before."""
        with contextlib.suppress(OSError):
            self._texts.create("cause", cause.dump())

    def finish(
        self, end: NodeEnd, cause: Cause | None, exit_report: Callable[[], str], events: queue.SimpleQueue[Any]
    ) -> Outcome:
        """Waits for the other nodes.

        Args:
          end: Of this node's ranks.
          cause: As this launcher knows it.
          exit_report: Reads what a rank has said of its own end.
          events: Where signals are: the first ends the job, the second the waiting.
        """
        self._cause = cause or self._cause
        try:
            if self._me == 0:
                return self._finish_all(end, exit_report, events)
            return self._finish_own(end, exit_report, events)
        finally:
            self._closed.set()

    def _watch_store(self, events: queue.SimpleQueue[Any]) -> None:
        heard = time.monotonic()
        next_sign = 0.0
        while not self._closed.wait(_POLL_S):
            now, why = time.monotonic(), ""
            try:
                if now >= next_sign:
                    if json.loads(self._texts.get("job") or "{}").get("id") != self._job:
                        why = "another job has taken its place"
                    else:
                        self._texts.put(f"alive-{self._me}", str(now))
                    next_sign = now + _SIGN_OF_LIFE_S
                text = None if why else self._texts.get("cause")
                if text is not None:
                    self._found(Cause.of(text), events)
                heard = now
            except ConnectionRefusedError:
                why = "nobody listens there any more" if now > heard + _REFUSED_S else ""
            except OSError as error:
                why = f"no answer for {LOST_S:.0f} s: {error}" if now > heard + LOST_S else ""
            if why:
                text = f"node {self._me} cannot reach the launcher of node 0 any more ({why}), and ends its ranks"
                self._lost = True
                self._found(Cause(self._me, None, 1, text), events)
                return

    def _watch_nodes(self, events: queue.SimpleQueue[Any]) -> None:
        signs = {k: ("", time.monotonic()) for k in range(1, len(self._nodes))}
        while not self._closed.wait(_POLL_S):
            text = self._texts.get("cause")
            if text is not None:
                self._found(Cause.of(text), events)
            now = time.monotonic()
            for k, (last, seen) in signs.items():
                sign = self._texts.get(f"alive-{k}") or ""
                if sign != last or self._texts.get(f"ended-{k}") is not None:
                    signs[k] = (sign, now)
                elif now > seen + LOST_S:
                    what = f"the launcher of node {k} ({self._nodes[k].host}) has not been heard of for {LOST_S:.0f} s"
                    self.tell(Cause(k, None, 1, what))

    def _pause(self, events: queue.SimpleQueue[Any], seconds: float) -> None:
        """Lets time pass, or takes a signal."""
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=seconds)
            if isinstance(event, int):
                self._interrupts += 1
                if self._cause is None:
                    self._cause = Cause.interrupted(self._me, event)
                    self.tell(self._cause)

    def _found(self, cause: Cause, events: queue.SimpleQueue[Any]) -> None:
        if self._cause is None:
            self._cause = cause
            events.put(cause)

    def _finish_all(self, end: NodeEnd, exit_report: Callable[[], str], events: queue.SimpleQueue[Any]) -> Outcome:
        ends = {0: end}
        deadline = float("inf")
        while len(ends) < len(self._nodes) and time.monotonic() < deadline and self._interrupts < 2:
            for k in range(1, len(self._nodes)):
                text = self._texts.get(f"ended-{k}")
                if text is not None:
                    ends[k] = NodeEnd.of(text)
            if self._cause is not None and deadline == float("inf"):
                deadline = time.monotonic() + _ENDING_S
            self._pause(events, 0.1)
        told = self._texts.get("cause")  # the first one
        outcome = decide(Cause.of(told) if told else self._cause, ends, exit_report())
        self._texts.put("outcome", outcome.dump())
        deadline = time.monotonic() + _READING_S
        while time.monotonic() < deadline and any(self._texts.get(f"left-{k}") is None for k in ends if k > 0):
            self._closed.wait(0.05)
        return outcome

    def _finish_own(self, end: NodeEnd, exit_report: Callable[[], str], events: queue.SimpleQueue[Any]) -> Outcome:
        deadline, told = float("inf"), False
        while time.monotonic() < deadline and self._interrupts < 2:
            with contextlib.suppress(OSError):
                if not told:
                    self._texts.put(f"ended-{self._me}", end.dump())
                    told = True
                text = self._texts.get("outcome")
                if text is not None:
                    self._texts.put(f"left-{self._me}", "")
                    return Outcome.of(text)
            if self._lost:
                break
            if self._cause is not None and deadline == float("inf"):
                deadline = time.monotonic() + _ENDING_S + _READING_S
            self._pause(events, 0.2)
        # Nobody tells it: what this node knows itself.
        return decide(self._cause, {self._me: end}, exit_report())
