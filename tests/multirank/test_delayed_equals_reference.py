"""Four ranks on two nodes under DelayedGlobal, in its reproducible form, follow the reference step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delayed_cases as cases
import launch
import mode_a
import mode_c
import numpy as np
import pytest
from selected_runs import selected_runs

pytestmark = pytest.mark.daily  # one launch of DelayedGlobal; tests with further marks are nightly
RANKS = 4
SGD = next(case for case in cases.CASES if case.kind == "sgd" and case.apply == "all" and not case.late)
ADAGRAD = next(case for case in cases.CASES if case.kind == "adagrad" and case.apply == "all")
AVERAGED = next(case for case in cases.CASES if not case.late and case.cycle > cases.STEPS)
CASES = [pytest.param(case, id=case.name, marks=() if case == ADAGRAD else pytest.mark.nightly) for case in cases.CASES]
# Relative to the largest weight. Sums are float32, and in another order than the reference's; Adam divides by small
# roots.
TOLERANCE = {"sgd": 2e-6, "momentum": 4e-6, "nesterov": 4e-6, "adagrad": 4e-6, "adam": 2e-5}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The results of each rank, for every case that selected tests look at."""
    names = selected_runs(
        request, "results", lambda parameters: [parameters["case"].name] if "case" in parameters else []
    )
    with launch.launched("delayed_program.py", ",".join(names)) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        yield {
            name: [dict(np.load(Path(job.folder) / f"{name}-{rank}.npz")) for rank in range(RANKS)] for name in names
        }


def simulate(case: cases.Case, first_rows: np.ndarray, **changed: Any) -> tuple[mode_c.Simulation, list[np.ndarray]]:
    """Returns the reference at the end, and all ranks' weights after every step."""
    first = np.concatenate([np.ravel(weight) for weight in cases.first_weights()])
    options: dict[str, Any] = {"staleness": case.staleness, "cycle": case.cycle, "apply": case.apply, **changed}
    tables = [dict(enumerate(first_rows))] if case.tables else []
    simulation = mode_c.Simulation(first, RANKS, case.kind, tables=tables, senders=[[0, 1], [2, 3]], **options)
    after = []
    for i in range(cases.STEPS):
        batches = [cases.batch(case, i, rank) for rank in range(RANKS)]
        targets = [np.concatenate([np.ravel(target) for target in batch.targets]) for batch in batches]
        sparse = []
        for batch in batches:
            rows = [simulation.tables[0][key] for key in batch.ids.tolist()] if case.tables else []
            grads = np.stack(rows) - batch.rows if rows else np.zeros([0, cases.DIM], np.float32)
            sparse.append([mode_a.SparseBatch(batch.ids if case.tables else batch.ids[:0], grads)])
        simulation.train(
            lambda rank, weights, targets=targets: weights - targets[rank],
            cases.rate(case.kind, i),
            [batch.weight for batch in batches],
            sparse,
        )
        after.append(np.stack(simulation.weights))
    simulation.drain()
    return simulation, after


def largest_error(case: cases.Case, simulation: mode_c.Simulation, after: list[np.ndarray], ranks: list[Any]) -> float:
    """Returns the largest error of weights after every step, final weights, slots and rows, relative to the largest."""
    expected = [np.stack(after, axis=1), np.stack(simulation.weights), *simulation.rules[0].slots]
    actual = [
        np.stack([rank_results["after"] for rank_results in ranks]),
        np.stack([rank_results["last"] for rank_results in ranks]),
        *ranks[0]["slots"],
    ]
    if case.tables:
        expected.append(np.stack([simulation.tables[0][key] for key in range(cases.KEYS)]))
        actual.append(ranks[0]["rows"])
    least = np.abs(expected[0]).max()
    errors = [
        np.abs(expected_array - actual_array).max() / max(least, np.abs(expected_array).max())
        for expected_array, actual_array in zip(expected, actual, strict=True)
    ]
    return float(max(errors))


@pytest.mark.parametrize("case", CASES)
def test_delayed_training_follows_the_stated_rules(case: cases.Case, results: dict[str, list[dict[str, Any]]]) -> None:
    ranks = results[case.name]
    simulation, after = simulate(case, ranks[0]["first_rows"])
    error = largest_error(case, simulation, after, ranks)
    print(f"{case}: {error:.1e}")
    assert error < TOLERANCE[case.kind]
    report = {name: int(ranks[0][f"report_{name}"]) for name in ("discarded", "most_late", "global_gradients")}
    assert report == {
        "discarded": simulation.discarded,
        "most_late": simulation.most_late,
        "global_gradients": cases.STEPS,
    }
    assert report["most_late"] <= case.staleness
    assert int(ranks[0]["iterations"]) == cases.STEPS


@pytest.mark.parametrize("case", CASES)
def test_ranks_are_identical_after_each_cycle(case: cases.Case, results: dict[str, list[dict[str, Any]]]) -> None:
    ranks = results[case.name]
    for name in ("last", "slots", "rows"):
        for other in ranks[1:]:
            np.testing.assert_array_equal(ranks[0][name], other[name])
    ends = [i for i in range(cases.STEPS) if (i + 1) % case.cycle == 0]
    for i in ends:
        assert all((rank_results["after"][i] == ranks[0]["after"][i]).all() for rank_results in ranks)
    between = [i for i in range(cases.STEPS) if i not in ends]
    assert all((ranks[1]["after"][i] != ranks[0]["after"][i]).any() for i in between)


@pytest.mark.nightly
@pytest.mark.runs(AVERAGED.name)
def test_registered_statistics_are_averaged(results: dict[str, list[dict[str, Any]]]) -> None:
    assert [float(rank_results["statistic"]) for rank_results in results[AVERAGED.name]] == [2.5] * RANKS


@pytest.mark.runs(ADAGRAD.name)
@pytest.mark.parametrize("changed", [{"staleness": 4}, {"cycle": 5}, {"apply": "newest"}])
def test_another_rule_does_not_fit(changed: dict[str, Any], results: dict[str, list[dict[str, Any]]]) -> None:
    """The comparison would notice if ranks did something else."""
    ranks = results[ADAGRAD.name]
    simulation, after = simulate(ADAGRAD, ranks[0]["first_rows"], **changed)
    assert largest_error(ADAGRAD, simulation, after, ranks) > 100 * TOLERANCE[ADAGRAD.kind]


@pytest.mark.nightly
@pytest.mark.runs(SGD.name)
def test_plain_sgd_ends_where_synchronous_sgd_of_the_same_gradients_does(
    results: dict[str, list[dict[str, Any]]],
) -> None:
    """The sum of all local steps and corrections is that of the global gradients alone."""
    case, ranks = SGD, results[SGD.name]
    weights = np.concatenate([np.ravel(weight) for weight in cases.first_weights()]).astype(np.float64)
    starts = [np.concatenate([[weights], rank_results["after"][:-1]]).astype(np.float64) for rank_results in ranks]
    for i in range(cases.STEPS):
        own_weights = [
            starts[rank][i] - np.concatenate([np.ravel(target) for target in cases.batch(case, i, rank).targets])
            for rank in range(RANKS)
        ]
        weights = weights - cases.rate(case.kind, i) * np.mean(own_weights, axis=0)
    np.testing.assert_allclose(ranks[0]["last"], weights, atol=2e-6)
