"""Sharded tables and a replicated one give the numbers of the reference, in all combinations of their settings.

One launch does all the work of a layout, which is a number of nodes and ranks. The tests look at its results.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import batches
import mode_a
import numpy as np
import pytest
from launch import launched
from mode_a import Simulation, SparseBatch, rounded
from selected_runs import selected_runs
from sharded_cases import (
    CASES,
    DAILY,
    LAYOUTS,
    NIGHTLY,
    ON_DISK,
    ROUNDS_PULLS,
    SETTINGS,
    SHARDED,
    STEPS,
    name_of,
)
from simulation import RARE, TOLERANCE, Results, results_in

from tf_sparse_ps import _table

pytestmark = pytest.mark.daily  # the launch of one case; other cases are nightly
Case = dict[str, Any]
TABLES = range(len(batches.DIMS))


def launch(cases: list[Case], control: str = "") -> Results:
    """Returns the results of the ranks of one layout."""
    kept = Path(tempfile.mkdtemp(prefix="tsps-results-"))
    hosts, nodes = LAYOUTS[cases[0]["layout"]]
    ranks = sum(map(len, nodes))
    numbers = ",".join(str(CASES.index(case)) for case in cases)
    with launched("sharded_numbers_program.py", numbers + control, hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        shutil.copytree(job.folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("disk"))
    results_of_cases = results_in(kept, ranks)
    shutil.rmtree(kept)
    return results_of_cases


@dataclasses.dataclass
class Launched:
    """The results of cases by name, for the launched layouts, and the names of all selected cases."""

    selected: list[str]
    results: Results = dataclasses.field(default_factory=dict)


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Launched:
    return Launched(selected_runs(request, "results", lambda parameters: map(name_of, parameters.values())))


def ranks_of(case: Case, launched: Launched) -> list[dict[str, np.ndarray]]:
    """Returns the results of a case's ranks. The selected cases of a layout share a launch."""
    if name_of(case) not in launched.results:
        alike = [
            candidate
            for candidate in CASES
            if candidate["layout"] == case["layout"] and name_of(candidate) in launched.selected
        ]
        launched.results |= launch(alike)
    return launched.results[name_of(case)]


def whole(case: Case, ranks: list[dict[str, np.ndarray]], t: int) -> np.ndarray:
    """Returns a table's rows of all keys, each from the node that has it."""
    _, nodes = LAYOUTS[case["layout"]]
    if not SHARDED[t]:
        return ranks[0][f"rows{t}"]
    owners = _table.owners(batches.all_keys(t), len(nodes))
    of_nodes = np.stack([ranks[node[0]][f"rows{t}"] for node in nodes])
    return of_nodes[owners, np.arange(len(owners))]


def reference(case: Case, first: dict[str, np.ndarray]) -> Simulation:
    """Returns the reference's state after the steps."""
    _, nodes = LAYOUTS[case["layout"]]
    kind = case["optimizer"]
    job = Simulation(
        batches.first_dense(),
        [dict(zip(batches.all_keys(t).tolist(), first[f"first{t}"], strict=True)) for t in TABLES],
        kind,
        case["reduction"],
        batches.RATES[kind],
        nodes,
        case["push"],
        [case["dtype"] if SHARDED[t] else "float32" for t in TABLES],
        [case["pull"] if ROUNDS_PULLS[t] else "float32" for t in TABLES],
    )
    for step in range(STEPS):
        dense, sparse = [], []
        for rank in range(sum(map(len, nodes))):
            rank_batch = batches.batch(step, rank)
            dense.append([w - target for w, target in zip(job.dense, rank_batch.dense_targets, strict=True)])
            seen = [job.seen(t, ids) if len(ids) else ids for t, ids in enumerate(rank_batch.ids)]
            sparse.append(
                [
                    SparseBatch(ids, seen[t] - rank_batch.targets[t]) if len(ids) else None
                    for t, ids in enumerate(rank_batch.ids)
                ]
            )
        job.train(dense, sparse)
    return job


def errors(case: Case, ranks: list[dict[str, np.ndarray]], job: Simulation) -> np.ndarray:
    """Returns the error of every element of the tables, relative to the largest weight of its table."""
    errors_of_tables = []
    for t in TABLES:
        expected = job.rows(t, batches.all_keys(t))
        errors_of_tables.append(np.abs(whole(case, ranks, t) - expected).ravel() / np.abs(expected).max())
    return np.concatenate(errors_of_tables)


def narrow(case: Case) -> bool:
    """Whether some values are rounded to 16 bits. If a last bit differs, the rounding may rarely go the other way."""
    return any(case[setting] != "float32" for setting in ("dtype", "push", "pull"))


