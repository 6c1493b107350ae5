"""Groups and tables: makes steps, and reads and changes groups and tables outside of steps."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib

NO_OBJECTIONS = bytes(1)  # the verdict of a node without objections, as uint8
NOBODY = (0, 0)  # the `optimizer` of a step that may train any table
# The verdict that digests differ: the code of FailedPrecondition, and a text.
RANKS_DIFFER = b"\4the ranks of this job differ in something that must be equal on all of them\0"


def counts_of(keys: Sequence[tf.Tensor], counts: Sequence[tf.Tensor | None] | None) -> list[tf.Tensor]:
    """Returns counts as ops take them. A table without counts has int32[0]: each of its keys is of one rank."""
    return [
        tf.zeros([0], tf.int32) if table_counts is None else table_counts
        for table_counts in ([None] * len(keys) if counts is None else counts)
    ]


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
    counts: Sequence[tf.Tensor | None] | None = None,
) -> tf.Tensor:
    """Makes one optimizer step of a job of one node. All ranks call it; only the leader's gradients are applied.

    The op returns when the step is decided: everything that can fail has been done. The leader writes the step while
    the program continues. `wait_step` waits for the end of this write.

    Args:
        path: The path of the group.
        step: The number of this step, int64, which is the committed step + 1.
        timeout_s: The time that ranks wait for the leader, in seconds.
        paths: The paths of the tables, T scalar strings.
        uuids: The uuids of the tables, T scalar strings.
        keys: The keys of the gradients, T of int64[u_t], unique within a table.
        grads: The gradients, T of float32[u_t, dim].
        hyper: The hyperparameters of each table's optimizer, T of float32, in the order of
            cc/core/table/row_optimizer.h.
        optimizer: The identity of the optimizer and its number of steps with this one, int64[2] (`OptimizerIdentity`).
        digest: The digest from `facts`, int64. If the digests of the ranks differ, the step is refused
            (FailedPrecondition).
        operation: The name of the operation in messages, at most 127 characters.
        counts: The counts of the keys (`take_occurrences`), T of int32[u_t]; None: each key has occurred once.

    Returns:
        The verdict, uint8[n], for `check_step`. It is the same on all ranks. If the step is refused, it contains the
        error.

    Raises:
        UnavailableError, DeadlineExceededError, AbortedError: The leader died, did not respond, or failed.
    """
    gradients = keys, grads, counts_of(keys, counts)
    return lib.tsps_make_step(
        path, step, timeout_s, paths, uuids, *gradients, hyper, optimizer, digest, operation=operation
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
    *,
    counts: Sequence[tf.Tensor | None] | None = None,
) -> tf.Tensor:
    """Does everything in a step of a node's tables that can fail. `decide_step` commits or drops it. Writer only.

    Args:
        path: The path of the group.
        step: See `make_step`; likewise paths, uuids, keys, grads, hyper, optimizer and counts.
        voters: The number of groups that make the step together or not at all. With several groups, the step is also
            written, and the group is sealed: if the job ends before `decide_step`, the next job must ask the other
            groups whether the step was made.

    Returns:
        The objections of this node to the step, uint8[n]. `NO_OBJECTIONS` if there are none.
    """
    gradients = keys, grads, counts_of(keys, counts)
    return lib.tsps_prepare_step(path, step, paths, uuids, *gradients, hyper, optimizer, voters=voters)


def decide_step(path: str, verdicts: tf.Tensor) -> tf.Tensor:
    """Commits the prepared step if no node objects, otherwise drops it. Every rank calls it.

    The op returns when the step is decided. The leader writes the step while the program continues.

    Args:
        path: The path of the group.
        verdicts: The concatenated verdicts of all nodes, uint8[n]. They may include statements (`statement`).

    Returns:
        The first refusal among the verdicts, uint8[n], for `check_step`.
    """
    return lib.tsps_decide_step(path, verdicts)


def check_step(step: tf.Tensor, verdict: tf.Tensor) -> tf.Tensor:
    """Returns `step`, int64, if the step is made.

    Raises:
        OpError: The step was refused. Type and message are those of the error on the node that refused it.
    """
    return lib.tsps_check_step(step, verdict)


def wait_step(path: tf.Tensor | str, step: tf.Tensor | int, timeout_s: tf.Tensor | float) -> tf.Tensor:
    """Waits until `step` of the group is published, and returns it. The wait holds none of TensorFlow's threads.

    Raises:
        DeadlineExceededError: The step is not published within `timeout_s` seconds.
        UnavailableError: The writer died first (the message names its process and the step), or `close_group` cancelled
            the wait.
    """
    return lib.tsps_wait_step(path, step, timeout_s)


def create_group(path: str, uuid: str, *, life: int | None = None, index_seed: int | None = None) -> None:
    """Creates a group, whose directory must not exist, and makes this process its writer.

    Args:
        path: The path of the group.
        uuid: The uuid of the group, 32 hexadecimal digits.
        life: A number that distinguishes the group from earlier groups with this uuid, 1 to 2**63 - 1. None: a random
            one.
        index_seed: The seed from which the seeds of the tables' indexes follow, below 2**63. A person who knows it can
            choose keys that collide. None: a random one.
    """
    life = secrets.randbits(62) + 1 if life is None else life
    index_seed = secrets.randbits(63) if index_seed is None else index_seed
    lib.tsps_create_group(path, uuid, tf.constant(life, tf.int64), tf.constant(index_seed, tf.int64))


def open_writer(path: str, outcome: str = "refuse") -> tf.Tensor:
    """Makes this process the writer of an existing group, and recovers it if necessary. Returns the committed step.

    Args:
        path: The path of the group.
        outcome: The fate of a step that a previous writer has sealed together with other groups: "undo", "publish", or
            "refuse" to raise an error.

    Raises:
        AbortedError: Another process is the writer.
        FailedPreconditionError: The group has a sealed step, and `outcome` is "refuse".
    """
    return lib.tsps_open_writer(path, outcome)


def set_run(path: str, run_id: int) -> None:
    """Records the run of the job that the writer of a group belongs to, a number below 2**63. Writer only."""
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
    records_use: bool = False,
) -> None:
    """Creates a table. Writer only.

    Args:
        path: The path, `<group directory>/<table folder>`.
        uuid: The uuid of the table, 32 hexadecimal digits.
        dim: The number of floats per row.
        key_limit: The number of keys, 0 .. key_limit - 1; 0: any int64 is a key.
        max_rows: The largest number of rows; 0: no limit.
        initializer: "zeros", "constant", "uniform", "normal" or "truncated_normal".
        initializer_args: The parameters of the initializer: (value, 0), (minval, maxval) or (mean, stddev).
        seed: The seed of the job.
        salt: The salt of the table, which makes tables with the same seed differ.
        dtype: The type of the rows: "float32", "bfloat16" or "float16".
        rounding: The rounding of rows of 16 bits: "stochastic" or "nearest".
        storage_folder: The folder on a disk for rows that are not in memory; "": all rows are in memory.
        storage_memory: The bytes of memory that a table with rows on disk may take.
        node: The number of this node, for a sharded table; else 0.
        nodes: The number of nodes, for a sharded table; 0: the whole table is here.
        records_use: Whether steps record the use of rows, which evicting them needs.
    """
    args = tf.constant(initializer_args, tf.float32)
    memory = tf.constant(storage_memory, tf.int64)
    values = (initializer, args, seed, salt, dtype, rounding, storage_folder, memory)
    lib.tsps_create_table(path, uuid, dim, key_limit, max_rows, *values, node, nodes, records_use)


def set_eviction(path: str, uuid: str, order: str, numbers: Sequence[int], keep: Sequence[int]) -> None:
    """Determines which rows of a table the steps of this process evict. Writer only.

    Args:
        path: The path of the table.
        uuid: The uuid of the table.
        order: "lru" or "lfu"; "": no rows are evicted.
        numbers: unused_steps and max_rows on this node, 0: unlimited; and half_life, at least 1.
        keep: The keys that are never evicted.
    """
    lib.tsps_set_eviction(path, uuid, order, tf.constant(numbers, tf.int64), tf.constant(keep, tf.int64, [len(keep)]))


def set_admission(path: str, uuid: str, numbers: Sequence[int]) -> bool:
    """Determines which keys get a row in the steps of this process. Writer only.

    Args:
        path: The path of the table.
        uuid: The uuid of the table.
        numbers: count, half_life and expected_keys of a `tsps.Admission`. Empty: all keys get a row.

    Returns:
        Whether counts of keys were lost, because they were in another form.
    """
    return bool(lib.tsps_set_admission(path, uuid, tf.constant(numbers, tf.int64, [len(numbers)])))


def bind_optimizer(path: str, uuid: str, kind: str, slot_init: Sequence[float] = (), *, replace: bool = False) -> None:
    """Creates a table's optimizer slots ("none", "sgd", "adagrad", "adam", "rowwise_adagrad"). Writer only.

    Args:
        path: The path of the table.
        uuid: The uuid of the table.
        kind: The name of the rule.
        slot_init: The initial value of the elements of each slot.
        replace: Whether to drop the slots of another rule instead of raising an error.
    """
    lib.tsps_bind_optimizer(path, uuid, kind, tf.constant(slot_init, tf.float32, [len(slot_init)]), replace)


def renew_slots(path: str, uuid: str) -> None:
    """Resets the slots of all rows of a table to their initial values. Any optimizer may train it next. Writer only."""
    lib.tsps_renew_slots(path, uuid)


def set_optimizer(path: str, uuid: str, identity: int, steps: int) -> None:
    """Records which optimizer made a table's slots, and its number of steps. Writer only.

    Args:
        path: The path of the table.
        uuid: The uuid of the table.
        identity: The identity of the optimizer; 0: any optimizer may continue with the slots.
        steps: The number of steps that this optimizer had made.
    """
    lib.tsps_set_optimizer(path, uuid, tf.constant([identity, steps], tf.int64))


def take_index_seed(path: str, uuid: str, index_seed: int) -> None:
    """Gives a table's index this seed, if the table has never had a row. Writer only."""
    signed = index_seed - (1 << 64) if index_seed >= 1 << 63 else index_seed
    lib.tsps_take_index_seed(path, uuid, tf.constant(signed, tf.int64))


