"""Private names of Horovod. docs/private-names.md lists them; tests/compat has a test of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import mpi_ops

__all__ = ["HorovodInternalError", "grouped_sum", "mpi_ops", "refuse_join"]


def grouped_sum(tensors: Sequence[tf.Tensor], name: str, process_set: Any) -> list[tf.Tensor]:
    """Returns the sums of tensors over the ranks, as one group. The public function also divides, casts and compresses.

    Args:
      tensors: The tensors.
      name: The name of the operation, the same on all ranks.
      process_set: The Horovod process set of the ranks.
    """
    sums: list[tf.Tensor] = mpi_ops._grouped_allreduce(
        list(tensors), name=name, ignore_name_scope=True, process_set=process_set
    )
    return sums


def refuse_join(refuse: Callable[..., Any]) -> None:
    """Has `hvd.join` call `refuse`, whatever name the program imported it under."""
    mpi_ops.MPI_LIB.horovod_join = refuse
