"""`NodeLink`: the launchers of a job coordinate through node 0's key-value store while the ranks run.

    alive-<k>   launcher k's heartbeat, every few seconds
    cause       a `Cause`, created by the first launcher that ends its ranks; the others then end theirs
    ended-<k>   a `NodeEnd`, written when the ranks of node k have ended
    outcome     an `Outcome`, written by node 0 for all launchers
    left-<k>    empty, written when launcher k has read the outcome

A launcher that cannot reach the store any more ends its ranks. If a launcher's heartbeat stops, node 0's launcher ends
the job.
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
_HEARTBEAT_S = 2.0
LOST_S = 30.0  # a launcher is lost after this time without an answer or a heartbeat
_REFUSED_S = 3.0  # a launcher has ended if its machine refuses connections for this time
_ENDING_S = 20.0  # the time that other nodes may take to end their ranks
_READING_S = 5.0  # the time that other launchers may take to read the outcome


class NodeLink:
    """One launcher's access to the texts of all launchers."""

    def __init__(self, node_rank: int, nodes: Sequence[Node], texts: Texts, job: str, grace_s: float = 0.0) -> None:
        """Stores the arguments. The launchers have met before.

        Args:
          node_rank: The number of this launcher's node.
          nodes: All nodes.
          texts: The texts of the launchers in node 0's store.
          job: The id of the job. It reveals if another job's store is at the same address.
          grace_s: The additional time that other nodes may take to end their ranks after a signal to a launcher.
        """
        self._node_rank, self._nodes, self._texts, self._job = node_rank, nodes, texts, job
        self._grace_s = grace_s
        self._cause: Cause | None = None
        self._lost = False  # whether the store cannot be reached any more
        self._interrupts = 0
        self._closed = threading.Event()

    def watch(self, events: queue.SimpleQueue[Any]) -> None:
        """Starts a thread that puts the `Cause` of another launcher into a queue."""
        watch = self._watch_nodes if self._node_rank == 0 else self._watch_store
        threading.Thread(target=watch, args=(events,), name="node-link", daemon=True).start()

    def tell(self, cause: Cause) -> None:
        """Reports why this launcher ends its ranks, unless another launcher has reported a cause before."""
        with contextlib.suppress(OSError):
            self._texts.create("cause", cause.dump())

    def finish(
        self, end: NodeEnd, cause: Cause | None, exit_report: Callable[[], str], events: queue.SimpleQueue[Any]
    ) -> Outcome:
        """Waits until the ranks of all nodes have ended, and returns the outcome of the job.

        Args:
          end: The end of this node's ranks.
          cause: Why this launcher has ended its ranks; None: it has not.
          exit_report: Reads the exit report of a rank from the store.
          events: The queue of signals. The first signal ends the job, the second one ends this wait.
        """
        self._cause = cause or self._cause
        try:
            if self._node_rank == 0:
                return self._finish_all(end, exit_report, events)
            return self._finish_own(end, exit_report, events)
        finally:
            self._closed.set()

    def _watch_store(self, events: queue.SimpleQueue[Any]) -> None:
        last_answer = time.monotonic()
        next_heartbeat = 0.0
        while not self._closed.wait(_POLL_S):
            now, reason = time.monotonic(), ""
            try:
                if now >= next_heartbeat:
                    if json.loads(self._texts.get("job") or "{}").get("id") != self._job:
                        reason = "another job has taken its place"
                    else:
                        self._texts.put(f"alive-{self._node_rank}", str(now))
                    next_heartbeat = now + _HEARTBEAT_S
                text = None if reason else self._texts.get("cause")
                if text is not None:
                    self._set_cause(Cause.of(text), events)
                last_answer = now
            except ConnectionRefusedError:
                reason = "nobody listens there any more" if now > last_answer + _REFUSED_S else ""
            except OSError as error:
                reason = f"no answer for {LOST_S:.0f} s: {error}" if now > last_answer + LOST_S else ""
            if reason:
                text = (
                    f"node {self._node_rank} cannot reach the launcher of node 0 any more ({reason}), and ends its "
                    "ranks. Look at the output of that launcher, and at the network"
                )
                self._lost = True
                self._set_cause(Cause(self._node_rank, None, 1, text), events)
                return

    def _watch_nodes(self, events: queue.SimpleQueue[Any]) -> None:
        heartbeats = {k: ("", time.monotonic()) for k in range(1, len(self._nodes))}
        while not self._closed.wait(_POLL_S):
            text = self._texts.get("cause")
            if text is not None:
                self._set_cause(Cause.of(text), events)
            now = time.monotonic()
            for k, (last_heartbeat, changed) in heartbeats.items():
                heartbeat = self._texts.get(f"alive-{k}") or ""
                if heartbeat != last_heartbeat or self._texts.get(f"ended-{k}") is not None:
                    heartbeats[k] = (heartbeat, now)
                elif now > changed + LOST_S:
                    text = (
                        f"the launcher of node {k} ({self._nodes[k].host}) has not been heard of for {LOST_S:.0f} s, "
                        "so the job ends. Look at the output of that launcher, and at the network"
                    )
                    self.tell(Cause(k, None, 1, text))

    def _pause(self, events: queue.SimpleQueue[Any], seconds: float) -> None:
        """Waits, or handles a signal."""
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=seconds)
            if isinstance(event, int):
                self._interrupts += 1
                if self._cause is None:
                    self._cause = Cause.interrupted(self._node_rank, event)
                    self.tell(self._cause)

    @property
    def _ending_s(self) -> float:
        """The time that other nodes may take to end their ranks."""
        is_signal = self._cause is not None and self._cause.is_signal
        return _ENDING_S + (self._grace_s if is_signal else 0.0)

    def _set_cause(self, cause: Cause, events: queue.SimpleQueue[Any]) -> None:
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
                deadline = time.monotonic() + self._ending_s
            self._pause(events, 0.1)
        text = self._texts.get("cause")  # the first cause of any launcher
        outcome = decide(Cause.of(text) if text else self._cause, ends, exit_report())
        self._texts.put("outcome", outcome.dump())
        deadline = time.monotonic() + _READING_S
        while time.monotonic() < deadline and any(self._texts.get(f"left-{k}") is None for k in ends if k > 0):
            self._closed.wait(0.05)
        return outcome

    def _finish_own(self, end: NodeEnd, exit_report: Callable[[], str], events: queue.SimpleQueue[Any]) -> Outcome:
        deadline, reported = float("inf"), False
        while time.monotonic() < deadline and self._interrupts < 2:
            with contextlib.suppress(OSError):
                if not reported:
                    self._texts.put(f"ended-{self._node_rank}", end.dump())
                    reported = True
                text = self._texts.get("outcome")
                if text is not None:
                    self._texts.put(f"left-{self._node_rank}", "")
                    return Outcome.of(text)
            if self._lost:
                break
            if self._cause is not None and deadline == float("inf"):
                deadline = time.monotonic() + self._ending_s + _READING_S
            self._pause(events, 0.2)
        # Node 0 has not sent the outcome. This launcher decides with the facts of its own node.
        return decide(self._cause, {self._node_rank: end}, exit_report())
