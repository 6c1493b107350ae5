"""What tables that are spread over machines need of their job, and where they cannot be."""

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
    """Raises UnsupportedError, with the remedy, if a table is sharded and workers of tf.distribute share a machine."""
    workers = this_job.identity.nodes
    if not isinstance(config.placement, Sharded) or this_job.collectives.kind != "tf.distribute":
        return
    if len(set(workers)) < len(workers):
        raise UnsupportedError(
            f"table {config.name!r} is sharded, and several workers of a tf.distribute strategy share a machine, which "
            "is not supported in this version: start one worker per machine, or ranks without a strategy. "
            f"Received: workers on the machines {list(workers)}"
        )


def prepare(this_job: Job) -> None:
    """Lets this process look up rows that other machines have. Eager; every rank calls it when it has made a table.

    From then on a rank that is late for a look-up, or dies in one, is named on the others.
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
    """Raises ValueError if one of these is sharded and a function of a tf.data.Dataset is being traced.

    Datasets run ahead of training, each rank's by itself: their exchanges would meet others than they should.
    """
    names = [repr(one.name) for one in tables if isinstance(one.placement, Sharded)]
    if names and _tensorflow.traced_for_dataset():
        raise ValueError(
            f"sharded table {', '.join(names)} cannot be looked up in a function of a tf.data.Dataset, which ranks run "
            "at different times: all ranks look up together. Look it up in the model"
        )
