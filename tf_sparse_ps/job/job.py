"""`Job`: who this process is, where its group of tables lies, and which table is which.

The tables of a job on a node form one group in `<TFSPS_DIR>/<TFSPS_JOB or uuid>-n<node>`. The node's leader (local rank
0) makes it and is its writer until the process ends; the other ranks wait until it is there. An unnamed job's group is
removed when its leader ends; if the leader was killed, or the job ran out of room, when the next job starts. A named
job's group stays, and the next job of that name goes on with its tables.

Layers are numbered in the order in which they are built, which must be the same on all ranks: a table's identity is
(job, node, number), never the layer's name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.collectives import protocol
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import (
    NotFoundError,
    StateError,
    TableError,
    UnavailableError,
    UnsupportedError,
    WaitTimeoutError,
)
from tf_sparse_ps.job import job_end, session
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.job.table_seeds import TableSeeds
from tf_sparse_ps.node import job_folder, node_discovery

if TYPE_CHECKING:
    from tf_sparse_ps.collectives import Collectives

WAIT_S = 300.0
_POLL_S = 0.002
# What merging gradients may take of a rank's memory beside the gradients themselves, before and after; more on many
# nodes, where a round must still be worth its messages.
EXCHANGE_BUDGET_BYTES = 64 << 20
_LEAST_PIECE_BYTES = 256 << 10
# Of that: Horovod's buffer for several tensors at once, and the order of a rank's rows, 4 bytes each.
_FUSION_BYTES, _ORDER_BYTES = protocol.FUSION_BYTES, 8 << 20


def exchange_window(nodes: int, mergers: int) -> int:
    """Shared memory of a node for one round of gradients, in bytes; up to as much again for what is merged from them.

    Args:
      nodes: Of the job.
      mergers: Ranks of a node that merge, each with its own buffers.
    """
    # In pieces of a round's share of one merger: 2 contributed and merged; of several nodes 2 packed, and of every node
    # 2 received, 1 unpacked and 1 merged; a quarter more for rows that are longer as a node's than as a rank's, and for
    # hash tables.
    pieces = 2 if nodes == 1 else 4 + 4 * nodes
    piece = (EXCHANGE_BUDGET_BYTES - _FUSION_BYTES - _ORDER_BYTES) * 4 // (5 * pieces)
    return mergers * max(piece, _LEAST_PIECE_BYTES)


class Trainer(Protocol):
    """Makes steps of tables."""

    def outstanding_tables(self) -> bool:
        """Whether some that it has begun are not made yet."""


class Job:
    """This process's part of a job; `current()` makes it.

    Attributes:
      uuid: 32 hexadecimal digits, the same on all ranks.
      rank, size: This process among all of the job's.
      node: This machine among the job's, in the order of their ranks.
      nodes: The node of each rank.
      leaders: The rank of each node's leader.
      mergers: How many ranks of every node merge gradients: as many as the smallest node has.
      is_leader: This process writes the node's tables.
      timeout_s: How long to wait for another rank before that is an error: TFSPS_TIMEOUT_S, 600 by default.
      group_path: The group's directory.
      exchange_path: Where the ranks of this node see each other, a folder of this run alone.
      seeds: Of tables, and their salts.
      collectives: How the ranks talk to each other.
      lifetimes: Of its tables.
    """

    def __init__(self, collectives: Collectives) -> None:
        from tf_sparse_ps._compat import _keras

        self.collectives = collectives
        self.rank, self.size = collectives.rank, collectives.size
        self.is_leader = collectives.local_rank == 0
        self.timeout_s = protocol.timeout_s()
        self.name = os.environ.get("TFSPS_JOB") or None
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", self.name):
            raise ValueError(
                "TFSPS_JOB must be 1 to 100 letters, digits, '.', '_' or '-', not starting with '.'. "
                f"Received: {self.name!r}"
            )
        uuid = _digest("job", self.name) if self.name else secrets.token_hex(16)
        keras_seed = None if self.name else _keras.random_seed()[0]
        # The session tells this run of a named job from the one before.
        name, uuid, run, keras_seed = collectives.broadcast_object(
            (self.name, uuid, secrets.token_hex(8), keras_seed), 0, "tfsps_job"
        )
        if name != self.name:
            raise ValueError(f"TFSPS_JOB differs between ranks: {name!r} on rank 0, {self.name!r} on rank {self.rank}")
        mine = node_discovery.mine(collectives.local_rank, collectives.host)
        nodes = node_discovery.nodes(collectives.allgather_object(mine, "tfsps_locations"))
        self.nodes, self.node = nodes, nodes[self.rank]
        self.leaders = [nodes.index(node) for node in range(max(nodes) + 1)]
        self.mergers = min(nodes.count(node) for node in range(len(self.leaders)))
        self.uuid: str = uuid
        # Of several ranks the others would have to be told.
        self.seeds = TableSeeds(uuid, keras_seed, follow=self.name is None and self.size == 1)
        self.folder = job_folder.prepare()
        self.group_path = os.path.join(self.folder, f"{self.name or self.uuid}-n{self.node}")
        self._session = session.Session(self.group_path, run, collectives.local_rank, collectives.local_size)
        self.exchange_path = f"{self.group_path}/.exchange-{run}"
        self._joined = False
        self._trainers: weakref.WeakSet[Trainer] = weakref.WeakSet()
        self._cross_node_group: list[Collectives | None] = []
        self._lock = threading.Lock()
        self._ordinal = 0
        self._step: Any = None
        self.lifetimes = self._make_lifetimes()
        if self.is_leader:
            self._start_group()
        else:
            self._wait(self._session.begun, f"the leader to make the group {self.group_path}")
            self._session.join()
        self.collectives.at_exit(self.lifetimes.close)  # before the group is closed
        self._set_threads()

    @property
    def step(self) -> Any:
        """int64 variable: the last step that this rank knows to be published."""
        if self._step is None:
            from tf_sparse_ps._compat import _keras

            self._step = _keras.local_variable(self._committed_step(), "int64", "tfsps_step")
        return self._step

    def join_exchange(self) -> None:
        """Makes this process one that the other ranks of its node see, and can merge gradients with, once.

        All ranks of a node must have joined before one of them looks at the others.
        """
        if self._joined:
            return
        own = self.collectives
        with eager_ops(f"joining the exchange of {self.group_path}") as _ops:
            _ops.join_exchange(
                self.group_path,
                self.exchange_path,
                own.local_rank,
                own.local_size,
                self.rank,
                self.mergers,
                self.exchange_window,
            )
        self._joined = True

    def trained_by(self, trainer: Trainer) -> None:
        """Notes who makes steps of this job's tables.

        Raises:
          StateError: Another one's steps are being made beside its own: they could not be counted.
        """
        for other in self._trainers:
            if other is not trainer and other.outstanding_tables():
                raise StateError(
                    "another optimizer of this process delays steps of tables, and some are outstanding. Call its "
                    "drain() before this one's step; to use both by turns, give it DelayedGlobal(sparse=False)"
                )
        self._trainers.add(trainer)

    @property
    def exchange_window(self) -> int:
        """Bytes of shared memory of this node for one round of gradients: see `exchange_window`."""
        return exchange_window(len(self.leaders), self.mergers)

    def cross_node_group(self) -> Collectives | None:
        """The collectives among the ranks with this one's local rank on all nodes. Every rank calls it; made once.

        Returns:
          None on a rank that does not merge: not every node has a rank of its number.

        Raises:
          RuntimeError: See `Collectives.subset`.
        """
        if not self._cross_node_group:
            members = [[r for r in range(self.size) if self.nodes[r] == node] for node in range(len(self.leaders))]
            self._cross_node_group = [
                self.collectives.subset([ranks[local_rank] for ranks in members]) for local_rank in range(self.mergers)
            ]
        found = [one for one in self._cross_node_group if one is not None]
        return found[0] if found else None

    def create_table(
        self, config: TableConfig, *, salt: int | None = None, values: npt.NDArray[np.float32] | None = None
    ) -> TableBinding:
        """Makes the job's next table, or finds the one that a named job left. Every rank calls it.

        Args:
          config: What the table is. Its name need not be unique. Without a seed it gets the job's (`TableSeeds`).
          salt: Together with the seed determines the initial values; None: the next one.
          values: float32[key_limit, dim] to start with instead of the initializer's values.

        Raises:
          UnsupportedError: It has metadata planes, which tables of layers do not have yet.
          StateError: A named job's table is something else; the ranks build their layers in different orders; the job
            has as many tables as it can have.
          NoSpaceError, AccessError: From the file system.
        """
        if config.metadata:
            raise UnsupportedError(
                f"table {config.name!r}: tables of layers have no metadata planes yet; tsps.Table has. "
                f"Received: metadata={config.metadata}"
            )
        with self._lock:
            ordinal = self._ordinal
            self._ordinal += 1
            seed_of_job, next_salt = self.seeds.of(ordinal)
        resolved = config.resolved_initializer()
        seed = next(seed for seed in (config.seed, resolved.seed, seed_of_job) if seed is not None)
        config = dataclasses.replace(config, seed=seed)
        salt = next_salt if salt is None else salt
        folder = f"t{ordinal:04d}-{config.name}"[:128]
        path = os.path.join(self.group_path, folder)
        binding = TableBinding(
            job=self,
            path=path,
            path_tensor=_tensor_of(path),
            uuid=_digest("table", self.uuid, str(ordinal)),
            config=config,
            ordinal=ordinal,
            salt=salt,
            config_hash=config.hash(),
            explicit=values is not None or resolved.values is not None,
        )
        self.lifetimes.add(binding)
        binding.write(lambda: self._create(binding, resolved, values))
        if not os.path.exists(path):
            raise StateError(
                f"table {ordinal} of this job is {self._table_folders(ordinal)} on the leader and {folder!r} on rank "
                f"{self.rank}: all ranks must build the same layers in the same order"
            )
        if config.optimizer is not None:
            binding.bind_optimizer(config.optimizer)
        return binding

    def publish_write(self, binding: TableBinding) -> None:
        """The leader: tells the node's other ranks that the binding's latest write is done."""
        self._session.publish(binding.ordinal, binding.writes)

    def wait_for_write(self, binding: TableBinding) -> None:
        """Other ranks: return when the leader has done as many writes of the table as this rank has asked for.

        Raises:
          UnavailableError, WaitTimeoutError: The leader did not get there.
        """
        self._wait(
            lambda: self._session.published(binding.ordinal) >= binding.writes,
            f"the leader to write table {binding.path} (its write {binding.writes})",
        )

    # --- making the group ---

    def _start_group(self) -> None:
        with job_folder.locked(self.folder), eager_ops(f"making the group {self.group_path}") as _ops:
            job_folder.remove_leftovers(self.folder, keep=self.group_path)
            if os.path.lexists(self.group_path):
                _ops.open_writer(self.group_path)
                for entry in os.scandir(self.group_path):
                    if entry.name.startswith(".session-"):
                        os.unlink(entry.path)
                    elif entry.name.startswith(".exchange-"):
                        shutil.rmtree(entry.path, ignore_errors=True)
            else:
                _ops.create_group(self.group_path, self.uuid)
            os.mkdir(self.exchange_path, 0o700)
        group, exchange, pid, keep = self.group_path, self.exchange_path, os.getpid(), self.name is not None
        self.collectives.at_exit(lambda: job_end.end_group(group, exchange, pid, keep=keep))
        self._session.begin()

    def _make_lifetimes(self) -> Any:
        from tf_sparse_ps.job.table_lifetime import TableLifetimes

        return TableLifetimes(self._session, self._wait, is_leader=self.is_leader, removes=self.name is None)

    def _create(self, binding: TableBinding, resolved: Any, values: npt.NDArray[np.float32] | None) -> None:
        config = binding.config
        others = set(self._table_folders(binding.ordinal)) - {os.path.basename(binding.path)}
        if others:
            raise StateError(
                f"table {binding.ordinal} of job {self.name!r} is {others.pop()!r} in {self.group_path}; this program "
                f"makes it as {os.path.basename(binding.path)!r}. Use another TFSPS_JOB, or remove the job's directory"
            )
        if os.path.lexists(binding.path):
            self._check_attached(binding, resolved)
            return
        with eager_ops(f"making table {binding.path}") as _ops:
            _ops.create_table(
                binding.path,
                binding.uuid,
                dim=config.dim,
                key_limit=config.key_limit or 0,
                max_rows=config.max_rows or 0,
                initializer=resolved.kind,
                initializer_args=(resolved.a, resolved.b),
                seed=config.seed or 0,
                salt=binding.salt,
                dtype=config.dtype,
                rounding=config.rounding,
            )
        if values is None and resolved.values is not None:
            values = resolved.values()
        if values is not None:
            binding.assign_here(np.arange(len(values), dtype=np.int64), values)

    def _table_folders(self, ordinal: int) -> list[str]:
        return sorted(name for name in os.listdir(self.group_path) if name.startswith(f"t{ordinal:04d}-"))

    def _check_attached(self, binding: TableBinding, resolved: Any) -> None:
        """The table of an earlier run of this named job must be the one this run would make."""
        from tf_sparse_ps import _table

        group = _table.Group.open(self.group_path)
        index = group.find_table(os.path.basename(binding.path))
        info = group.table_info(index)
        config = binding.config
        expected = {"dim": config.dim, "key_limit": config.key_limit or 0, "uuid": binding.uuid}
        expected |= {"dtype": config.dtype, "rounding": config.rounding}
        found = {name: info[name] for name in expected}
        if found != expected:
            raise StateError(
                f"job {self.name!r} has a table {binding.path} with {found}; this program makes it with {expected}. "
                "Use another TFSPS_JOB, or remove the job's directory"
            )
        if resolved.values is None and info["initializer"]["kind"] != resolved.kind:
            raise StateError(
                f"job {self.name!r} has a table {binding.path} with initializer {info['initializer']}; this program "
                f"makes it with {resolved.kind}"
            )
        binding.salt = info["initializer"]["salt"]

    def _committed_step(self) -> int:
        with eager_ops(f"reading the group {self.group_path}") as _ops:
            return int(_ops.group_info(self.group_path).step)

    def _set_threads(self) -> None:
        """A rank's kernels have its share of the node's threads; the leader's update all: the others wait for it."""
        import tensorflow as tf

        ranks, processors = self.collectives.local_size, len(os.sched_getaffinity(0))
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        with eager_ops("setting the number of threads") as _ops:
            _ops.set_threads(
                max(1, (threads or processors) // ranks), min(processors, threads * ranks) if threads else processors
            )

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        look = time.monotonic() + 1.0
        while not done():
            now = time.monotonic()
            if now > deadline:
                raise WaitTimeoutError(f"rank {self.rank} waited {WAIT_S:.0f} s for {what}")
            if now > look and self._session.begun():
                look = now + 1.0
                self._check_leader(what)
            time.sleep(_POLL_S)

    def _check_leader(self, what: str) -> None:
        from tf_sparse_ps import _table

        try:
            info = _table.Group.open(self.group_path).info()
        except NotFoundError:
            raise UnavailableError(
                f"the group {self.group_path} is gone while rank {self.rank} waited for {what}"
            ) from None
        except TableError:
            return
        if not info["writer_alive"]:
            raise UnavailableError(
                f"the leader of node {self.node} (process {info['writer_pid']}) has died; rank {self.rank} was waiting "
                f"for {what}"
            )


_current: Job | None = None
_current_lock = threading.Lock()


def current() -> Job:
    """This process's job, made on first use. In a job of several ranks every rank must get here.

    Raises:
      AccessError: The folder of tables is another user's, a symbolic link, or cannot be written.
      NoSpaceError: There is no room in it.
      WriterLockedError: A job of this name is running.
      RuntimeError: Horovod's launcher started this process and `hvd.init()` was not called.
      ValueError: The job was made before a tf.distribute strategy of several workers was active.
    """
    global _current
    with _current_lock:
        if _current is None:
            _current = Job(protocol.current())
        elif protocol.active_strategy() is not None and (found := protocol.current()).size != _current.size:
            raise ValueError(
                f"this process's first table was made outside of the strategy's scope, for a job of "
                f"{_current.size} rank; here it is worker {found.rank} of {found.size}. Build every layer "
                "within `with strategy.scope():`"
            )
        return _current


def _tensor_of(path: str) -> Any:
    import tensorflow as tf

    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.constant(path)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(("tf_sparse_ps", *parts)).encode()).hexdigest()[:32]
