"""Watches the ranks of a node that merge their gradients, by the locks that they hold (core/exchange/rank_file.h).

When one is lost, the rank's process id and step are printed at once: launchers end the remaining ranks within a second,
sometimes before Python can report the error that Horovod raised. The same happens when the merge of gradients has
failed in this rank, say because another did not come in time: the error itself cannot be raised before Horovod gives up
its operations of the same step.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.collectives.key_values import EXIT_REPORT, KeyValueStore
from tf_sparse_ps.errors import ExchangeFailed, LeaderDied, RankDied, RankLost, RankStopped, TableError
from tf_sparse_ps.failures.watcher import Watcher
from tf_sparse_ps.node import activity

_POLL_S = 0.025  # a look costs 5 us per rank
_OWN_FAILURE_S = 1.0  # how long to wait for a failure of this rank's own, once another's is there


class NodeWatch(Watcher):
    """Waits for the death of another rank of this node, or for a failure of their merges."""

    def __init__(self, job: Any, key_values: KeyValueStore) -> None:
        """Watches the ranks that have joined the exchange of `job`'s node."""
        super().__init__("tsps-rank-watch", job.rank, key_values)
        self._group, self._node, self._leader = job.group_path, job.node, job.leaders[job.node]
        self._ranks = _table.NodeRanks.open(job.group.exchange_path, job.collectives.local_size)
        self._local_rank = job.collectives.local_rank
        activity.on_progress(self._report_progress)
        self._thread.start()

    def _report_progress(self) -> None:
        with contextlib.suppress(TableError):  # somebody has removed the folder
            self._ranks.report_progress(self._local_rank)

    def leave(self) -> None:
        """Tells the other ranks of the node that this one needs them no more."""
        with contextlib.suppress(TableError), eager_ops(f"leaving the exchange of {self._group}") as _ops:
            _ops.leave_exchange(self._group)

    def stopped(self) -> RankStopped | None:
        """What to raise for a rank that is stopped, if there is one."""
        for one in self._ranks.look():
            state = _table.process_state(one.pid) if one.alive and one.rank != self._rank else ""
            if state.startswith("stopped"):
                text = f"rank {one.rank} of node {self._node} (pid {one.pid}) is {state}; step {one.step} is the last "
                return RankStopped(f"rank {self._rank}: {text}it has come to")
        return None

    def _run(self) -> None:
        # Through the module that has no TensorFlow in it: a failed op would be logged every time.
        group = _table.Group.open(self._group)
        failed_since = None
        while not self._stop.wait(_POLL_S):
            ranks = self._ranks.look()
            dead = [one for one in ranks if not one.alive and not one.left and one.rank != self._rank]
            # This rank's own failure first: where all wait for one, each says so for itself.
            failed = sorted((one for one in ranks if one.failure), key=lambda one: one.rank != self._rank)
            if failed:
                failed_since = failed_since or time.monotonic()
                waited = time.monotonic() > failed_since + _OWN_FAILURE_S
                if waited or failed[0].rank == self._rank or not failed[0].alive:
                    # It may have failed of a death, which it saw before this thread did.
                    cause = [one for one in dead if f"(pid {one.pid}) died" in str(failed[0].failure)]
                    if cause:
                        self._report_death(cause[0], group.info()["step"])
                    else:
                        self._report_failure(failed[0])
                    return
                continue
            if dead:
                self._report_death(dead[0], group.info()["step"])
                return

    def _report_failure(self, failed: Any) -> None:
        # Merges fail, too, because a rank has ended: why, it knows best.
        if said := self._key_values.read(EXIT_REPORT):
            self._tell(RankLost, said)
        elif failed.rank == self._rank:
            self._tell(ExchangeFailed, str(failed.failure))
        else:
            rank = f"rank {failed.rank} of node {self._node} (pid {failed.pid})"
            self._tell(ExchangeFailed, f"{rank} failed in step {failed.step}: {failed.failure}")

    def _report_death(self, dead: Any, step: int) -> None:
        if said := self._key_values.read(EXIT_REPORT):
            self._tell(RankLost, said)
        elif dead.rank == self._leader:
            self._tell(
                LeaderDied,
                f"the leader of node {self._node} (pid {dead.pid}) died after step {step} of {self._group}; "
                f"step {step + 1} will not be made",
            )
        else:
            self._tell(
                RankDied,
                f"rank {dead.rank} of node {self._node} (pid {dead.pid}) died in step {dead.step}; the tables are as "
                f"of step {step}",
            )
