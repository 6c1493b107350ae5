"""`JobTables`: the tables that a job's layers use, numbered in the order in which the layers are built.

That order must be the same on all ranks: a table's identity is (job, node, ordinal), never the layer's name.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import _table
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.config import initializers
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.config.metadata import USE
from tf_sparse_ps.config.policies import describe_changes
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import StateError, UnsupportedError
from tf_sparse_ps.job.cached_binding import CachedBinding
from tf_sparse_ps.job.identity import Identity, digest
from tf_sparse_ps.job.node_group import NodeGroup
from tf_sparse_ps.job.table_binding import TableBinding, number_of
from tf_sparse_ps.job.table_lifetime import TableLifetimes
from tf_sparse_ps.job.table_seeds import TableSeeds
from tf_sparse_ps.node import job_folder
from tf_sparse_ps.table import disk_folders, newer_rows, stored_policies
from tf_sparse_ps.table.arrays import checksum

ACCEPT = "TFSPS_ACCEPT_LOST_ROWS"  # the name of a job that may continue although rows on a device were lost
_OTHER_JOB = "A table cannot change its configuration. Use another TFSPS_JOB, or remove the job's folder"


class JobTables:
    """Makes a job's tables.

    Attributes:
      seeds: The seeds and salts of the tables.
      lifetimes: Frees the tables that are not used any more.
    """

    def __init__(self, identity: Identity, group: NodeGroup) -> None:
        """Starts without tables.

        Args:
          identity: The identity of this rank.
          group: The group that will contain the tables.
        """
        self._identity, self._group = identity, group
        # With several ranks, a seed that one rank sets later would be unknown to the others.
        follow = identity.name is None and identity.size == 1
        self.seeds = TableSeeds(identity.uuid, identity.keras_seed, follow=follow)
        self.lifetimes = TableLifetimes(
            group.session, group.wait, is_leader=identity.is_leader, removes=identity.name is None
        )
        self._lock = threading.Lock()
        self._ordinal = 0

    def create(
        self, config: TableConfig, *, salt: int | None = None, values: npt.NDArray[np.float32] | None = None
    ) -> TableBinding:
        """See `Job.create_table`."""
        if config.metadata:
            raise UnsupportedError(
                f"table {config.name!r}: tables of layers have no metadata planes yet. Use tsps.Table, which has them. "
                f"Received: metadata={config.metadata}"
            )
        binding, initializer = self._bind_next(config, salt, values is not None)
        binding.check_eviction()
        if binding.placement == "sharded" and values is not None:
            binding.weights_checksum = f"of checksum {checksum(np.asarray(values, np.float32))}"
        self.lifetimes.add(binding)
        leader_wrote_values = binding.leader_wrote_values
        with binding.writing(number_of("made")) as writes:
            if writes:
                self._make_or_attach(binding, initializer, values)
                self._set_policies(binding)
        binding.agree(0, 0)
        binding.leader_wrote_values = leader_wrote_values
        binding.is_of_earlier_run = self._identity.name is not None
        if not os.path.exists(binding.path):
            raise StateError(
                f"table {binding.ordinal} of this job is {self._group.table_folders(binding.ordinal)} on the leader "
                f"and {os.path.basename(binding.path)!r} on rank {self._identity.rank}. Ranks find each other's tables "
                "by their numbers, so all ranks must build the same layers in the same order"
            )
        if config.optimizer is not None:
            binding.bind_optimizer(config.optimizer)
        return binding

    def _bind_next(self, config: TableConfig, salt: int | None, has_values: bool) -> tuple[TableBinding, Any]:
        """Returns the next table's binding, and the initializer that its configuration names."""
        with self._lock:
            ordinal = self._ordinal
            self._ordinal += 1
            seed_of_job, next_salt = self.seeds.of(ordinal)
        initializer = config.resolved_initializer()
        seed = next(seed for seed in (config.seed, initializer.seed, seed_of_job) if seed is not None)
        config = dataclasses.replace(config, seed=seed)
        path = os.path.join(self._group.path, f"t{ordinal:04d}-{config.name}"[: 128 - len(SKETCH)])
        binding_type = TableBinding if config.cache is None else CachedBinding
        binding = binding_type(
            group=self._group,
            path=path,
            path_tensor=_tensor_of(path),
            uuid=digest("table", self._identity.uuid, str(ordinal)),
            config=config,
            ordinal=ordinal,
            salt=next_salt if salt is None else salt,
            leader_wrote_values=has_values or initializer.values is not None,
        )
        return binding, initializer

    # --- on the leader ---

    def _shard_of(self, binding: TableBinding) -> dict[str, int]:
        """Returns the part of the table that this node has, as arguments of the core."""
        return (
            {"node": binding.node, "nodes": binding.nodes}
            if binding.placement == "sharded"
            else {"node": 0, "nodes": 0}
        )

    def _make_or_attach(self, binding: TableBinding, initializer: Any, values: npt.NDArray[np.float32] | None) -> None:
        other_folders = set(self._group.table_folders(binding.ordinal)) - {os.path.basename(binding.path)}
        if other_folders:
            raise StateError(
                f"table {binding.ordinal} of job {self._identity.name!r} is {other_folders.pop()!r} in "
                f"{self._group.path}, but this program makes it as {os.path.basename(binding.path)!r}. Another "
                "program, or this one with other layers, has made the tables. Use another TFSPS_JOB, or remove this "
                "folder"
            )
        if os.path.lexists(binding.path):
            group = self._attach(binding, initializer)
            first_rows = len(values) if values is not None else (binding.config.key_limit or 0)
            if (values is None and initializer.values is None) or not _lacks_first_rows(binding, group, first_rows):
                return
        else:
            self._make(binding, initializer)
        if values is None and initializer.values is not None:
            if binding.placement == "sharded":  # one rank makes the matrix, because each process would draw another one
                binding.needs_initial_matrix = True
                return
            values = initializer.values()
        if values is not None:
            binding.write_rows(np.arange(len(values), dtype=np.int64), values)

    def _make(self, binding: TableBinding, initializer: Any) -> None:
        config = binding.config
        with (
            disk_folders.prepared(config.storage, binding.path) as (storage_folder, storage_memory),
            eager_ops(f"making table {binding.path}") as _ops,
        ):
            _ops.create_table(
                binding.path,
                binding.uuid,
                dim=config.dim,
                key_limit=config.key_limit or 0,
                max_rows=config.max_rows or 0,
                initializer=initializer.kind,
                initializer_args=(initializer.a, initializer.b),
                seed=config.seed or 0,
                salt=binding.salt,
                dtype=config.dtype,
                rounding=config.rounding,
                storage_folder=storage_folder,
                storage_memory=storage_memory,
                records_use=USE in config.planes,
                **self._shard_of(binding),
            )

    def _set_policies(self, binding: TableBinding) -> None:
        binding.set_eviction()
        admission = binding.config.admission
        if binding.set_admission() and admission is not None:
            warnings.warn(admission.forgotten(binding.path), stacklevel=5)
        if self._identity.name is None:
            return
        policies = binding.config.policies()
        before = stored_policies.replace(binding.path, policies)
        if before is not None and self._identity.rank == 0:
            for change in describe_changes(binding.config.name, before, policies):
                job_folder.say(change)

    def _attach(self, binding: TableBinding, initializer: Any) -> _table.Group:
        """Opens the table of an earlier run of this named job, and checks that this run would make the same table.

        Returns:
          The group, opened for reading.
        """
        name, config = self._identity.name, binding.config
        group = _table.Group.open(self._group.path)
        info = group.table_info(group.find_table(os.path.basename(binding.path)))
        expected = {"dim": config.dim, "key_limit": config.key_limit or 0, "uuid": binding.uuid}
        expected |= {"dtype": config.dtype, "rounding": config.rounding, "max_rows": config.max_rows or 0}
        stored_shard = {key: info[key] for key in ("node", "nodes")}
        if (shard := self._shard_of(binding)) != stored_shard:
            raise StateError(
                f"job {name!r} has a table {binding.path} with {_describe(stored_shard)}; this program makes it with "
                f"{_describe(shard)}. The node of a row depends on the number of nodes. Start the job on as many nodes "
                "as before, in the same order. Or use another TFSPS_JOB and load saved weights (model.load_weights), "
                "which works with any number of nodes"
            )
        expected["storage_folder"], expected["storage_memory"] = disk_folders.of(config.storage, binding.path)
        stored = {fact: info[fact] for fact in expected}
        if stored != expected:
            raise StateError(
                f"job {name!r} has a table {binding.path} with {stored}, but this program makes it with {expected}. "
                f"{_OTHER_JOB}"
            )
        stored = initializers.deciding(info["initializer"])
        values = {name: float(np.float32(getattr(initializer, name))) for name in ("a", "b")}
        expected = {**info["initializer"], "kind": initializer.kind, **values, "seed": config.seed or 0}
        if initializer.values is None and stored != initializers.deciding(expected):
            raise StateError(
                f"job {name!r} has a table {binding.path} with initializer {stored}, but this program makes it with "
                f"{initializers.deciding(expected)}. {_OTHER_JOB}"
            )
        if USE in config.planes and USE.for_core() not in info["metadata"]:
            raise StateError(
                f"job {name!r} has a table {binding.path} that does not record the use of its rows, so it cannot evict "
                "any. Save the job's state, and continue from it under another TFSPS_JOB"
            )
        if config.cache is not None and USE.for_core() in info["metadata"]:
            raise StateError(
                f"job {name!r} has a table {binding.path} that evicted rows in an earlier run, and cannot have a "
                "device cache. Leave out `cache`; or save the job's state, and continue from it under another TFSPS_JOB"
            )
        binding.salt = info["initializer"]["salt"]
        _refuse_lost_rows(binding, str(name))
        return group


