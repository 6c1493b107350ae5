"""Four ranks on two nodes give the numbers of the reference, and both nodes have the same bits.

A launch makes the runs that the selected tests look at.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import batches
import numpy as np
import pytest
from launch import ONE_NODE, TWO_NODES, launched
from mode_a import Simulation
from selected_runs import selected_runs
from simulation import NARROW_WIRE, RARE, TOLERANCE, Results, largest_error, results_in, simulate, table_errors

pytestmark = pytest.mark.daily  # one launch of replicated tables; tests with further marks are nightly
NIGHTLY = pytest.mark.nightly


@contextlib.contextmanager
def run(which: str, hosts: str, ranks: int) -> Iterator[Results]:
    kept = Path(tempfile.mkdtemp(prefix="tsps-results-"))
    with launched("equality_program.py", which, hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        assert list(job.tables.glob("*-n*")) == [], "the leaders must remove their groups"
        shutil.copytree(job.folder, kept, dirs_exist_ok=True)
    yield results_in(kept, ranks)
    shutil.rmtree(kept)


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    names = selected_runs(request, "results", lambda parameters: parameters.values())
    with run(",".join(names), TWO_NODES, batches.RANKS) as results_of_runs:
        yield results_of_runs


@pytest.fixture(scope="module")
def more() -> Iterator[Results]:
    with run("more", TWO_NODES, batches.RANKS) as results_of_runs:
        yield results_of_runs


@pytest.fixture(scope="module")
def uneven() -> Iterator[Results]:
    with run("uneven", "localhost:2,127.0.0.1:1", 3) as results_of_runs:
        yield results_of_runs


def check(job: Simulation, result: dict[str, np.ndarray], kind: str, wire: str, label: str) -> None:
    largest, beyond = largest_error(job, result), np.mean(table_errors(job, result) > TOLERANCE[kind])
    print(f"{label}: {largest:.2e} of the largest weight, {beyond:.1%} of the tables beyond the tolerance")
    if wire == "float32":
        assert largest <= TOLERANCE[kind], label
    else:
        assert largest <= NARROW_WIRE, label
        assert beyond <= RARE, label


def test_batches_have_keys_of_one_to_four_ranks_and_repeated_ones() -> None:
    seen, repeated, untouched = set(), 0, 0
    for step in range(batches.STEPS):
        per_rank = [batches.batch(step, rank).ids for rank in range(batches.RANKS)]
        for t in range(len(batches.DIMS)):
            _, counts = np.unique(np.concatenate([np.unique(ids[t]) for ids in per_rank]), return_counts=True)
            seen |= set(counts.tolist())
            untouched += len(counts) == 0
            repeated += sum(len(ids[t]) - len(np.unique(ids[t])) for ids in per_rank)
    assert seen == {1, 2, 3, 4}
    assert repeated > 1000
    assert untouched >= batches.STEPS // 4


# Gradients that travel as one.
NODES, FLAT = [[0, 1], [2, 3]], [[0], [1], [2], [3]]
# The number of steps of each run. A name has a rule, a reduction, a topology unless it is hierarchical, and a wire
# unless it is float32.
RUNS = {
    "sgd-frequency": batches.STEPS,
    "adam-frequency": 60,
    "adagrad-sum": 30,
    "adagrad-frequency-flat": 60,
    "adagrad-frequency-bfloat16": 60,
    "sgd-sum-flat-bfloat16": 30,
    "sgd-average-float16": 30,
}
MORE_RUNS = {
    "adagrad-frequency": batches.STEPS,
    "adam-frequency": batches.STEPS,
    "sgd-average": 30,
    "sgd-average-flat": 30,
    "adagrad-sum-flat": 30,
    "sgd-average-bfloat16": 20,
    "adagrad-sum-bfloat16": 20,
    "adagrad-frequency-flat-bfloat16": 20,
    "sgd-average-flat-bfloat16": 20,
}


def must_equal_the_reference(name: str, steps: int, ranks: list[dict[str, np.ndarray]]) -> None:
    kind, reduction, *rest = name.split("-")
    wire = next((word for word in rest if "float" in word), "float32")
    job = simulate(kind, reduction, steps, ranks[0], FLAT if "flat" in rest else NODES, wire)
    check(job, ranks[0], kind, wire, f"{name}, {steps} steps")


def must_be_identical(first: dict[str, np.ndarray], *other_ranks: dict[str, np.ndarray]) -> None:
    for other_rank in other_ranks:
        for key, values in first.items():
            assert values.tobytes() == other_rank[key].tobytes(), key


def daily_alone(daily: str, names: Iterable[str]) -> list[Any]:
    return [daily, *(pytest.param(name, marks=NIGHTLY) for name in names if name != daily)]


@pytest.mark.parametrize("name", daily_alone("adam-frequency", RUNS))
def test_training_equals_the_reference(results: Results, name: str) -> None:
    must_equal_the_reference(name, RUNS[name], results[name])


@NIGHTLY
@pytest.mark.parametrize("name", MORE_RUNS)
def test_training_equals_the_reference_however_it_is_set(more: Results, name: str) -> None:
    must_equal_the_reference(name, MORE_RUNS[name], more[name])
    must_be_identical(*more[name])


# Rows of 16 bits, which are rounded stochastically, and how far the rounding may lead from float32 rows.
NARROW_ROWS = {"adagrad-frequency-rows": 0.03, "adam-average-flat-rows": 0.01}


@NIGHTLY
@pytest.mark.parametrize("name", NARROW_ROWS)
def test_rows_of_16_bits_stay_near_the_reference(results: Results, name: str) -> None:
    kind, reduction, *rest = name.split("-")
    job = simulate(kind, reduction, 40, results[name][0], FLAT if "flat" in rest else NODES, "float32")
    errors = table_errors(job, results[name][0])
    print(f"{name}: {np.max(errors):.2e} of the largest weight, {np.mean(errors):.2e} in the mean")
    assert TOLERANCE[kind] < np.max(errors) < NARROW_ROWS[name]


@pytest.mark.parametrize("name", daily_alone("adam-frequency", [*RUNS, *NARROW_ROWS]))
def test_nodes_and_ranks_are_bit_identical(results: Results, name: str) -> None:
    must_be_identical(*results[name])


@NIGHTLY
@pytest.mark.parametrize("which", ["single", pytest.param("single:2048", id="single-2048")])
def test_ranks_of_one_node_merge_in_shared_memory(which: str) -> None:
    with run(which, ONE_NODE, batches.RANKS) as results:
        for name in ("adagrad-frequency", "adam-average", "sgd-sum", "sgd-frequency-clipped"):
            kind, reduction = name.split("-")[:2]
            first, *other_ranks = results[name]
            for other_rank in other_ranks:
                assert all(values.tobytes() == other_rank[key].tobytes() for key, values in first.items()), name
            job = simulate(kind, reduction, 40 if kind == "adagrad" else 20, first, [[0, 1, 2, 3]], "float32")
            assert largest_error(job, first) <= TOLERANCE[kind], name
        for rank in results["statistics"]:
            assert rank["rows_shared"] > 1000
            assert rank["bytes_shared"] > 20 * rank["rows_shared"]
            assert 0 < rank["rows_merged"] < rank["rows_shared"]
            assert rank["rounds"] == 100 if which == "single" else rank["rounds"] > 200
            assert rank["bytes_sent"] == rank["bytes_received"] == 0
            assert rank["dense_bytes_per_step"] == 4 * sum(np.prod(shape) for shape in batches.DENSE)


@pytest.mark.parametrize(
    ("hosts", "senders"),
    [
        pytest.param(TWO_NODES, NODES, id="2+2"),
        pytest.param("localhost:3,127.0.0.1:1", [[0, 1, 2], [3]], id="3+1"),
    ],
)
@NIGHTLY
def test_nodes_merge_in_rounds(hosts: str, senders: list[list[int]]) -> None:
    with run("several:2048", hosts, batches.RANKS) as results:
        for name in ("adagrad-frequency", "sgd-sum-clipped", "sgd-average-bfloat16"):
            kind, reduction = name.split("-")[:2]
            wire = "bfloat16" if "bfloat16" in name else "float32"
            first, *other_ranks = results[name]
            for other_rank in other_ranks:
                assert all(values.tobytes() == other_rank[key].tobytes() for key, values in first.items()), name
            check(simulate(kind, reduction, 20, first, senders, wire), first, kind, wire, name)
        merging = [rank for rank in results["statistics"] if rank["rows_merged"] > 0]
        assert len(merging) == (4 if hosts == TWO_NODES else 2), "as many of each node as the smallest has"
        for rank in merging:
            assert rank["rounds"] > 90  # in 60 steps
            assert rank["bytes_received"] > rank["bytes_sent"] > 0


@NIGHTLY
def test_nodes_may_have_different_numbers_of_ranks(uneven: Results) -> None:
    for name, wire, steps in (("adagrad-frequency", "float32", 40), ("sgd-average-bfloat16", "bfloat16", 20)):
        kind, reduction = name.split("-")[:2]
        first, *other_ranks = uneven[name]
        for other_rank in other_ranks:
            assert all(values.tobytes() == other_rank[key].tobytes() for key, values in first.items()), name
        job = simulate(kind, reduction, steps, first, [[0, 1], [2]], wire)
        check(job, first, kind, wire, name)


@NIGHTLY
@pytest.mark.runs("adagrad-frequency-bfloat16")
def test_a_narrow_wire_rounds(results: Results) -> None:
    ranks = results["adagrad-frequency-bfloat16"]
    job = simulate("adagrad", "frequency", 60, ranks[0], NODES, "float32")
    assert np.mean(table_errors(job, ranks[0]) > TOLERANCE["adagrad"]) > 10 * RARE


@NIGHTLY
@pytest.mark.runs("control")
def test_without_the_exchange_the_reference_is_missed(results: Results) -> None:
    ranks = results["control"]
    job = simulate("sgd", "frequency", 30, ranks[0], FLAT, "float32")
    assert largest_error(job, ranks[0]) > 1e-2
    assert ranks[0]["last0"].tobytes() != ranks[2]["last0"].tobytes(), "nodes must drift apart without it"


@pytest.mark.runs("example")
def test_published_example(results: Results) -> None:
    expected = [(0 + 12) / 2, 1, (10 + 21) / 2, 20, np.float32(np.float32(2 + 11 + 22) / np.float32(3))]
    for rank in results["example"]:
        np.testing.assert_array_equal(-rank["rows"][:, 0], np.array(expected, np.float32))


@pytest.mark.runs("fit")
@pytest.mark.nightly
def test_fit_keeps_ranks_together(results: Results) -> None:
    first, *other_ranks = results["fit"]
    for other_rank in other_ranks:
        for name in ("losses", "kernel", "rows", "step"):
            assert first[name].tobytes() == other_rank[name].tobytes(), name
    assert first["losses"][-1] < first["losses"][0]