def assign(
    path: tf.Tensor | str,
    uuid: tf.Tensor | str,
    keys: tf.Tensor,
    rows: tf.Tensor,
    slots: Sequence[tf.Tensor] = (),
    use: tf.Tensor | None = None,
) -> None:
    """Sets rows (and slots), adding absent keys. Writer only.

    Args:
        path: The path of the table.
        uuid: The uuid of the table.
        keys: The keys, int64[n].
        rows: The rows, float32[n, dim].
        slots: The slots, float32[n, dim] each, or float32[n, 1] if the rule keeps one float per row. Empty: existing
            keys keep their slots.
        use: The use of the rows, int64[n], each the bytes of a RowUse (cc/core/table/row_use.h). None: existing keys
            keep theirs, and new ones count as used in the committed step.
    """
    lib.tsps_assign(path, uuid, keys, rows, tf.zeros([0], tf.int64) if use is None else use, list(slots))


def assign_counts(path: str, uuid: str, keys: tf.Tensor, lines: tf.Tensor) -> None:
    """Sets lines of the sketch of a table with admission. Writer only.

    Args:
        path: The path of the sketch's table.
        uuid: The uuid of the sketch's table.
        keys: The numbers of the lines, int64[n].
        lines: The lines, int64[n, 8], each the bytes of a SketchLine (cc/core/table/admission_sketch.h).
    """
    lib.tsps_assign_counts(path, uuid, keys, lines)


