"""Jobs under DelayedGlobal as users run them: `fit` with callbacks, ranks of unequal speed, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delayed_jobs_program as program
import launch
import numpy as np
import pytest


def results(which: str, ranks: int = 4, hosts: str = launch.TWO_NODES) -> list[dict[str, Any]]:
    """Returns the results of each rank."""
    with launch.launched("delayed_jobs_program.py", which, hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        return [dict(np.load(Path(job.folder) / f"{which}-{rank}.npz")) for rank in range(ranks)]


def test_fit_drains_before_anything_looks() -> None:
    ranks = results("fit")
    first = ranks[0]
    for other_result in ranks[1:]:
        # The weights include the statistics of normalisation.
        for name in ("weights", "last", "rows", "losses", "validation", "rates"):
            np.testing.assert_array_equal(first[name], other_result[name], err_msg=name)
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
    rank_results = results("unequal", ranks, hosts)
    for other_result in rank_results[1:]:
        for name in ("last", "rows"):
            np.testing.assert_array_equal(rank_results[0][name], other_result[name], err_msg=name)
    for result in rank_results:
        assert int(result["most_late"]) <= 3
        assert result["outstanding"].max() <= 3
        assert int(result["table_steps"]) == int(result["iterations"]) == program.UNEQUAL_STEPS
        # A rank may make a step of its tables before it asks for the outcome, but never before it has sent the step.
        assert result["ahead"].max() <= 0
    assert max(result["outstanding"].max() for result in rank_results) == 3, "the fast ranks must reach the bound"


@pytest.mark.nightly
@pytest.mark.parametrize(("hosts", "ranks"), [(launch.TWO_NODES, 4), ("localhost:2", 2)])
def test_a_late_rank_is_left_out_and_nothing_of_it_is_lost(hosts: str, ranks: int) -> None:
    rank_results = results("late", ranks, hosts)
    for other_result in rank_results[1:]:
        for name in ("ends", "last", "rows"):
            np.testing.assert_array_equal(rank_results[0][name], other_result[name], err_msg=name)
    steps, rate = program.LATE_STEPS, program.LATE_RATE
    # Sums of tables contain every gradient of every rank once, whenever it arrived.
    np.testing.assert_array_equal(
        rank_results[0]["rows"], rate * steps * np.array([[ranks]] + [[1]] * ranks) * np.ones(2)
    )
    assert int(rank_results[1]["without_own"]) > 0
    assert all(int(result["without_own"]) > 0 for result in rank_results), (
        "each rank's gradients must arrive without the others' at least once"
    )
    assert len({int(result["global_gradients"]) for result in rank_results}) == 1
    # These are means of M ranks: the late rank's gradients, averaged with few others, count more than in a mean of all.
    assert (rank_results[0]["last"] >= rate * steps / ranks - 1e-5).all()
    assert rank_results[0]["last"][1] > 1.05 * rate * steps / ranks
    for result in rank_results:
        assert int(result["most_late"]) <= 2
        assert result["outstanding"].max() <= 2


@pytest.mark.nightly
def test_late_ranks_and_a_rule_that_counts_steps() -> None:
    """A communication without any gradient averages no hyperparameters."""
    rank_results = results("late-adam", 2, "localhost:2")
    for name in ("ends", "last", "rows"):
        np.testing.assert_array_equal(rank_results[0][name], rank_results[1][name], err_msg=name)
    assert (rank_results[0]["rows"] > program.LATE_RATE).all()
    assert all(int(result["without_own"]) > 0 and int(result["most_late"]) <= 2 for result in rank_results)


@pytest.mark.nightly
def test_ranks_may_end_with_gradients_on_their_way() -> None:
    """A rank that ends first still takes part in the communication that the others wait for."""
    assert [int(result["iterations"]) for result in results("undrained", 2, "localhost:2")] == [8, 8]


def test_saving_with_gradients_outstanding_is_refused() -> None:
    rank_results = results("saving", 2, "localhost:2")
    assert "drain()" in str(rank_results[0]["said"])
    assert bool(rank_results[0]["saved"])
    for result in rank_results:
        assert any("step of the tables is synchronous" in str(text) for text in result["warned"])
        assert int(result["steps"]) == 3, "the step itself makes the tables' step"


def test_variables_are_broadcast_with_all_gradients_and_slots() -> None:
    rank_results = results("broadcast", 2, "localhost:2")
    for result in rank_results:
        assert "gradients are outstanding" in str(result["delayedsaid"])
        assert "slots are not sent" in str(result["serversaid"])
        for name in ("delayed", "server"):
            np.testing.assert_array_equal(result[f"{name}False"], result[f"{name}True"], name)
            np.testing.assert_array_equal(result[f"{name}False"], rank_results[0][f"{name}False"], name)