def expect(case: Case, ranks: list[dict[str, np.ndarray]]) -> None:
    """Fails unless a case has the numbers of the reference, and each key is where it should be."""
    _, nodes = LAYOUTS[case["layout"]]
    job = reference(case, ranks[0])
    relative_errors = errors(case, ranks, job)
    tolerance = TOLERANCE[case["optimizer"]]
    beyond = float(np.mean(relative_errors > tolerance))
    print(f"{name_of(case)}: {relative_errors.max():.2e} of the largest weight, {beyond:.1%} beyond {tolerance}")
    assert relative_errors.max() <= (0.02 if narrow(case) else tolerance)
    assert beyond <= (RARE if narrow(case) else 0)
    for i, expected in enumerate(job.dense):
        assert np.abs(ranks[0][f"dense{i}"] - expected).max() <= tolerance * np.abs(expected).max()
    for t in TABLES:
        seen = rounded(whole(case, ranks, t), job.pull_wires[t])
        for rank in ranks:
            np.testing.assert_array_equal(rank[f"seen{t}"], seen)
            np.testing.assert_array_equal(rank[f"first{t}"], ranks[0][f"first{t}"])
    # Every key of a sharded table is on one node, its owner. Every key of other tables is on all nodes.
    for t in TABLES:
        keys = [ranks[node[0]][f"keys{t}"] for node in nodes]
        if SHARDED[t]:
            for number, node_keys in enumerate(keys):
                assert (_table.owners(node_keys, len(nodes)) == number).all()
            every = np.concatenate(keys)
            assert len(every) == len(np.unique(every)) > 0
        else:
            assert all(np.array_equal(node_keys, keys[0]) for node_keys in keys)
    for t in TABLES:
        if case["storage"] == "tiered" and ON_DISK[t]:
            assert all(rank[f"on_disk{t}"] > 500 for rank in ranks)
    if case["ahead"]:
        assert sum(rank["statistic_rows_pulled_before"] for rank in ranks) > 0
    rows = [ranks[node[0]]["statistic_sharded_rows"] for node in nodes]
    if case["storage"] == "memory":
        assert sum(rows) == sum(len(ranks[node[0]][f"keys{t}"]) for node in nodes for t in TABLES if SHARDED[t])
    assert all(rank["statistic_sharded_bytes"] > 0 for rank in ranks)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name_of(case), marks=() if case == DAILY[0] else pytest.mark.nightly) for case in DAILY],
)
def test_rows_are_those_of_the_reference(case: Case, results: Launched) -> None:
    expect(case, ranks_of(case, results))


@pytest.mark.nightly
@pytest.mark.parametrize("case", [pytest.param(case, id=name_of(case)) for case in NIGHTLY])
def test_rows_of_every_pair_of_settings_are_those_of_the_reference(case: Case, results: Launched) -> None:
    expect(case, ranks_of(case, results))


def exact(reduction: str) -> Case:
    """Returns a daily case whose numbers are rounded least, or not at all."""
    candidates = [case for case in DAILY if case["reduction"] == reduction]
    return min(candidates, key=lambda case: sum(case[setting] != "float32" for setting in ("dtype", "push", "pull")))


@pytest.mark.runs(name_of(exact("frequency")))
def test_keys_that_count_once_per_call_would_be_noticed(results: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes as if keys were not merged before the exchange."""
    case = exact("frequency")
    ranks = ranks_of(case, results)
    plain = mode_a.reduce_sparse

    def per_occurrence(own: Any, reduction: str, senders: Any, wire: str) -> dict[int, np.ndarray]:
        summed = plain(own, "sum", senders, wire)
        counts = counted.pop(0)
        return {key: total / np.float32(counts[key]) for key, total in summed.items()}

    counted: list[dict[int, int]] = []
    sums = mode_a.local_sums

    def counting(batch: SparseBatch) -> dict[int, np.ndarray]:
        ids = batch.ids
        for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            for key in np.unique(part).tolist():
                current[key] = current.get(key, 0) + 1
        return sums(batch)

    current: dict[int, int] = {}

    def reduce(own: Any, reduction: str, senders: Any, wire: str) -> dict[int, np.ndarray]:
        counted.append(dict(current))
        current.clear()
        return per_occurrence(own, reduction, senders, wire)

    monkeypatch.setattr(mode_a, "local_sums", counting)
    monkeypatch.setattr(mode_a, "reduce_sparse", reduce)
    assert np.mean(errors(case, ranks, reference(case, ranks[0])) > TOLERANCE[case["optimizer"]]) > 5 * RARE


@pytest.mark.nightly  # this case has the other layout
@pytest.mark.runs(name_of(exact("sum")))
def test_a_key_that_has_the_last_nodes_gradient_alone_would_be_noticed(
    results: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computes as if keys were not merged after the exchange."""
    case = exact("sum")
    ranks = ranks_of(case, results)

    def last(parts: Any) -> dict[int, np.ndarray]:
        merged: dict[int, np.ndarray] = {}
        for part in parts:
            merged |= part
        return merged

    plain = mode_a.add_up
    nodes = len(LAYOUTS[case["layout"]][1])
    monkeypatch.setattr(mode_a, "add_up", lambda parts: (last if len(parts) == nodes else plain)(parts))
    assert np.mean(errors(case, ranks, reference(case, ranks[0])) > TOLERANCE[case["optimizer"]]) > 5 * RARE


@pytest.mark.nightly
def test_without_merging_before_the_exchange_the_reference_is_missed() -> None:
    case = exact("frequency")
    ranks = launch([case], "-repeated")[name_of(case)]
    assert np.mean(errors(case, ranks, reference(case, ranks[0])) > TOLERANCE[case["optimizer"]]) > 5 * RARE


def test_every_two_values_meet() -> None:
    for a, b in itertools.combinations(SETTINGS, 2):
        assert {(case[a], case[b]) for case in CASES} == set(itertools.product(SETTINGS[a], SETTINGS[b]))
    assert sorted(map(name_of, DAILY + NIGHTLY)) == sorted(map(name_of, CASES))
    for name, values in SETTINGS.items():
        every_day = {case[name] for case in DAILY}
        assert every_day == ({"2x2", "3x1"} if name == "layout" else set(values)), name