def _lacks_first_rows(binding: TableBinding, group: _table.Group, first_rows: int) -> bool:
    """Returns whether an earlier run was killed between making a table and writing its initial rows.

    Args:
      binding: The binding of the table.
      group: The group, opened for reading.
      first_rows: The number of initial rows, which have the keys 0 to `first_rows` - 1.
    """
    if group.step() > 0:
        return False
    expected = first_rows
    if binding.placement == "sharded":
        owners = _table.owners(np.arange(first_rows, dtype=np.int64), binding.nodes)
        expected = int(np.count_nonzero(owners == binding.node))
    return int(group.stats(group.find_table(os.path.basename(binding.path)))["rows"]) < expected


def _refuse_lost_rows(binding: TableBinding, name: str) -> None:
    """Raises StateError if rows of a table were newer on a device when the run that trained them was killed."""
    since = newer_rows.dirty_since(binding.path)
    if since is None:
        return
    if os.environ.get(ACCEPT) == name:
        newer_rows.accept(binding.path)
        return
    raise StateError(
        f"job {name!r} was killed while rows of its table {binding.path} were newer on a device (cache=...), since "
        f"step {since}. These rows have the values of the last flush before that step, and other rows are newer. Use "
        "another TFSPS_JOB, or remove the job's folder, and load saved weights (model.load_weights). To accept the "
        f"mixture, set {ACCEPT}={name}. Set it also if the job restores a checkpoint, which replaces all rows"
    )


def _tensor_of(path: str) -> tf.Tensor:
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.constant(path)


def _describe(shard: dict[str, int]) -> str:
    return f"the rows of node {shard['node']} of {shard['nodes']}" if shard["nodes"] else "all rows"
