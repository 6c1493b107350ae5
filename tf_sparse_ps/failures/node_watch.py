"""`NodeWatch`: watches the ranks of a node that merge their gradients, by their locks (core/exchange/rank_file.h).

If a rank dies, this thread prints the rank's process id and step immediately. Launchers end the remaining ranks within
a second, sometimes before Python can report the error that Horovod raised. The thread also prints immediately why the
merge of gradients has failed in this rank, for example because another rank did not reach it in time. The error itself
cannot be raised before Horovod ends its operations of the same step.
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
_OWN_FAILURE_S = 1.0  # the time to wait for this rank's own failure, after another rank has failed


class NodeWatch(Watcher):
    """A thread that detects the death of another rank of this node, or a failure of the ranks' merges."""

    def __init__(self, job: Any, key_values: KeyValueStore) -> None:
        """Watches the ranks that have joined the exchange of `job`'s node."""
        super().__init__("tsps-rank-watch", job.rank, key_values)
        self._group, self._node, self._leader = job.group_path, job.node, job.leaders[job.node]
        self._ranks = _table.NodeRanks.open(job.group.exchange_path, job.collectives.local_size)
        self._local_rank = job.collectives.local_rank
        activity.on_progress(self._report_progress)
        self._thread.start()

    def _report_progress(self) -> None:
        with contextlib.suppress(TableError):  # somebody has deleted the folder
            self._ranks.report_progress(self._local_rank)

    def leave(self) -> None:
        """Records that this rank ends without an error, so that the node's other ranks do not report its end."""
        with contextlib.suppress(TableError), eager_ops(f"leaving the exchange of {self._group}") as _ops:
            _ops.leave_exchange(self._group)

    def stopped(self) -> RankStopped | None:
        """Returns the error for a rank of this node that is stopped, or None."""
        for peer in self._ranks.look():
            state = _table.process_state(peer.pid) if peer.alive and peer.rank != self._rank else ""
            if state.startswith("stopped"):
                name = f"rank {peer.rank} of node {self._node} (pid {peer.pid})"
                return RankStopped(
                    f"rank {self._rank}: {name} is {state}; step {peer.step} is the last that it has reached"
                )
        return None

    def _run(self) -> None:
        # `_table` opens the group without an op, because TensorFlow would log each op that fails.
        group = _table.Group.open(self._group)
        failed_since = None
        while not self._stop.wait(_POLL_S):
            ranks = self._ranks.look()
            dead = [peer for peer in ranks if not peer.alive and not peer.left and peer.rank != self._rank]
            # This rank's own failure comes first: if all ranks wait for one rank, each reports its own failure.
            failed = sorted((peer for peer in ranks if peer.failure), key=lambda peer: peer.rank != self._rank)
            if failed:
                failed_since = failed_since or time.monotonic()
                waited = time.monotonic() > failed_since + _OWN_FAILURE_S
                if waited or failed[0].rank == self._rank or not failed[0].alive:
                    # The merge may have failed because of a death that it noticed before this thread did.
                    cause = [peer for peer in dead if f"(pid {peer.pid}) died" in str(failed[0].failure)]
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
        # A merge may have failed because a rank has ended. Its own report is the best explanation.
        if report := self._key_values.read(EXIT_REPORT):
            self._tell(RankLost, report)
        elif failed.rank == self._rank:
            self._tell(ExchangeFailed, str(failed.failure))
        else:
            rank = f"rank {failed.rank} of node {self._node} (pid {failed.pid})"
            self._tell(ExchangeFailed, f"{rank} failed in step {failed.step}: {failed.failure}")

    def _report_death(self, dead: Any, step: int) -> None:
        if report := self._key_values.read(EXIT_REPORT):
            self._tell(RankLost, report)
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
