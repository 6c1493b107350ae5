"""Groups and tables: steps, and everything outside of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib

NO_OBJECTIONS = bytes(1)  # a verdict, as uint8
NOBODY = (0, 0)  # of the `optimizer` of a step: any table may be trained
# A verdict that digests differ: its code, that of FailedPrecondition, and a text.
RANKS_DIFFER = b"\4the ranks of this job differ in something that must be equal on all of them\0"


def make_step(
    path: str,
    step: tf.Tensor,
    timeout_s: float,
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    hyper: Sequence[tf.Tensor],
    optimizer: tf.Tensor | tuple[int, int] = NOBODY,
    digest: tf.Tensor | int = 0,
    *,
    operation: str,
) -> tf.Tensor:
    """One optimizer step of a job of one node, whose ranks all call it; what the leader is given is applied.

    Returns when it is certain whether the step is made: everything that can fail has been done. The leader then writes
    beside what follows; `wait_step` waits for that.

    Args:
        path: of the group.
        step: int64, the committed step + 1.
        timeout_s: how long ranks wait for the leader.
        paths: T scalar strings, of the tables.
        uuids: T scalar strings.
        keys: T of int64[u_t], unique within a table (`merge` sees to it).
        grads: T of float32[u_t, dim].
        hyper: T of float32: the hyperparameters of each table's optimizer, in the order of
            cc/core/table/row_optimizer.h.
        optimizer: int64[2]: who makes the step, and how many it has made with this one (`OptimizerIdentity`).
        digest: int64, of `facts`: where ranks have different ones the step is refused (FailedPrecondition).
        operation: a name for messages, of at most 127 characters.

    Returns:
        uint8[n], the verdict, the same on all ranks, for `check_step`, which raises what the leader refuses the step
        for: no optimizer is bound; a table's slots are another optimizer's; the step is not the next one; a gradient
        that is not finite or a key that repeats, naming table and key; a wrong shape; no room for new rows.

    Raises:
        UnavailableError, DeadlineExceededError, AbortedError: as `node_merge`, about the leader.
    """
    return lib.tsps_make_step(
        path, step, timeout_s, paths, uuids, keys, grads, hyper, optimizer, digest, operation=operation
    )


def prepare_step(
    path: str,
    step: tf.Tensor,
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    hyper: Sequence[tf.Tensor],
    optimizer: tf.Tensor | tuple[int, int] = NOBODY,
    voters: int = 1,
) -> tf.Tensor:
    """Does everything in a step of a node's tables that can fail. `decide_step` makes it, or drops it. Writer only.

    Args:
        path: of the group.
        step, paths, uuids, keys, grads, hyper, optimizer: as in `make_step`.
        voters: groups that make the step together or not at all. Of several the step is written, too, and the group
            sealed: if the job ends before `decide_step`, the next one must ask the others what became of it.

    Returns:
        uint8[n], the objections of this node to the step; `NO_OBJECTIONS` if there are none.
    """
    return lib.tsps_prepare_step(path, step, paths, uuids, keys, grads, hyper, optimizer, voters=voters)


def decide_step(path: str, verdicts: tf.Tensor) -> tf.Tensor:
    """Makes the prepared step if no node objects, else drops it. Every rank calls it.

    Returns when it is certain which; the leader then writes beside what follows.

    Args:
        path: of the group.
        verdicts: uint8[n], all nodes' one after another; statements (`statement`) may be among them.

    Returns:
        uint8[n], the first refusal among them, for `check_step`.
    """
    return lib.tsps_decide_step(path, verdicts)


def check_step(step: tf.Tensor, verdict: tf.Tensor) -> tf.Tensor:
    """Returns `step`, int64, if it is made.

    Raises:
        OpError: it was refused; of the type and with the text of the leader that refused it.
    """
    return lib.tsps_check_step(step, verdict)


def wait_step(path: tf.Tensor | str, step: tf.Tensor | int, timeout_s: tf.Tensor | float) -> tf.Tensor:
    """Waits until `step` of the group is published and returns it. Holds none of TensorFlow's threads meanwhile.

    Raises:
        DeadlineExceededError: not published within timeout_s.
        UnavailableError: the writer died first (names its process and the step), or `close_group` cancelled the wait.
    """
    return lib.tsps_wait_step(path, step, timeout_s)


def create_group(path: str, uuid: str, *, life: int | None = None, index_seed: int | None = None) -> None:
    """Creates a group, whose directory must not exist, and makes this process its writer.

    Args:
        path: of the group.
        uuid: 32 hex digits.
        life: tells it from earlier groups with this uuid, below 2**63, not 0. None: drawn.
        index_seed: from which those of its tables' indexes follow, below 2**63. Whoever knows it can choose keys that
            collide. None: drawn.
    """
    life = secrets.randbits(62) + 1 if life is None else life
    index_seed = secrets.randbits(63) if index_seed is None else index_seed
    lib.tsps_create_group(path, uuid, tf.constant(life, tf.int64), tf.constant(index_seed, tf.int64))


def open_writer(path: str, outcome: str = "refuse") -> tf.Tensor:
    """Makes this process the writer of an existing group, recovering it if need be. Returns the committed step, int64.

    Args:
        path: of the group.
        outcome: what becomes of a step that a writer before has sealed together with other groups: "undo", "publish",
            or "refuse", an error.

    Raises:
        AbortedError: another process is the writer.
        FailedPreconditionError: there is a sealed step, and `outcome` is "refuse".
    """
    return lib.tsps_open_writer(path, outcome)


def set_run(path: str, run_id: int) -> None:
    """Says of which run of a job the writer of a group is, a number below 2**63. Writer only."""
    lib.tsps_set_run(path, tf.constant(run_id, tf.int64))


def create_table(
    path: str,
    uuid: str,
    *,
    dim: int,
    key_limit: int = 0,
    max_rows: int = 0,
    initializer: str = "zeros",
    initializer_args: Sequence[float] = (0.0, 0.0),
    seed: int = 0,
    salt: int = 0,
    dtype: str = "float32",
    rounding: str = "stochastic",
    storage_folder: str = "",
    storage_memory: int = 0,
    node: int = 0,
    nodes: int = 0,
) -> None:
    """Creates a table. Writer only.

    Args:
        path: <group directory>/<table folder>.
        uuid: 32 hex digits.
        dim: floats per row.
        key_limit: keys are 0 .. key_limit - 1; 0: any int64 is a key.
        max_rows: 0: no limit.
        initializer: "zeros", "constant", "uniform", "normal", "truncated_normal".
        initializer_args: (value, 0), (minval, maxval) or (mean, stddev).
        seed: of the job.
        salt: of the table, so that tables with one seed differ.
        dtype: of the rows: "float32", "bfloat16", "float16".
        rounding: of rows of 16 bits: "stochastic", "nearest".
        storage_folder: on a disk, for rows that are not in memory; "": all are.
        storage_memory: bytes of memory that the table may take then.
        node, nodes: of a table that is spread over nodes: which part of it this is; 0, 0: the whole table.
    """
    args = tf.constant(initializer_args, tf.float32)
    given = (initializer, args, seed, salt, dtype, rounding, storage_folder)
    lib.tsps_create_table(
        path, uuid, dim, key_limit, max_rows, *given, tf.constant(storage_memory, tf.int64), node, nodes
    )


def bind_optimizer(path: str, uuid: str, kind: str, slot_init: Sequence[float] = (), *, replace: bool = False) -> None:
    """Creates a table's optimizer slots ("none", "sgd", "adagrad", "adam", "rowwise_adagrad"). Writer only.

    Args:
        path: of the table.
        uuid: of the table.
        kind: the rule.
        slot_init: initial value of every element of each slot.
        replace: drop the slots of another rule, instead of refusing.
    """
    lib.tsps_bind_optimizer(path, uuid, kind, tf.constant(slot_init, tf.float32, [len(slot_init)]), replace)


def renew_slots(path: str, uuid: str) -> None:
    """Gives all rows of a table the initial values of its slots: any optimizer may train it next. Writer only."""
    lib.tsps_renew_slots(path, uuid)


def set_optimizer(path: str, uuid: str, identity: int, steps: int) -> None:
    """Says which optimizer made a table's slots, and how many steps it had made; 0: any may go on. Writer only."""
    lib.tsps_set_optimizer(path, uuid, tf.constant([identity, steps], tf.int64))


