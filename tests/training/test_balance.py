"""Compares the rows of sharded tables on all machines, and warns if their distribution is more uneven than chance."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest

from tf_sparse_ps.training.balance import Balance, Shards


@pytest.mark.parametrize(
    ("rows", "ratio", "uneven"),
    [
        ((), 1.0, False),
        ((0, 0), 1.0, False),
        ((1000, 1000), 1.0, False),
        ((1200, 1000, 800), 1.2, False),
        ((1300, 900, 800), 1.3, True),
        ((130, 90, 80), 1.3, False),
        ((9000, 0, 0), 3.0, True),
    ],
)
def test_more_than_a_fifth_above_the_mean_is_uneven_unless_there_are_few_rows(
    rows: tuple[int, ...], ratio: float, uneven: bool
) -> None:
    shards = Shards("t", rows, rows)
    assert shards.max_over_mean == pytest.approx(ratio)
    assert shards.uneven == uneven


class Table(types.SimpleNamespace):
    """Has the members of a binding that Balance reads, and supports weak references."""


def table(ordinal: int, rows: int, placement: str = "sharded") -> Any:
    stats = {"rows": rows, "bytes": 100 * rows, "bytes_on_disk": rows}
    reader = types.SimpleNamespace(stats=lambda: stats)
    config = types.SimpleNamespace(name=f"t{ordinal}")
    return Table(ordinal=ordinal, placement=placement, config=config, reader=lambda: reader)


def job(counts_of_other_nodes: list[dict[int, tuple[int, int]]], *, rank: int = 0) -> Any:
    """A job as seen by `rank`. Each node has two ranks. `others`: the counts of the other nodes."""

    def gather(value: Any, name: str) -> list[Any]:
        assert name == "tsps.balance"
        return [value, {}, *(entry for counts in counts_of_other_nodes for entry in (counts, {}))]

    leaders = [2 * node for node in range(len(counts_of_other_nodes) + 1)]
    ranks = types.SimpleNamespace(allgather_object=gather)
    return types.SimpleNamespace(is_leader=rank in leaders, leaders=leaders, rank=rank, collectives=ranks)


def test_rank_0_warns_of_the_table_that_lies_unevenly() -> None:
    balance, tables = Balance(), [table(0, 2000), table(1, 500), table(2, 7, "replicated")]
    with pytest.warns(UserWarning, match=r"rows of the sharded table 't1': 500, 2500\..* 1\.67 times") as caught:
        balance.add(job([{0: (2100, 0), 1: (2500, 0)}]), tables)
    assert len(caught) == 1
    statistics = balance.statistics()
    assert statistics["sharded_rows"] == 2500
    assert statistics["sharded_bytes"] == 101 * 2500
    assert statistics["sharded_max_over_mean"] == pytest.approx(5 / 3)


def test_other_ranks_and_jobs_without_sharded_tables_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lonely = Balance()
        lonely.add(job([{}]), [table(0, 10**6, "replicated")])
        lonely.compare()
        assert lonely.statistics() == {"sharded_rows": 0, "sharded_bytes": 0, "sharded_max_over_mean": 1}
        balance_of_rank_1 = Balance()
        balance_of_rank_1.add(job([{0: (1, 0)}], rank=1), [own_table := table(0, 10**6)])
        assert own_table.placement == "sharded"


def test_a_table_that_a_node_has_dropped_is_left_out() -> None:
    balance, tables = Balance(), [table(0, 2000), table(1, 5000)]
    balance.add(job([{0: (2000, 0)}]), tables)
    assert balance.statistics()["sharded_max_over_mean"] == 1
    del tables[1]
    balance.compare()
    assert balance.statistics()["sharded_rows"] == 2000