def erase(path: tf.Tensor | str, uuid: tf.Tensor | str, keys: tf.Tensor) -> tf.Tensor:
    """Removes keys, int64[n], and returns the number of keys that were present, int64. Writer only."""
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
    """Announces the keys that a later batch looks up. Their rows on disk are read ahead, in passes of several batches.

    Args:
        path: The path of the table.
        uuid: The uuid of the table.
        keys: The keys of the batch, int64[n].
        dataset: The number of the dataset.
        index: The index of the batch in its iterator, int64; 0 drops the batches that the previous iterator announced.
        batches: The number of batches in a pass.
        nodes: The number of nodes, for a sharded table.
        node: The number of this node. Only its keys are read ahead.
    """
    dataset_number, per_pass, n_nodes, this_node = (
        tf.constant(number, tf.int64) for number in (dataset, batches, nodes, node)
    )
    return lib.tsps_announce(path, uuid, keys, dataset_number, index, per_pass, n_nodes, this_node)


class DiskCounters(NamedTuple):
    """The result of `disk_counters`, int64 each."""

    records: tf.Tensor  # rows read from disks
    bytes: tf.Tensor  # bytes of these reads, the gaps between the rows included
    late: tf.Tensor  # rows read that a lookup or step was waiting for
    cached: tf.Tensor  # rows that were needed and had been read before
    waited_ns: tf.Tensor  # time of waiting for rows that were needed
    errors: tf.Tensor  # reads and writes that failed, also those that were tried again
    batches: tf.Tensor  # announced batches
    passes: tf.Tensor  # passes of several batches, whose rows were read ahead
    dropped: tf.Tensor  # batches of abandoned iterators
    failed: tf.Tensor  # failed passes
    staging_ns: tf.Tensor  # time of passes


