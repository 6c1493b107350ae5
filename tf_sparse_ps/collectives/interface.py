"""`Collectives`: what training needs from a communication library.

Rules that every implementation keeps:

- A collective has a fixed name, the same on all ranks, and is never in flight twice. In a graph it passes this name to
  the library, whatever function or name scope the graph is built in. An eager call runs in a `tf.function`, because
  eager Horovod operations ignore names, and two different tensors were then reduced into each other.
- All ranks run the same collectives. Those that may be in flight together have different names, so that their order
  does not matter.
- Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tf_sparse_ps.collectives.key_values import KeyValueStore

if TYPE_CHECKING:
    import tensorflow as tf


class Collectives(abc.ABC):
    """A fixed set of ranks. Methods that take tensors work eagerly and inside `tf.function`; the others are eager only.

    Attributes:
      kind: "horovod", "tensorflow", "tf.distribute" or "local".
      rank, size: The number of this process among all processes of the job, and how many they are.
      local_rank, local_size: The same among the processes of this node. Local rank 0 is the node's leader.
      cross_rank, cross_size: The same among the processes that have this local rank, at most one of each node. If
        nodes have different numbers of ranks, this is not the number of nodes: see `Job.leaders`.
      key_values: A store in which ranks can leave values for each other outside of operations.
      host: A text that differs between nodes; None: the host name, or the name that horovodrun uses.
      in_cluster: Whether a cluster configuration determines the number of ranks, whatever a launcher has started.
    """

    kind: str
    key_values: KeyValueStore = KeyValueStore()
    host: str | None = None
    in_cluster = False
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @abc.abstractmethod
    def allreduce(self, tensors: Sequence[tf.Tensor], name: str, *, average: bool = True) -> list[tf.Tensor]:
        """Adds up each tensor over the ranks.

        Args:
          tensors: Dense tensors of any floating or integer type; shapes and types are the same on all ranks.
          name: The operation's name.
          average: Divide by `size`. Floating tensors only.

        Returns:
          Tensors of the same shapes and types, equal on all ranks. At more than two ranks the order of
          summation is the library's.
        """

    @abc.abstractmethod
    def allgather(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Concatenates each tensor's rows over the ranks, in rank order.

        Args:
          tensors: Tensors of rank 1 or more and of any types. Only the first dimension may differ between ranks.
          name: The operation's name.

        Returns:
          Tensors `[rows of all ranks, ...]`, equal on all ranks.
        """

    @abc.abstractmethod
    def alltoall(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends `splits[r]` consecutive rows of `tensor` to rank r.

        Args:
          tensor: `[sum(splits), ...]`.
          splits: `int32[size]`.
          name: The operation's name.

        Returns:
          The rows received, in rank order, and `int32[size]`: the number of rows from each rank. Both are available
          when this rank's part of the exchange is done.
        """

    @abc.abstractmethod
    def broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        """Gives every rank the tensor of rank `root`. Shapes and types must be the same on all ranks."""

    @abc.abstractmethod
    def barrier(self, name: str) -> None:
        """Returns when every rank has called it. Eager only."""

    @abc.abstractmethod
    def broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        """Gives every rank the picklable object of rank `root`; `obj` is ignored on the others. Eager only."""

    @abc.abstractmethod
    def subset(self, ranks: Sequence[int]) -> Collectives | None:
        """Returns the collectives of a subset of the ranks. Every rank calls this, with the same `ranks`. Eager only.

        Args:
          ranks: Ascending.

        Returns:
          Collectives whose `rank` and `size` count within `ranks`; None on a rank that is not in `ranks`. The names of
          their operations must differ from those of all other operations.

        Raises:
          RuntimeError: The library was initialised in a way that makes this impossible, with the remedy.
        """

    @abc.abstractmethod
    def at_exit(self, action: Callable[[], None]) -> None:
        """Registers an action for the end of this process. The action registered last runs first.

        If the process ends without an error, the actions run once all ranks have reached their end (or after a time
        limit), so that an action may remove what other ranks could still use. If it ends with an error, they run at
        once.
        """

    @abc.abstractmethod
    def allgather_object(self, obj: Any, name: str) -> list[Any]:
        """Gives every rank the picklable objects of all ranks, in rank order. Eager only."""
