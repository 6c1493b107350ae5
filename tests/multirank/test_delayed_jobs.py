"""Jobs under DelayedGlobal as users run them: `fit` with callbacks, ranks of unequal speed, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delayed_jobs_program as program
import launch
import numpy as np
import pytest


def results(which: str, ranks: int = 4, hosts: str = launch.TWO_NODES) -> list[dict[str, Any]]:
    """Of each rank."""
    with launch.launched("delayed_jobs_program.py", which, hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        return [dict(np.load(Path(job.folder) / f"{which}-{rank}.npz")) for rank in range(ranks)]


def test_fit_drains_before_anything_looks() -> None:
    ranks = results("fit")
    first = ranks[0]
    for other in ranks[1:]:
        # Statistics of normalisation are among the weights.
        for name in ("weights", "last", "rows", "losses", "validation", "rates"):
            np.testing.assert_array_equal(first[name], other[name], err_msg=name)
    np.testing.assert_array_equal(first["weights"][-1], first["last"])
    assert first["apart"] > 0, "gradients were outstanding between"
    np.testing.assert_allclose(first["rates"], [0.05, 0.025, 0.05 / 3], rtol=1e-6)
    assert first["losses"][-1] < 0.7 * first["losses"][0]
    assert int(first["iterations"]) == int(first["global_gradients"]) == 36
    assert int(first["most_late"]) <= 2


@pytest.mark.parametrize(
    ("hosts", "ranks"), [pytest.param(launch.TWO_NODES, 4, marks=pytest.mark.nightly), ("localhost:2", 2)]
)
def test_ranks_of_unequal_speed_keep_the_bound(hosts: str, ranks: int) -> None:
    found = results("unequal", ranks, hosts)
    for other in found[1:]:
        for name in ("last", "rows"):
            np.testing.assert_array_equal(found[0][name], other[name], err_msg=name)
    for one in found:
        assert int(one["most_late"]) <= 3
        assert one["outstanding"].max() <= 3
        assert int(one["table_steps"]) == int(one["iterations"]) == program.UNEQUAL_STEPS
        # A rank's steps of tables may be made before it asks for what came of them, never before it has sent them.
        assert one["ahead"].max() <= 0
    assert max(one["outstanding"].max() for one in found) == 3, "the fast ranks used the bound"


@pytest.mark.nightly
@pytest.mark.parametrize(("hosts", "ranks"), [(launch.TWO_NODES, 4), ("localhost:2", 2)])
def test_a_late_rank_is_left_out_and_nothing_of_it_is_lost(hosts: str, ranks: int) -> None:
    found = results("late", ranks, hosts)
    for other in found[1:]:
        for name in ("ends", "last", "rows"):
            np.testing.assert_array_equal(found[0][name], other[name], err_msg=name)
    steps, rate = program.LATE_STEPS, program.LATE_RATE
    # Sums of tables: every gradient of every rank once, whenever it came.
    np.testing.assert_array_equal(found[0]["rows"], rate * steps * np.array([[ranks]] + [[1]] * ranks) * np.ones(2))
    assert int(found[1]["without_own"]) > 0
    assert all(int(one["without_own"]) > 0 for one in found), "the late rank's own came without the others'"
    assert len({int(one["global_gradients"]) for one in found}) == 1
    # Means of M ranks: the late rank's gradients, with few others, count for more than a mean of all.
    assert (found[0]["last"] >= rate * steps / ranks - 1e-5).all()
    assert found[0]["last"][1] > 1.05 * rate * steps / ranks
    for one in found:
        assert int(one["most_late"]) <= 2
        assert one["outstanding"].max() <= 2


@pytest.mark.nightly
def test_late_ranks_and_a_rule_that_counts_steps() -> None:
    """A communication in which nobody has anything averages no hyperparameters."""
    found = results("late-adam", 2, "localhost:2")
    for name in ("ends", "last", "rows"):
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)
    assert (found[0]["rows"] > program.LATE_RATE).all()
    assert all(int(one["without_own"]) > 0 and int(one["most_late"]) <= 2 for one in found)


@pytest.mark.nightly
def test_ranks_may_end_with_gradients_on_their_way() -> None:
    """A rank that ends first still takes part in what the others wait for."""
    assert [int(one["iterations"]) for one in results("undrained", 2, "localhost:2")] == [8, 8]


def test_saving_with_gradients_outstanding_is_refused() -> None:
    found = results("saving", 2, "localhost:2")
    assert "drain()" in str(found[0]["said"])
    assert bool(found[0]["saved"])
    for one in found:
        assert any("step of the tables is synchronous" in str(text) for text in one["warned"])
        assert int(one["steps"]) == 3, "made in the step itself"
