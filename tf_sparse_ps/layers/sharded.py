"""Preparation of a job for sharded tables, and checks for where such tables cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from tf_sparse_ps import failures
from tf_sparse_ps._compat import _tensorflow
from tf_sparse_ps.collectives.all_or_none import all_or_none
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.reduction import node_exchange


def refuse_workers(config: TableConfig, this_job: Job) -> None:
    """Raises UnsupportedError if a table is sharded and several workers of tf.distribute share a machine."""
    workers = this_job.identity.nodes
    if not isinstance(config.placement, Sharded) or this_job.collectives.kind != "tf.distribute":
        return
    if len(set(workers)) < len(workers):
        raise UnsupportedError(
            f"table {config.name!r} is sharded, and several workers of a tf.distribute strategy share a machine. This "
            "version does not support that. Start one worker per machine, or ranks without a strategy. "
            f"Received: workers on the machines {list(workers)}"
        )


def prepare(this_job: Job) -> None:
    """Prepares this process for lookups of rows on other machines. Eager; every rank calls it when it creates a table.

    It also starts the checks that name a rank that is late for a lookup or dies in one.
    """
    exchange = node_exchange.of(this_job)
    if exchange.joined_by_all:
        return
    failures.report(this_job.collectives)
    all_or_none(this_job.collectives, exchange.join, "joining the exchange of rows", "tsps.exchange")
    failures.watch(this_job)
    exchange.cross_node_group()
    exchange.joined_by_all = True


def refuse_in_dataset(tables: Sequence[TableConfig]) -> None:
    """Raises ValueError if a table is sharded and a function of a tf.data.Dataset is being traced.

    Each rank runs its dataset ahead of training and independently, so exchanges of different lookups would be mixed up.
    """
    names = [repr(config.name) for config in tables if isinstance(config.placement, Sharded)]
    if names and _tensorflow.traced_for_dataset():
        raise ValueError(
            f"sharded table {', '.join(names)} cannot be looked up in a function of a tf.data.Dataset, because ranks "
            "run these functions at different times, and all ranks must look up together. Look it up in the model"
        )