def take_index_seed(path: str, uuid: str, index_seed: int) -> None:
    """Gives a table's index this seed, if the table has never had a row. Writer only."""
    signed = index_seed - (1 << 64) if index_seed >= 1 << 63 else index_seed
    lib.tsps_take_index_seed(path, uuid, tf.constant(signed, tf.int64))


def assign(
    path: tf.Tensor | str, uuid: tf.Tensor | str, keys: tf.Tensor, rows: tf.Tensor, slots: Sequence[tf.Tensor] = ()
) -> None:
    """Sets rows (and slots), adding absent keys. Writer only.

    Args:
        path: of the table.
        uuid: of the table.
        keys: int64[n].
        rows: float32[n, dim].
        slots: none (existing keys keep theirs), or float32[n, dim] for every slot, float32[n, 1] of a rule that keeps
            one float per row.
    """
    lib.tsps_assign(path, uuid, keys, rows, list(slots))


def erase(path: tf.Tensor | str, uuid: tf.Tensor | str, keys: tf.Tensor) -> tf.Tensor:
    """Removes keys, int64[n]; returns how many were there, int64. Writer only."""
    return lib.tsps_erase(path, uuid, keys)


def announce(
    path: tf.Tensor | str,
    uuid: tf.Tensor | str,
    keys: tf.Tensor,
    dataset: int,
    index: tf.Tensor,
    batches: int,
    nodes: int = 1,
    node: int = 0,
) -> tf.Operation:
    """Says that a coming batch looks up keys, int64[n]: those on disk are read ahead, in passes of several batches.

    Args:
        path, uuid: of a table.
        keys: of the batch.
        dataset: a number of the dataset's.
        index: of the batch in its iterator, int64; 0 drops what the iterator before it has announced.
        batches: of a pass.
        nodes, node: of a table that is spread over several nodes: how many, and this one, whose keys count.
    """
    of, per_pass, all_nodes, own = (tf.constant(one, tf.int64) for one in (dataset, batches, nodes, node))
    return lib.tsps_announce(path, uuid, keys, of, index, per_pass, all_nodes, own)


