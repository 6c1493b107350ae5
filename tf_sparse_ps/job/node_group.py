"""`NodeGroup`: the group of a job's tables on one node, and this rank's access to it.

The node's leader (local rank 0) makes the group and is its writer until the process ends. When its leader ends, the
group of an unnamed job is removed. If the leader was killed, or the job ran out of room, the next job removes the group
when it starts. The group of a named job stays, and the next job of that name continues to train its tables.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from tf_sparse_ps import _table
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.collectives import Collectives, eager_operations
from tf_sparse_ps.collectives.all_or_none import all_or_none
from tf_sparse_ps.collectives.key_values import EXIT_REPORT
from tf_sparse_ps.collectives.timeout import timeout_s
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.errors import NotFoundError, TableError, UnavailableError, WaitTimeoutError, WriterLockedError
from tf_sparse_ps.job import job_end, undecided_step
from tf_sparse_ps.job.identity import Identity
from tf_sparse_ps.job.session import Session
from tf_sparse_ps.node import activity, job_folder, rank_counters

_POLL_S = 0.002
_LOOK_S = 1.0
_GRACE_S = 10.0  # the time that the liveness check may take to find out what the awaited rank does


class NodeGroup:
    """A job's group on this node.

    Attributes:
      path: The group's directory, `<TFSPS_DIR>/<TFSPS_JOB or uuid>-n<node>`.
      exchange_path: The folder of this run through which the ranks of the node exchange gradients.
      session: The files through which the ranks of the node coordinate outside of steps.
      found_at_step: The step of the tables that an earlier run of a named job has left; 0: it has left none.
    """

    def __init__(self, identity: Identity, collectives: Collectives) -> None:
        """Makes the group on the leader, and joins it on the node's other ranks. Every rank of the job calls this.

        Raises:
          AccessError, NoSpaceError: The folder of tables cannot be used.
          WriterLockedError: A job of this name is running.
          UnavailableError: Another rank could not make the group of its node. The message contains its error.
          StateError: A killed run of this job has left a step that the nodes of this run cannot decide.
        """
        self._identity, self._folder, self._key_values = identity, job_folder.prepare(), collectives.key_values
        self.path = os.path.join(self._folder, f"{identity.name or identity.uuid}-n{identity.node}")
        self.exchange_path = f"{self.path}/{job_folder.EXCHANGE}{identity.run}"
        self.session = Session(self.path, identity.run, collectives.local_rank, collectives.local_size)
        outcome, index_seed = "refuse", identity.index_seed
        if identity.name is not None:
            if identity.is_leader:
                with job_folder.locked(self._folder):
                    job_folder.remove_unmade(self.path)
            outcome, index_seed = undecided_step.settle(self.path, identity, collectives)
        # After this, all nodes have published or undone an undecided step, so the group can get the id of this run.
        all_or_none(
            collectives,
            lambda: self._make(collectives, outcome, index_seed) if identity.is_leader else None,
            "making the group of tables",
            "tsps.groups",
            UnavailableError,
        )
        if identity.is_leader:
            with eager_ops(f"opening the group {self.path}") as _ops:
                _ops.set_run(self.path, identity.run_id)
        else:
            self.session.join()
        self._show_counters(identity, collectives)
        self.found_at_step = 0 if identity.name is None else self.committed_step()

    def _show_counters(self, identity: Identity, collectives: Collectives) -> None:
        """Lets other processes read what this rank counts, and what it is doing."""
        local_rank, pid = collectives.local_rank, os.getpid()
        with eager_ops(f"making the counters of {self.path}") as _ops:
            _ops.count(self.path, identity.rank, identity.size, local_rank)
        page = _table.RankActivity.open(rank_counters.path(self.path, local_rank))

        def show(text: str) -> None:
            if os.getpid() == pid:  # not a forked child
                page.set(text)

        activity.on_change(show)

    @property
    def nodes(self) -> int:
        """The number of nodes of the job."""
        return len(self._identity.leaders)

    @property
    def node(self) -> int:
        """The number of this node."""
        return self._identity.node

    @property
    def is_leader(self) -> bool:
        """Whether this process is the group's writer."""
        return self._identity.is_leader

    def committed_step(self) -> int:
        """Returns the number of the last step that the group has published."""
        with eager_ops(f"reading the group {self.path}") as _ops:
            return int(_ops.group_info(self.path).step)

    def table_folders(self, ordinal: int) -> list[str]:
        """Returns the names of the folders of the table with this ordinal: one name, unless ranks or runs differ."""
        names = {name for name in os.listdir(self.path) if name.startswith(f"t{ordinal:04d}-")}
        return sorted(names - {name + SKETCH for name in names})

    @contextlib.contextmanager
    def one_writes(self, ordinal: int, content: int, path: str) -> Iterator[bool]:
        """Surrounds a write of a table outside of steps. The leader writes, and the node's other ranks wait for it.

        The leader waits for no other rank. Another rank waits until the leader has written the same content.

        Args:
          ordinal: The ordinal of the table.
          content: A number that stands for what is written, the same on all ranks.
          path: The path of the table, for messages.

        Yields:
          Whether this rank is to write.

        Raises:
          UnavailableError, WaitTimeoutError: The leader did not write the content.
        """
        yield self.is_leader
        if self.is_leader:
            self.session.publish(ordinal, content)
        else:
            self.wait(
                lambda: self.session.has_published(ordinal, content),
                f"the leader to write table {path} as this rank does",
            )

    def wait(self, done: Callable[[], bool], event: str) -> None:
        """Waits for other ranks of the node until TFSPS_TIMEOUT_S after their last progress.

        The leader waits for all other ranks. Another rank waits for the leader.

        Args:
          done: Returns whether the wait is over.
          event: The event that this rank waits for, for messages.

        Raises:
          CollectivesError: This process has reported a lost rank (`failures.ending`).
          UnavailableError: The leader has ended, or the group was deleted.
          WaitTimeoutError: No awaited rank has made progress for TFSPS_TIMEOUT_S.
        """
        longest_s, identity = timeout_s(), self._identity
        begin = look = time.monotonic()
        awaited = tuple(
            rank
            for rank, node in enumerate(identity.nodes)
            if node == identity.node and (rank == identity.leaders[node]) != self.is_leader
        )
        with eager_operations.running(f"wait for {event}", awaited) as wait:
            heartbeat = self.session.heartbeat()
            while not done():
                now = time.monotonic()
                if now > look:
                    look = now + _LOOK_S
                    self._check_leader(event)
                    if (beat := self.session.heartbeat()) != heartbeat:
                        heartbeat = beat
                        eager_operations.others_progressed(time.monotonic_ns())
                silent_s = (time.monotonic_ns() - eager_operations.begin_of_silence_ns(wait.begin_ns)) * 1e-9
                if wait.reason or silent_s > longest_s + (_GRACE_S if self._key_values.there else 0.0):
                    reason = f" ({wait.reason})" if wait.reason else ""
                    raise WaitTimeoutError(
                        f"rank {identity.rank} waited {now - begin:.0f} s for {event}. The awaited ranks reported no "
                        f"progress for the last {longest_s:g} s{reason}. All ranks must build the same layers and "
                        "write the same tables, in the same order. If another rank does something that takes long, "
                        "set TFSPS_TIMEOUT_S to more seconds"
                    )
                time.sleep(_POLL_S)

    def _make(self, collectives: Collectives, outcome: str, index_seed: int) -> None:
        with job_folder.locked(self._folder), eager_ops(f"making the group {self.path}") as _ops:
            job_folder.remove_leftovers(self._folder, keep=self.path)
            if os.path.lexists(self.path):
                if (pid := self._running_writer()) is not None:
                    raise WriterLockedError(
                        f"job {self._identity.name!r} is running: process {pid} writes its tables in {self.path}. Only "
                        "one job can write them. Wait for its end, or give this job another name with TFSPS_JOB"
                    )
                _ops.open_writer(self.path, outcome)
                self._remove_earlier_runs()
            else:
                identity = self._identity
                _ops.create_group(self.path, identity.uuid, life=identity.life, index_seed=index_seed)
            os.mkdir(self.exchange_path, 0o700)
        path, exchange, pid, keep = self.path, self.exchange_path, os.getpid(), self._identity.name is not None
        collectives.at_exit(lambda: job_end.end_group(path, exchange, pid, keep=keep))
        self.session.begin()

    def _running_writer(self) -> int | None:
        """Returns the process that writes the group, or None. The core reports the error of a group that is damaged."""
        with contextlib.suppress(TableError):
            info = _table.Group.open(self.path).info()
            if info["writer_alive"] and info["writer_pid"] != os.getpid():
                return int(info["writer_pid"])
        return None

    def _remove_earlier_runs(self) -> None:
        for entry in os.scandir(self.path):
            if entry.name.startswith((".session-", ".counters-")):
                os.unlink(entry.path)
            elif entry.name.startswith(job_folder.EXCHANGE):
                job_folder.remove_folder(entry.path)

    def _check_leader(self, event: str) -> None:
        """Raises UnavailableError if a rank has reported its end, the group was deleted, or the leader has died."""
        rank, node = self._identity.rank, self._identity.node
        if report := self._key_values.read(EXIT_REPORT):
            raise UnavailableError(f"{report}. Rank {rank} was waiting for {event}")
        try:
            info = _table.Group.open(self.path).info()
        except NotFoundError:
            raise UnavailableError(
                f"the group {self.path} was deleted while rank {rank} waited for {event}. Start the job again from its "
                "newest checkpoint"
            ) from None
        except TableError:
            return
        if not info["writer_alive"]:
            raise UnavailableError(
                f"the leader of node {node} (process {info['writer_pid']}) has died while rank {rank} waited for "
                f"{event}. Start the job again from its newest checkpoint"
            )
