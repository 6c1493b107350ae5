"""Rows of sharded tables, from the nodes that own them: three ops, between which the graph sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib


@dataclasses.dataclass(frozen=True)
class Pull:
    """A look-up of rows by all ranks of a job.

    A pull is: `ask`; the buffers all to all among the ranks with the same local rank on the nodes; `serve`; the
    buffers back; `take`. A rank whose number not every node has sends nothing: it calls `ask` and `take` alone.

    Attributes:
      operation: A name of at most 127 characters, the same on all ranks of a node, and not in flight twice.
      nodes: Of the job.
      node: This one.
      wire: What rows are rounded to, "float32", "bfloat16" or "float16".
      batch: "this": what is looked up now. "next": what the batch behind it will look up, as `pull_announce` was told,
        but for rows that the step at hand may change; they are kept for the next step. Then `ask` and `take` are
        given no keys, and `take` returns no rows.
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
        """What this rank asks other nodes for, together with the node's other ranks. Every rank calls it.

        Holds none of TensorFlow's threads while it waits for the others.

        Args:
            keys: T of int64[u_t], unique.
            paths: T scalar strings, of tables of one group, whose exchange this process has joined.
            uuids: T scalar strings.
            timeout_s: how long to wait for one rank.

        Returns:
            uint8[n], a buffer for each node, and int32[nodes], their lengths; no bytes on a rank that sends nothing.

        Raises:
            InvalidArgumentError: a key outside a bounded table; ranks called with other tables.
            UnavailableError: a rank died.
            DeadlineExceededError: a rank did not come; the text says what is known of it.
            AbortedError: a rank failed.
        """
        buffer, splits = lib.tsps_pull_ask(keys, paths, uuids, timeout_s, **self._attributes())
        return buffer, splits

    def serve(self, asked: tf.Tensor, paths: Sequence[tf.Tensor], uuids: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows that other nodes ask this one for.

        Args:
            asked: uint8[n], what the nodes have sent, one after another.
            paths, uuids: as in `ask`.

        Returns:
            uint8[n], a buffer for each node, and int32[nodes], their lengths.

        Raises:
            DataLossError: a buffer is damaged, truncated or of another version.
            InvalidArgumentError: a node has other tables.
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
        """The rows of the keys of `ask`: T of float32[u_t, dim]. Every rank calls it. No gradient passes through it.

        Args:
            served: uint8[n], what the nodes have sent, one after another; ignored on a rank that sends nothing.
            keys, paths, uuids: as in `ask`.
            dims: T widths of rows.

        Raises:
            OpError: as `ask` and `serve`.
        """
        rows: list[tf.Tensor] = lib.tsps_pull_take(served, keys, paths, uuids, **self._attributes())
        for one, dim in zip(rows, dims, strict=True):
            one.set_shape([None, dim])
        return rows


def pull_announce(path: str, table: int, keys: tf.Tensor, dataset: int, index: tf.Tensor, batches: int) -> tf.Operation:
    """Says that a coming batch of this rank looks up keys of a sharded table. Waits for nothing.

    Args:
        path: of the group.
        table: the table's number in it.
        keys: int64[n], of the batch.
        dataset: a number of the dataset's.
        index: of the batch in its iterator, int64; 0 drops what the iterator before it has announced.
        batches: how many of them are announced ahead; of more than twice as many the first are dropped.
    """
    of, at_most = tf.constant(dataset, tf.int64), tf.constant(batches, tf.int64)
    return lib.tsps_pull_announce(path, tf.constant(table, tf.int64), keys, of, index, at_most)


def pulls_look_ahead(path: str) -> tf.Tensor:
    """Whether a rank of the job had announced batches at the end of the last step, a bool; the same on all ranks.

    Args:
        path: of a group whose exchange this process has joined.
    """
    return lib.tsps_pull_looking(path) > 0


def check_looked_up(keys: Sequence[tf.Tensor], paths: Sequence[tf.Tensor], uuids: Sequence[Any]) -> tf.Tensor:
    """Returns the objections of this rank to a step, as `prepare_step`: gradients of keys that no lookup had.

    Args:
        keys: T of int64[n], of this rank's gradients.
        paths, uuids: T scalar strings, of sharded tables.
    """
    return lib.tsps_pull_check(keys, paths, uuids)


def pull_step_made(step: tf.Tensor, paths: Sequence[tf.Tensor], uuids: Sequence[Any]) -> tf.Tensor:
    """Says that a step of sharded tables is made: what was pulled for the next batch is for look-ups from now on.

    Args:
        step: int64.
        paths, uuids: T scalar strings, of sharded tables.

    Returns:
        `step`.
    """
    return lib.tsps_pull_step_made(step, paths, uuids)


class PullCounters(NamedTuple):
    """What `pull_counters` returns, int64 each."""

    announced: tf.Tensor  # batches
    dropped: tf.Tensor  # of them, those that no step came to
    looked_up: tf.Tensor  # keys of other nodes
    ahead: tf.Tensor  # of them, those whose rows had come before
    fetched: tf.Tensor  # rows that came before


def pull_counters(path: str) -> PullCounters:
    """The counters of this process's pulls in a group."""
    return PullCounters(*lib.tsps_pull_counters(path))


for _op in ("TspsPullAsk", "TspsPullServe", "TspsPullTake"):
    tf.no_gradient(_op)