class DiskCounters(NamedTuple):
    """What `disk_counters` returns, int64 each."""

    records: tf.Tensor  # rows read from disks
    bytes: tf.Tensor  # of these reads, what lies between the rows included
    late: tf.Tensor  # of the rows, those that were needed when they were read
    cached: tf.Tensor  # rows that were needed and had been read before
    waited_ns: tf.Tensor  # for rows that were needed
    batches: tf.Tensor  # announced
    passes: tf.Tensor  # of several batches, whose rows were read ahead
    dropped: tf.Tensor  # batches of iterators that were given up
    failed: tf.Tensor  # passes
    staging_ns: tf.Tensor  # for passes


def disk_counters() -> DiskCounters:
    """What this process has read from disks since it began."""
    return DiskCounters(*lib.tsps_disk_counters())


def set_step(path: tf.Tensor | str, step: tf.Tensor | int) -> None:
    """Sets the committed step of a group, for a restored state. Writer only."""
    lib.tsps_set_step(path, step)


def mark_changes(path: tf.Tensor | str) -> tf.Tensor:
    """Begins another change generation of a group, and returns it, int64. Writer only."""
    return lib.tsps_mark_changes(path)


class GroupInfo(NamedTuple):
    """What `group_info` returns."""

    step: tf.Tensor  # int64: last published step
    version: tf.Tensor  # int64: assigns, erases, table creations and removals, and optimizer bindings so far
    counters: tf.Tensor  # int64[8], of this process: COUNTERS


COUNTERS = (
    "read_retries",
    "read_blocked_ns_max",
    "steps_applied",
    "rows_written",
    "growth_splits",
    "growth_ns_max",
    "publish_ns_max",
    "growth_blocked_ns_max",
)


def group_info(path: tf.Tensor | str) -> GroupInfo:
    """State of a group and counters of this process."""
    return GroupInfo(*lib.tsps_group_info(path))


def next_step(path: tf.Tensor | str, known: tf.Tensor) -> tf.Tensor:
    """The number of the step that is made next, int64.

    The group counts, too: an exception may have ended the step before when its tables had it, and this process had not
    noted that yet.

    Args:
      path: Of the group.
      known: int64, the last step that this process knows of.
    """
    return lib.tsps_next_step(path, known)


def remove_table(path: str, uuid: str) -> None:
    """Removes a table and its files; who reads it finds it whole or not at all. Writer only.

    Raises:
        NotFoundError: there is no such table.
    """
    lib.tsps_remove_table(path, uuid)


def forget_table(path: str) -> None:
    """Unmaps a table in this process, if it is mapped; later ops map it again. Does nothing in the writer's process."""
    lib.tsps_forget_table(path)


def close_group(path: tf.Tensor | str) -> None:
    """Drops this process's handle and writer lock and ends waits; later ops open the path anew."""
    lib.tsps_close_group(path)


def set_threads(threads: int, writer_threads: int) -> None:
    """Sets the sizes of the op library's thread pools: of all ops, and of updates. 0: all processors it may use."""
    lib.tsps_set_threads(threads, writer_threads)


def hold_terminate() -> None:
    """From now on std::terminate waits two seconds before it ends the process: Horovod calls it when others end."""
    lib.tsps_hold_terminate()


def out_of_room() -> bool:
    """Whether an op of this process failed because there was no room, and no step was made since."""
    return bool(lib.tsps_out_of_room())
