"""`handshake`: the ranks agree on what they train, and tables get the slots of their update rules.

All functions of this module are eager and collective. They run once per optimizer and set of tables, while the first
step is traced. An error on one rank is raised on all ranks, so that no rank waits for another.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps import _ops, _table, _version, optimizers
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import all_or_none, must_agree
from tf_sparse_ps.config.metadata import USE
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.reduction.optimizer_identity import Claim, OptimizerIdentity, SlotsOf

_CHUNK_BYTES = 16 * 1024 * 1024
_ordinals = itertools.count()
_OTHER_MACHINES = (
    "These are facts of the tables in shared memory. Machines whose tables were made apart from each other would train "
    "different rows. Remove the job's folders on all machines, or use another TFSPS_JOB, and restore a checkpoint"
)


def handshake(
    collectives: Collectives,
    job: Any,
    tables: Sequence[Any],
    rules: Sequence[optimizers.RowOptimizer],
    settings: dict[str, Any],
    identity: OptimizerIdentity,
    iterations: int,
    root: int = 0,
) -> int:
    """Binds update rules to tables.

    Args:
      collectives: The rank's collectives.
      job: The process's `Job`, or None when `tables` is empty.
      tables: `TableBinding`s in the order of their ordinals.
      rules: The update rule of each table.
      settings: Other values that must be equal on all ranks, by name. They are compared as text.
      identity: The identity of the optimizer.
      iterations: The number of steps that the optimizer has made.
      root: The rank whose machine's rows all machines get, if ranks have written different rows.

    Returns:
      A number that names this optimizer's operations, the same on all ranks.

    Raises:
      ValueError: Ranks differ (the message names the rank and the fact); or a table has slots of another rule; or this
        optimizer has trained a table, and another optimizer has trained it since.
    """
    ordinal = next(_ordinals)
    facts = {name: str(value) for name, value in settings.items()}
    facts["number of optimizers and tables bound before"] = str(ordinal)
    facts["TensorFlow"] = tf.__version__
    facts["tf_sparse_ps"] = _version.__version__
    facts["number of tables"] = str(len(tables))
    for table, rule in zip(tables, rules, strict=True):
        label = f"table {table.ordinal} ('{table.config.name}')"
        facts |= {f"{name} of {label}": value for name, value in table.config.facts().items()}
        facts[f"uuid of {label}"] = table.uuid
        facts[f"update rule of {label}"] = f"{rule.kind}{rule.slot_init}"
        if table.placement == "sharded":
            facts[f"`weights` of {label}"] = table.weights_checksum
    if tables:
        facts["committed step of the group"] = str(int(_ops.group_info(job.group_path).step))
    slots = [SlotsOf(table.ordinal, *table.trained_by()) for table in tables]
    everyone = collectives.allgather_object((facts, _stored(tables), identity.claim(slots, iterations)), "tsps.bind")
    must_agree([rank_facts for rank_facts, *_ in everyone])
    must_agree([stored for _, stored, _ in everyone], _OTHER_MACHINES)
    if not tables:
        return ordinal
    claim: Claim = everyone[root][2]  # the root alone may have loaded rows and slots
    if claim.refused is not None:
        names = {table.ordinal: table.config.name for table in tables}
        raise ValueError(
            f"table '{names[claim.refused]}' was trained by this optimizer, and by another one since, so its slots are "
            "those of that optimizer. A table continues with the optimizer that trained it last. Train with that one, "
            "or make a new DistributedOptimizer, which starts with new slots"
        )
    identity.take(claim.identity)

    def make_slots() -> None:
        job.tables.lifetimes.tidy()
        for table, rule in zip(tables, rules, strict=True):
            _bind_table(table, rule, renew=table.ordinal in claim.renewed)
            if job.is_leader and table.trained_by()[0] not in (0, identity.number):  # only the root has loaded rows
                table.set_trained_by(0, 0)

    all_or_none(collectives, make_slots, "making the tables' slots", "tsps.slots", ValueError)
    identity.trains([table.ordinal for table in tables])
    if collectives.rank == 0:
        _report_renewed([table for table in tables if table.ordinal in claim.renewed], claim, job)
    job.step.assign(_ops.group_info(job.group_path).step)
    reconcile(collectives, job, tables, root)
    return ordinal


def _stored(tables: Sequence[Any]) -> dict[str, str]:
    """Returns what the replicated tables of this node were made with."""
    return {
        f"{fact} of table {table.ordinal} ('{table.config.name}')": value
        for table in tables
        if table.placement == "replicated"
        for fact, value in table.made_with().items()
    }


def reconcile(collectives: Collectives, job: Any, tables: Sequence[Any], root: int) -> None:
    """Copies the rows of one machine to all machines, if ranks have written different rows to a replicated table.

    For example, one rank alone may have loaded weights. Sharded tables do not change. Eager; every rank calls it.

    Args:
      collectives: The rank's collectives.
      job: The process's `Job`.
      tables: `TableBinding`s in the order of their ordinals.
      root: The rank whose machine's rows are copied.

    Raises:
      ValueError: Ranks have different tables.
    """
    own_states = [(table.uuid, table.writes, table.content, table.leader_wrote_values) for table in tables]
    everyone = collectives.allgather_object(own_states, "tsps.written")
    for rank, states in enumerate(everyone):
        if [uuid for uuid, *_ in states] != [uuid for uuid, *_ in own_states]:
            raise ValueError(
                f"the {len(states)} tables of rank {rank} are not the {len(own_states)} tables of rank "
                f"{collectives.rank}. Rows would be copied between different tables, so all ranks must build the same "
                "layers in the same order"
            )
    for t, table in enumerate(tables):
        if table.placement != "replicated":
            continue
        versions = [states[t][1:] for states in everyone]
        writes, content, leader_wrote_values = versions[root]
        # An earlier run may have been killed while the leaders wrote a table outside of steps.
        differ = leader_wrote_values or table.is_of_earlier_run or len(set(versions)) > 1
        if len(job.leaders) > 1 and differ:
            _copy_to_other_nodes(collectives, job, table, root)
        table.agree(writes, content)
    collectives.barrier("tsps.bound")


def _report_renewed(tables: Sequence[Any], claim: Claim, job: Any) -> None:
    """Prints which tables keep their rows while their slots are reset, and why."""
    group = job.group
    names = ", ".join(f"'{table.config.name}'" for table in tables)
    text = ""
    if tables and claim.earlier_run and group.found_at_step:
        text = (
            f"job '{job.identity.name}' continues with tables of an earlier run, at step {group.found_at_step}, and "
            f"no checkpoint was restored. The rows of {names} are kept. Their optimizer's slots and the dense weights "
            "are reset. To resume where training ended, give fit tsps.callbacks.Checkpoint. To start from the "
            f"beginning, remove {group.path}"
        )
    elif any(table.optimizer.slots for table in tables):
        text = f"another optimizer has trained {names} before. The rows are kept, and the slots are reset"
    if text:
        print(f"tf_sparse_ps: {text}", file=sys.stderr, flush=True)


def _bind_table(table: Any, rule: optimizers.RowOptimizer, *, renew: bool) -> None:
    before = table.optimizer
    replace = before is not None and before.slot_identity != rule.slot_identity
    if replace:
        warnings.warn(
            f"table '{table.config.name}' was trained with {before.kind} in this process and is now bound to "
            f"{rule.kind}. Its rows are kept, and its slots are reset",
            stacklevel=2,
        )
    try:
        table.bind_optimizer(rule, replace=replace, renew=renew and not replace)
    except StateError as error:
        raise ValueError(f"{error}. Use the rule that the table was trained with, or another TFSPS_JOB.") from error


def _copy_to_other_nodes(collectives: Collectives, job: Any, table: Any, root: int) -> None:
    """Copies a table from the root's node to all other nodes: keys, rows, slots, their use and their optimizer."""
    is_root, nodes = collectives.rank == root, job.identity.nodes
    writes = job.is_leader and nodes[collectives.rank] != nodes[root]
    dim = table.config.dim
    widths = [dim, *(() if table.optimizer is None else _table.slot_widths(table.optimizer.kind, dim))]
    stored = table.reader().keys() if is_root else None
    content = None if stored is None else (len(stored), table.records_use)
    n, has_use = collectives.broadcast_object(content, root, "tsps.values.count")
    had_rows = writes and table.begin_replacing()
    written: list[Any] = [np.empty(0, np.int64)]
    rows_per_chunk = max(1, _CHUNK_BYTES // (4 * dim))
    for start in range(0, n, rows_per_chunk):
        size = min(rows_per_chunk, n - start)
        keys, values = tf.zeros([size], tf.int64), [tf.zeros([size, width]) for width in widths]
        use = tf.zeros([size * has_use], tf.int64)
        if stored is not None:
            part = stored[start : start + size]
            _, rows, slots = table.reader().entries(part)
            keys, values = tf.constant(part), [tf.constant(rows), *map(tf.constant, slots)]
            if has_use:
                use = tf.constant(table.reader().metadata(part)[USE.name].view(np.int64).reshape(-1))
        keys = collectives.broadcast(keys, root, "tsps.values.keys")
        values = [collectives.broadcast(value, root, f"tsps.values.{k}") for k, value in enumerate(values)]
        if has_use:
            use = collectives.broadcast(use, root, "tsps.values.use")
        if writes:
            part_use = use if has_use and table.records_use else None
            _ops.assign(table.path, table.uuid, keys, values[0], values[1:], part_use)
            written.append(keys.numpy())
    made_by = collectives.broadcast_object(table.trained_by() if is_root else None, root, "tsps.values.optimizer")
    if writes:
        table.set_trained_by(*made_by)
    if had_rows and (absent := np.setdiff1d(table.reader().keys(), np.concatenate(written))).size:
        _ops.erase(table.path, table.uuid, absent)
