"""Pulls rows of sharded tables from the nodes that own them: three ops, with an all-to-all between each two."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib


@dataclasses.dataclass(frozen=True)
class Pull:
    """A lookup of rows by all ranks of a job.

    A pull has these parts: `ask`; an all-to-all of the buffers among the ranks that have the same local rank on their
    nodes; `serve`; an all-to-all of the answers; `take`. If some node lacks a local rank, ranks with this local rank
    send nothing: they only call `ask` and `take`.

    Attributes:
      operation: The name of the pull, at most 127 characters, the same on all ranks of a node. It must not be in flight
        twice.
      nodes: The number of nodes of the job.
      node: The number of this node.
      wire: The type to which rows are rounded: "float32", "bfloat16" or "float16".
      batch: "this" to pull the rows that are looked up now. "next" to pull the announced rows of the next batch
        (`pull_announce`), except rows that this step may change, and keep them for the next step. Then `ask` and `take`
        get no keys, and `take` returns no rows.
    """

    operation: str
    nodes: int
    node: int
    wire: str
    batch: str = "this"

    def _attributes(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def ask(
        self, keys: Sequence[tf.Tensor], paths: Sequence[tf.Tensor], uuids: Sequence[Any], timeout_s: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Collects the keys for which this rank asks other nodes, for all ranks of this node. Every rank calls it.

        The op holds none of TensorFlow's threads while it waits for other ranks.

        Args:
            keys: The keys of each table, T of int64[u_t], unique.
            paths: The paths of the tables, T scalar strings. All are of one group, whose exchange this process has
                joined.
            uuids: The uuids of the tables, T scalar strings.
            timeout_s: The time to wait for one rank, in seconds.

        Returns:
            A buffer for each node, uint8[n], and the lengths of the buffers, int32[nodes]. A rank that sends nothing
            has no bytes.

        Raises:
            InvalidArgumentError: A key is outside a bounded table, or the ranks' calls differ in the tables.
            UnavailableError: A rank died.
            DeadlineExceededError: A rank did not respond in time. The message describes its state.
            AbortedError: A rank failed.
        """
        buffer, splits = lib.tsps_pull_ask(keys, paths, uuids, timeout_s, **self._attributes())
        return buffer, splits

    def serve(self, asked: tf.Tensor, paths: Sequence[tf.Tensor], uuids: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Reads the rows for which other nodes ask this one.

        Args:
            asked: The concatenated buffers that the nodes have sent, uint8[n].
            paths: See `ask`; likewise uuids.

        Returns:
            A buffer for each node, uint8[n], and the lengths of the buffers, int32[nodes].

        Raises:
            DataLossError: A buffer is damaged, truncated or of another version.
            InvalidArgumentError: A node has other tables.
        """
        buffer, splits = lib.tsps_pull_serve(asked, paths, uuids, **self._attributes())
        return buffer, splits

    def take(
        self,
        served: tf.Tensor,
        keys: Sequence[tf.Tensor],
        paths: Sequence[tf.Tensor],
        uuids: Sequence[Any],
        dims: Sequence[int],
    ) -> list[tf.Tensor]:
        """Returns the rows of the keys of `ask`: T of float32[u_t, dim]. Every rank calls it. It has no gradient.

        Args:
            served: The concatenated buffers that the nodes have sent, uint8[n]; ignored on a rank that sends nothing.
            keys: See `ask`; likewise paths and uuids.
            dims: The row widths of the T tables.

        Raises:
            OpError: See `ask` and `serve`.
        """
        rows: list[tf.Tensor] = lib.tsps_pull_take(served, keys, paths, uuids, **self._attributes())
        for table_rows, dim in zip(rows, dims, strict=True):
            table_rows.set_shape([None, dim])
        return rows


def pull_announce(path: str, table: int, keys: tf.Tensor, dataset: int, index: tf.Tensor, batches: int) -> tf.Operation:
    """Announces the keys of a sharded table that a later batch of this rank looks up. The op waits for nothing.

    Args:
        path: The path of the group.
        table: The number of the table in the group.
        keys: The keys of the batch, int64[n].
        dataset: The number of the dataset.
        index: The index of the batch in its iterator, int64; 0 drops the batches that the previous iterator announced.
        batches: The number of batches that are announced ahead. If more than twice as many wait, the first are dropped.
    """
    dataset_number, n_batches = tf.constant(dataset, tf.int64), tf.constant(batches, tf.int64)
    return lib.tsps_pull_announce(path, tf.constant(table, tf.int64), keys, dataset_number, index, n_batches)


def pulls_look_ahead(path: str) -> tf.Tensor:
    """Whether a rank of the job had announced batches at the end of the last step, a bool; the same on all ranks.

    Args:
        path: The path of a group whose exchange this process has joined.
    """
    return lib.tsps_pull_looking(path) > 0


def check_looked_up(keys: Sequence[tf.Tensor], paths: Sequence[tf.Tensor], uuids: Sequence[Any]) -> tf.Tensor:
    """Returns this rank's objections to a step, in the form of `prepare_step`: gradients of keys without a lookup.

    Args:
        keys: The keys of this rank's gradients, T of int64[n].
        paths: The paths of the sharded tables, T scalar strings.
        uuids: The uuids of the sharded tables, T scalar strings.
    """
    return lib.tsps_pull_check(keys, paths, uuids)


def pull_step_made(step: tf.Tensor, paths: Sequence[tf.Tensor], uuids: Sequence[Any]) -> tf.Tensor:
    """Records that a step of sharded tables is made, so that lookups may use the rows pulled for the next batch.

    Args:
        step: The number of the step, int64.
        paths: The paths of the sharded tables, T scalar strings.
        uuids: The uuids of the sharded tables, T scalar strings.

    Returns:
        `step`.
    """
    return lib.tsps_pull_step_made(step, paths, uuids)


class PullCounters(NamedTuple):
    """The result of `pull_counters`, int64 each."""

    announced: tf.Tensor  # announced batches
    dropped: tf.Tensor  # announced batches that no step used
    looked_up: tf.Tensor  # looked-up keys of other nodes
    ahead: tf.Tensor  # looked-up keys of other nodes whose rows had been pulled ahead
    fetched: tf.Tensor  # rows pulled ahead


def pull_counters(path: str) -> PullCounters:
    """Returns the counters of this process's pulls in a group."""
    return PullCounters(*lib.tsps_pull_counters(path))


for _op in ("TspsPullAsk", "TspsPullServe", "TspsPullTake"):
    tf.no_gradient(_op)