def disk_counters() -> DiskCounters:
    """Returns counters of this process's reads from disks since it began."""
    return DiskCounters(*lib.tsps_disk_counters())


def set_step(path: tf.Tensor | str, step: tf.Tensor | int) -> None:
    """Sets the committed step of a group, for a restored state. Writer only."""
    lib.tsps_set_step(path, step)


def mark_changes(path: tf.Tensor | str) -> tf.Tensor:
    """Begins another change generation of a group, and returns it, int64. Writer only."""
    return lib.tsps_mark_changes(path)


class GroupInfo(NamedTuple):
    """The result of `group_info`."""

    step: tf.Tensor  # int64: last published step
    version: tf.Tensor  # int64: number of assigns, erases, table creations and removals, and optimizer bindings so far
    counters: tf.Tensor  # int64[8]: counters of this process, in the order of COUNTERS


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
    """Returns the state of a group and counters of this process."""
    return GroupInfo(*lib.tsps_group_info(path))


def next_step(path: tf.Tensor | str, known: tf.Tensor) -> tf.Tensor:
    """Returns the number of the next step, int64: one more than the larger of the group's step and the known one.

    The group may be ahead of this process: an exception may have ended the previous step after the tables had it, and
    before this process recorded that.

    Args:
        path: The path of the group.
        known: The last step that this process knows of, int64.
    """
    return lib.tsps_next_step(path, known)


def remove_table(path: str, uuid: str) -> None:
    """Removes a table and its files. A reader finds the whole table or none. Writer only.

    Raises:
        NotFoundError: The table does not exist.
    """
    lib.tsps_remove_table(path, uuid)


def forget_table(path: str) -> None:
    """Unmaps a table in this process, if it is mapped. Later ops map it again. Does nothing in the writer's process."""
    lib.tsps_forget_table(path)


def close_group(path: tf.Tensor | str) -> None:
    """Drops this process's handle and writer lock, and ends waits. Later ops open the path again."""
    lib.tsps_close_group(path)


def set_threads(threads: int, writer_threads: int) -> None:
    """Sets the number of threads of the op library.

    Args:
        threads: The number of threads for all ops; 0: one per processor that the process may use.
        writer_threads: The number of threads for updates; 0: likewise.
    """
    lib.tsps_set_threads(threads, writer_threads)


def hold_terminate() -> None:
    """Makes std::terminate wait two seconds before it ends the process. Horovod calls it when other ranks end."""
    lib.tsps_hold_terminate()


def count(path: str, rank: int, size: int, local_rank: int) -> None:
    """Lets other processes read the counters of this rank, in the group's folder."""
    lib.tsps_count(path, rank, size, local_rank)


def count_samples(path: str, samples: int) -> None:
    """Adds samples to those that this rank has trained, and shows all of its counters to other processes."""
    lib.tsps_count_samples(path, samples)


def out_of_room() -> bool:
    """Whether an op of this process failed for lack of space, and no step was made since."""
    return bool(lib.tsps_out_of_room())
