"""Workers of a MultiWorkerMirroredStrategy give the numbers of the reference, on one node and on two.

A launch of one node runs every day, with the runs that the selected tests look at.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import batches
import numpy as np
import pytest
import tensorflow as tf
from selected_runs import selected_runs
from simulation import NARROW_WIRE, TOLERANCE, Results, largest_error, results_in, simulate
from workers import started

pytestmark = pytest.mark.keras2_smoke

KERAS_3 = int(getattr(tf.keras, "__version__", "2").split(".")[0]) >= 3
# Workers 0 and 2 share tables; worker 1 has its own.
ONE, NODES = [0, 0], [0, 1, 0]


def run(which: str, nodes: list[int], names: Sequence[str] = ()) -> Iterator[Path]:
    kept = Path(tempfile.mkdtemp(prefix="tsps-results-"))
    with started("workers_program.py", f"{which}:{','.join(names)}", nodes=nodes) as job:
        statuses = job.wait(500)
        # In the second, the last operation fails on purpose.
        assert which == "nodes" or statuses == [0] * len(nodes), job.output
        assert len(list(job.folder.glob("found-*.json"))) == len(nodes), job.output
        assert which != "nodes" or len(list(job.folder.glob("alone-*"))) == len(nodes), job.output
        if which == "one":
            assert [list(one.glob("*-n*")) for one in job.tables] == [[]], "the leader left its group behind"
        shutil.copytree(job.folder, kept, dirs_exist_ok=True)
    yield kept
    shutil.rmtree(kept)


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest) -> Iterator[Path]:
    names = selected_runs(request, "one", lambda parameters: [parameters["name"]] if "name" in parameters else [])
    yield from run("one", ONE, names)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Path]:
    yield from run("nodes", NODES)


@pytest.fixture(scope="module")
def apart() -> Iterator[Path]:
    yield from run("sharded", [0, 1])


def found_in(folder: Path, n: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(n)]


def bits_differ(results: Results, name: str) -> list[str]:
    first, *others = results[name]
    keys = [key for key in first if key.startswith(("last", "dense"))]
    return [key for other in others for key in keys if first[key].tobytes() != other[key].tobytes()]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("adagrad-average", 30),
        *(
            pytest.param(name, steps, marks=pytest.mark.nightly)
            for name, steps in (
                ("sgd-frequency", batches.STEPS),
                ("adagrad-frequency", batches.STEPS),
                ("adam-frequency", batches.STEPS),
                ("sgd-sum", 10),
            )
        ),
    ],
)
def test_two_workers_equal_the_reference(one: Path, name: str, steps: int) -> None:
    kind, reduction = name.split("-")
    results = results_in(one, 2)
    first = results[name][0]
    error = largest_error(simulate(kind, reduction, steps, first, [[0, 1]]), first)
    print(f"{name}, {steps} steps: {error:.2e} of the largest weight")
    assert error <= TOLERANCE[kind]
    assert bits_differ(results, name) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "steps", "senders"), [("adagrad-frequency", 60, [[0, 2], [1]]), ("sgd-average", 20, [[0], [1], [2]])]
)
def test_workers_of_two_nodes_equal_the_reference(nodes: Path, name: str, steps: int, senders: list[list[int]]) -> None:
    kind, reduction = name.split("-")
    results = results_in(nodes, 3)
    first = results[name][0]
    error = largest_error(simulate(kind, reduction, steps, first, senders), first)
    print(f"{name}, {steps} steps: {error:.2e} of the largest weight")
    assert error <= TOLERANCE[kind]
    assert bits_differ(results, name) == []


@pytest.mark.nightly
def test_a_narrow_wire_between_nodes(nodes: Path) -> None:
    results = results_in(nodes, 3)
    first = results["adagrad-sum"][0]
    jobs = [simulate("adagrad", "sum", 20, first, [[0, 2], [1]], wire) for wire in ("bfloat16", "float32")]
    errors = [largest_error(job, first) for job in jobs]
    print(f"bfloat16: {errors[0]:.2e} of the largest weight, {errors[1]:.2e} from the reference that rounds nothing")
    assert errors[0] <= NARROW_WIRE
    assert errors[1] > TOLERANCE["adagrad"]
    assert bits_differ(results, "adagrad-sum") == []


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "steps"), [("adagrad-frequency", 40), ("sgd-average", 10)])
def test_sharded_tables_of_workers_of_several_nodes_equal_replicated_ones(apart: Path, name: str, steps: int) -> None:
    kind, reduction = name.split("-")
    results = results_in(apart, 2)
    first = results[name][0]
    assert largest_error(simulate(kind, reduction, steps, first, [[0], [1]]), first) <= TOLERANCE[kind]
    assert bits_differ(results, name) == []
    assert [rank["sharded_rows"] > 10 for rank in results[name]] == [True, True]
    if not KERAS_3:
        for ours, theirs in zip(results["ours"], results["keras"], strict=True):
            for what, expected in theirs.items():
                np.testing.assert_allclose(ours[what], expected, rtol=2e-5, atol=2e-6, err_msg=what)


def test_sharded_tables_of_workers_that_share_a_machine_are_refused(one: Path) -> None:
    for found in found_in(one, 2):
        assert (
            "table 'words' is sharded, and several workers of a tf.distribute strategy share a machine"
            in (found["sharded"])
        )
        assert "[0, 0]" in found["sharded"]


@pytest.mark.nightly
def test_workers_that_see_one_folder_share_its_tables(one: Path, nodes: Path) -> None:
    found = found_in(one, 2)
    assert found[0]["group"] == found[1]["group"]
    # Rank and size, local ones, those across nodes.
    assert [one["places"] for one in found] == [[0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 0, 1]]
    found = found_in(nodes, 3)
    assert found[0]["group"] == found[2]["group"] != found[1]["group"]
    assert [one["places"] for one in found] == [[0, 3, 0, 2, 0, 2], [1, 3, 0, 1, 1, 2], [2, 3, 1, 2, 0, 1]]
    assert [one["leaders"] for one in found] == [[0, 1]] * 3


@pytest.mark.nightly
@pytest.mark.runs("sgd-frequency")
def test_one_node_sends_no_sparse_byte_and_two_do(one: Path, nodes: Path) -> None:
    assert [rank["bytes_sent"] for rank in results_in(one, 2)["sgd-frequency"]] == [0, 0]
    sent = [rank["bytes_sent"] > 0 for rank in results_in(nodes, 3)["adagrad-frequency"]]
    assert sent == [True, True, False], "leaders alone"


@pytest.mark.parametrize(("which", "size"), [("one", 2), pytest.param("nodes", 3, marks=pytest.mark.nightly)])
def test_operations_give_every_rank_what_they_promise(request: pytest.FixtureRequest, which: str, size: int) -> None:
    everyone = range(size)
    total = sum(everyone)
    for rank, found in enumerate(found_in(request.getfixturevalue(which), size)):
        got = found["operations"]
        assert got["last"] == (5 * 4 * size if rank == 1 else 0)
        for n, (gathered, summed, sent) in zip((3, 0, 40, 3), got["unknown"], strict=True):
            assert gathered == [one + 1 for one in everyone for _ in range(n)]
            assert (summed, sent) == ([total + size] * n, [2] * n)
        assert got["alltoall"] == [[[1.5 * one] * 2 for one in everyone for _ in range(rank)], [rank] * size]
        repeated = [one for one in everyone for _ in range(one)]
        assert got["ragged"] == [repeated, [[float(one)] for one in repeated], [], [one == 1 for one in everyone]]
        assert got["means"] == [[total / size], [1.0, total / size]]
        assert got["sums"] == [[200 * size % 256, total], *[[200 * size, total]] * 5]
        assert got["broadcast"] == [size - 1, 1 - size]
        assert got["bits"] == "[nan, -0.0, 1.0]"
        assert got["objects"] == [{"rank": one, "text": "x" * one} for one in everyone]
        assert got["object"] == ["from", 1]
        last = size - 1
        assert got["subset"] == ([0] + [last] * size if rank in (0, last) else None)
        assert "string" in got["refused"]
        assert found["broadcast variables"] == [1.0, [1, 7]]
        assert found["job outside of the scope"]
        assert f"{size} workers" in found["local"]


def test_workers_that_begin_apart_are_made_equal(one: Path) -> None:
    # The strategy makes variables equal when they are made, and leaves them alone from then on. Gradients of the
    # weight are 1 and 3, of the row of its own key 1 on each worker; the rate is 0.1.
    for found in found_in(one, 2):
        assert found["apart"]["graph"] == [1.0, pytest.approx([1.8, -0.1, -0.1]), pytest.approx([1.6, -0.2, -0.2])]
        assert found["apart"]["eager"] == [1.0, pytest.approx([1.9, -0.1, 0.0]), pytest.approx([1.7, -0.2, -0.1])]


@pytest.mark.nightly
def test_an_operation_that_the_others_do_not_call_ends_with_an_error(nodes: Path) -> None:
    for rank in range(3):
        assert f"'t.alone.{rank}' failed on rank {rank}" in (nodes / f"alone-{rank}").read_text()


@pytest.mark.runs("fit")
@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no fit under this strategy")
def test_fit_equals_keras_under_the_same_strategy(one: Path) -> None:
    results = results_in(one, 2)
    for ours, theirs in zip(results["ours"], results["keras"], strict=True):
        for name, expected in theirs.items():
            np.testing.assert_allclose(ours[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)
        assert ours["losses"][-1] < ours["losses"][0]
    assert results["ours"][0]["rows"].tobytes() == results["ours"][1]["rows"].tobytes()


@pytest.mark.nightly
@pytest.mark.runs("fit")
@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has fit under this strategy")
def test_fit_ends_with_keras_3s_own_error(one: Path) -> None:
    for rank in results_in(one, 2)["fit"]:
        assert "ValueError" in str(rank["error"])
        assert "PerReplica" in str(rank["error"])
