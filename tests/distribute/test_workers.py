"""Workers of a MultiWorkerMirroredStrategy give the numbers of the reference, on one node and on two.

One launch on one node runs every day, with only the cases of the selected tests.
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
    kept_results = Path(tempfile.mkdtemp(prefix="tsps-results-"))
    with started("workers_program.py", f"{which}:{','.join(names)}", nodes=nodes) as job:
        statuses = job.wait(500)
        # In "nodes", the last operation fails on purpose.
        assert which == "nodes" or statuses == [0] * len(nodes), job.output
        assert len(list(job.folder.glob("found-*.json"))) == len(nodes), job.output
        assert which != "nodes" or len(list(job.folder.glob("alone-*"))) == len(nodes), job.output
        if which == "one":
            assert [list(tables_of_node.glob("*-n*")) for tables_of_node in job.tables] == [[]], (
                "the leader must delete its group"
            )
        shutil.copytree(job.folder, kept_results, dirs_exist_ok=True)
    yield kept_results
    shutil.rmtree(kept_results)


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
    rank_0, *other_ranks = results[name]
    keys = [key for key in rank_0 if key.startswith(("last", "dense"))]
    return [key for rank_n in other_ranks for key in keys if rank_0[key].tobytes() != rank_n[key].tobytes()]


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
    rank_0 = results[name][0]
    error = largest_error(simulate(kind, reduction, steps, rank_0, [[0, 1]]), rank_0)
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
    rank_0 = results[name][0]
    error = largest_error(simulate(kind, reduction, steps, rank_0, senders), rank_0)
    print(f"{name}, {steps} steps: {error:.2e} of the largest weight")
    assert error <= TOLERANCE[kind]
    assert bits_differ(results, name) == []


@pytest.mark.nightly
def test_a_narrow_wire_between_nodes(nodes: Path) -> None:
    results = results_in(nodes, 3)
    rank_0 = results["adagrad-sum"][0]
    jobs = [simulate("adagrad", "sum", 20, rank_0, [[0, 2], [1]], wire) for wire in ("bfloat16", "float32")]
    errors = [largest_error(job, rank_0) for job in jobs]
    print(f"bfloat16: {errors[0]:.2e} of the largest weight, {errors[1]:.2e} from the reference that rounds nothing")
    assert errors[0] <= NARROW_WIRE
    assert errors[1] > TOLERANCE["adagrad"]
    assert bits_differ(results, "adagrad-sum") == []


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "steps"), [("adagrad-frequency", 40), ("sgd-average", 10)])
def test_sharded_tables_of_workers_of_several_nodes_equal_replicated_ones(apart: Path, name: str, steps: int) -> None:
    kind, reduction = name.split("-")
    results = results_in(apart, 2)
    rank_0 = results[name][0]
    assert largest_error(simulate(kind, reduction, steps, rank_0, [[0], [1]]), rank_0) <= TOLERANCE[kind]
    assert bits_differ(results, name) == []
    assert [rank["sharded_rows"] > 10 for rank in results[name]] == [True, True]
    if not KERAS_3:
        for tsps_results, keras_results in zip(results["ours"], results["keras"], strict=True):
            for name_of_result, expected in keras_results.items():
                np.testing.assert_allclose(
                    tsps_results[name_of_result], expected, rtol=2e-5, atol=2e-6, err_msg=name_of_result
                )


def test_sharded_tables_of_workers_that_share_a_machine_are_refused(one: Path) -> None:
    for report in found_in(one, 2):
        assert (
            "table 'words' is sharded, and several workers of a tf.distribute strategy share a machine"
            in (report["sharded"])
        )
        assert "[0, 0]" in report["sharded"]


@pytest.mark.nightly
def test_workers_that_see_one_folder_share_its_tables(one: Path, nodes: Path) -> None:
    reports = found_in(one, 2)
    assert reports[0]["group"] == reports[1]["group"]
    # Rank and size: in the job, on the node, and across nodes.
    assert [report["places"] for report in reports] == [[0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 0, 1]]
    reports = found_in(nodes, 3)
    assert reports[0]["group"] == reports[2]["group"] != reports[1]["group"]
    assert [report["places"] for report in reports] == [[0, 3, 0, 2, 0, 2], [1, 3, 0, 1, 1, 2], [2, 3, 1, 2, 0, 1]]
    assert [report["leaders"] for report in reports] == [[0, 1]] * 3


@pytest.mark.nightly
@pytest.mark.runs("sgd-frequency")
def test_one_node_sends_no_sparse_byte_and_two_do(one: Path, nodes: Path) -> None:
    assert [rank["bytes_sent"] for rank in results_in(one, 2)["sgd-frequency"]] == [0, 0]
    sent = [rank["bytes_sent"] > 0 for rank in results_in(nodes, 3)["adagrad-frequency"]]
    assert sent == [True, True, False], "only leaders send sparse gradients"


@pytest.mark.parametrize(("which", "size"), [("one", 2), pytest.param("nodes", 3, marks=pytest.mark.nightly)])
def test_operations_give_every_rank_what_they_promise(request: pytest.FixtureRequest, which: str, size: int) -> None:
    everyone = range(size)
    total = sum(everyone)
    for rank, report in enumerate(found_in(request.getfixturevalue(which), size)):
        results = report["operations"]
        assert results["last"] == (5 * 4 * size if rank == 1 else 0)
        for n, (gathered, summed, sent) in zip((3, 0, 40, 3), results["unknown"], strict=True):
            assert gathered == [other_rank + 1 for other_rank in everyone for _ in range(n)]
            assert (summed, sent) == ([total + size] * n, [2] * n)
        assert results["alltoall"] == [
            [[1.5 * other_rank] * 2 for other_rank in everyone for _ in range(rank)],
            [rank] * size,
        ]
        repeated = [other_rank for other_rank in everyone for _ in range(other_rank)]
        assert results["ragged"] == [
            repeated,
            [[float(other_rank)] for other_rank in repeated],
            [],
            [other_rank == 1 for other_rank in everyone],
        ]
        assert results["means"] == [[total / size], [1.0, total / size]]
        assert results["sums"] == [[200 * size % 256, total], *[[200 * size, total]] * 5]
        assert results["broadcast"] == [size - 1, 1 - size]
        assert results["bits"] == "[nan, -0.0, 1.0]"
        assert results["objects"] == [{"rank": other_rank, "text": "x" * other_rank} for other_rank in everyone]
        assert results["object"] == ["from", 1]
        last = size - 1
        assert results["subset"] == ([0] + [last] * size if rank in (0, last) else None)
        assert "string" in results["refused"]
        assert report["broadcast variables"] == [1.0, [1, 7]]
        assert report["job outside of the scope"]
        assert f"{size} workers" in report["local"]


def test_workers_that_begin_apart_are_made_equal(one: Path) -> None:
    # The strategy makes variables equal when it creates them, and never again. On the two workers, the weight's
    # gradients are 1 and 3, and the gradient of each worker's own key is 1. The rate is 0.1.
    for report in found_in(one, 2):
        assert report["apart"]["graph"] == [1.0, pytest.approx([1.8, -0.1, -0.1]), pytest.approx([1.6, -0.2, -0.2])]
        assert report["apart"]["eager"] == [1.0, pytest.approx([1.9, -0.1, 0.0]), pytest.approx([1.7, -0.2, -0.1])]


@pytest.mark.nightly
def test_an_operation_that_the_others_do_not_call_ends_with_an_error(nodes: Path) -> None:
    for rank in range(3):
        assert f"'t.alone.{rank}' failed on rank {rank}" in (nodes / f"alone-{rank}").read_text()


@pytest.mark.runs("fit")
@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no fit under this strategy")
def test_fit_equals_keras_under_the_same_strategy(one: Path) -> None:
    results = results_in(one, 2)
    for tsps_results, keras_results in zip(results["ours"], results["keras"], strict=True):
        for name, expected in keras_results.items():
            np.testing.assert_allclose(tsps_results[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)
        assert tsps_results["losses"][-1] < tsps_results["losses"][0]
    assert results["ours"][0]["rows"].tobytes() == results["ours"][1]["rows"].tobytes()


@pytest.mark.nightly
@pytest.mark.runs("fit")
@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has fit under this strategy")
def test_fit_ends_with_keras_3s_own_error(one: Path) -> None:
    for rank in results_in(one, 2)["fit"]:
        assert "ValueError" in str(rank["error"])
        assert "PerReplica" in str(rank["error"])
