"""Ranks with empty batches, batches of other sizes, fewer batches, or without a table give the reference's numbers."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import batches
import numpy as np
import pytest
import weighted_batches as weighted
from launch import ONE_NODE, TWO_NODES, launched
from mode_a import Simulation, SparseBatch

TOLERANCE = {"sgd": 2e-6, "adagrad": 2e-6, "adam": 2e-5}  # relative to the largest weight
RANKS = 4
Results = dict[str, list[dict[str, np.ndarray]]]


@contextlib.contextmanager
def run(which: str, hosts: str, ranks: int) -> Iterator[Path]:
    kept = Path(tempfile.mkdtemp(prefix="tsps-results-"))
    with launched("weights_program.py", which, hosts=hosts, ranks=ranks) as job:
        status = job.wait()
        assert status == 0, job.output[-20000:]
        shutil.copytree(job.folder, kept, dirs_exist_ok=True)
    yield kept
    shutil.rmtree(kept)


def load(folder: Path, ranks: int) -> Results:
    names = {path.name.rsplit("-", 1)[0] for path in folder.glob("*.npz")}
    return {name: [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(ranks)] for name in names}


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Path]:
    with run("two-nodes", TWO_NODES, RANKS) as folder:
        yield folder


@pytest.fixture(scope="module")
def one_node() -> Iterator[Path]:
    with run("one-node", ONE_NODE, RANKS) as folder:
        yield folder


def simulate(kind: str, reduction: str, start: dict[str, np.ndarray], senders: list[list[int]]) -> Simulation:
    tables = []
    for t in range(len(batches.DIMS)):
        tables.append(dict(zip(batches.all_keys(t).tolist(), start[f"first{t}"], strict=True)))
    first = [*batches.first_dense(), weighted.first_big()]
    job = Simulation(first, tables, kind, reduction, batches.RATES[kind], senders)
    for step in range(weighted.STEPS):
        dense: list[list[np.ndarray]] = []
        sparse: list[list[SparseBatch | None]] = []
        weights = [weighted.samples(step, rank) for rank in range(RANKS)]
        for rank, weight in enumerate(weights):
            rank_batch = batches.batch(step, rank)
            factor = np.float32(1 if weight else np.nan)
            dense.append(
                [(w - target) * factor for w, target in zip(job.dense[:-1], rank_batch.dense_targets, strict=True)]
            )
            big = np.zeros_like(job.dense[-1])
            ids = weighted.big_ids(rank_batch.ids[1])
            np.add.at(big, ids, (job.dense[-1][ids] - 1) * factor)
            dense[-1].append(big)
            sparse.append([])
            for t, ids in enumerate(rank_batch.ids):
                lacks = t == weighted.TABLE_ONE_RANK_LACKS and rank == weighted.RANK_WITHOUT_IT
                gradient = SparseBatch(ids, (job.rows(t, ids) - rank_batch.targets[t]) * factor) if len(ids) else None
                sparse[-1].append(None if lacks else gradient)
        job.train(dense, sparse, weights)
    return job


def simulate_fit(start: dict[str, np.ndarray], senders: list[list[int]]) -> Simulation:
    table = dict(zip(range(weighted.KEYS), start["first"], strict=True))
    first = [weighted.first_kernel(), np.zeros(1, np.float32)]
    job = Simulation(first, [table], "sgd", "frequency", weighted.RATE, senders)
    for step in range(weighted.EPOCHS * max(weighted.BATCHES)):
        number = step % max(weighted.BATCHES)
        dense: list[list[np.ndarray]] = []
        sparse: list[list[SparseBatch | None]] = []
        for rank, size in enumerate(weighted.BATCH_SIZES):
            batch = slice(number % weighted.BATCHES[rank] * size, (number % weighted.BATCHES[rank] + 1) * size)
            inputs, targets = (part[batch] for part in weighted.fit_data(rank))
            hidden = job.rows(0, inputs.ravel()).reshape(size, -1)
            error = 2 * (hidden @ job.dense[0] + job.dense[1] - targets) / np.float32(size)
            dense.append([hidden.T @ error, error.sum(0)])
            sparse.append([SparseBatch(inputs.ravel(), (error @ job.dense[0].T).reshape(-1, weighted.DIM))])
        weights = [
            size * (number < batches_of_rank)
            for size, batches_of_rank in zip(weighted.BATCH_SIZES, weighted.BATCHES, strict=True)
        ]
        job.train(dense, sparse, weights)
    return job


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def check_equal_ranks(ranks: list[dict[str, np.ndarray]], but: tuple[str, ...] = ()) -> None:
    first, *other_ranks = ranks
    for other_rank in other_ranks:
        for key in first.keys() - set(but):
            assert first[key].tobytes() == other_rank[key].tobytes(), key


def check_run(name: str, ranks: list[dict[str, np.ndarray]], nodes: list[list[int]]) -> None:
    kind, reduction, *rest = name.split("-")
    check_equal_ranks(ranks)
    job = simulate(kind, reduction, ranks[0], [[0], [1], [2], [3]] if "flat" in rest else nodes)
    worst = max(
        *(difference(ranks[0][f"last{t}"], job.rows(t, batches.all_keys(t))) for t in range(len(batches.DIMS))),
        *(difference(ranks[0][f"dense{i}"], weight) for i, weight in enumerate(job.dense[:-1])),
        difference(ranks[0]["big"], job.dense[-1]),
    )
    print(f"{name}: {worst:.2e} of the largest weight")
    assert worst <= TOLERANCE[kind]


def check_fit(ranks: list[dict[str, np.ndarray]], nodes: list[list[int]]) -> None:
    check_equal_ranks(ranks, but=("metrics",))
    first = ranks[0]
    job = simulate_fit(first, nodes)
    worst = max(
        difference(first["last"], job.rows(0, np.arange(weighted.KEYS))),
        difference(first["kernel"], job.dense[0]),
        difference(first["bias"], job.dense[1]),
    )
    print(f"fit: {worst:.2e} of the largest weight")
    assert worst <= 5e-6
    assert first["iterations"] == weighted.EPOCHS * max(weighted.BATCHES)
    assert all(np.isfinite(rank["metrics"]).all() for rank in ranks)


def test_ranks_have_what_the_tests_are_about() -> None:
    has = np.array([[weighted.samples(step, rank) for rank in range(RANKS)] for step in range(weighted.STEPS)])
    nobody, out = weighted.NOBODY, weighted.OUT_OF_SAMPLES
    assert [step for step in range(weighted.STEPS) if not has[step].any()] == [nobody]
    assert sum(len(set(row) - {0}) > 1 for row in has) > weighted.STEPS // 2, "weights must differ within a step"
    assert not has[out[1] :, out[0]].any()
    lost = [len(batches.batch(step, rank).ids[0]) for step, rank in zip(*np.nonzero(has == 0), strict=True)]
    assert sum(lost) > 20, "ranks of weight 0 must have keys that are to be left out"


@pytest.mark.parametrize(
    "name", ["sgd-frequency", "adagrad-average", "sgd-sum-tape", "adagrad-frequency-flat", "adam-frequency"]
)
def test_two_nodes_equal_the_reference(two_nodes: Path, name: str) -> None:
    check_run(name, load(two_nodes, RANKS)[name], [[0, 1], [2, 3]])


@pytest.mark.parametrize("name", ["sgd-frequency", "adagrad-average", "sgd-sum-tape"])
def test_one_node_equals_the_reference(one_node: Path, name: str) -> None:
    check_run(name, load(one_node, RANKS)[name], [[0, 1, 2, 3]])


@pytest.mark.parametrize("name", ["fit-1", "fit-3"])
def test_ranks_with_fewer_batches_fit_to_the_end(two_nodes: Path, one_node: Path, name: str) -> None:
    check_fit(load(two_nodes, RANKS)[name], [[0, 1], [2, 3]])
    check_fit(load(one_node, RANKS)[name], [[0, 1, 2, 3]])


def test_weights_of_1_change_no_bit_of_the_mean_of_two_ranks() -> None:
    with run("pair", "localhost:2", 2) as folder:
        for rank in load(folder, 2)["means"]:
            sides = [
                {key[len(side) :]: rank[key] for key in rank if key.startswith(side)} for side in ("ours", "plain")
            ]
            assert len(sides[0]) == 8
            for key, ours in sides[0].items():
                assert ours.tobytes() == sides[1][key].tobytes(), key
            assert np.abs(sides[0]["2"]).max() > 0.1


@pytest.mark.parametrize(
    ("way", "words"),
    [
        *((f"{weight} {graph}", ["InvalidArgumentError", "rank_weight", "finite"])
          for weight in ("-1.0", "nan", "inf") for graph in (True, False)),
        ("big", ["InvalidArgumentError", "rank_weight", "finite"]),
        ("unknown", ["ValueError", "rank 1 has a dataset that does not tell", "assert_cardinality"]),
        ("infinite", ["ValueError", "rank 1 has infinitely many", "steps_per_epoch"]),
        ("none", ["ValueError", "rank 1 has none"]),
        ("not its dataset", ["ValueError", "steps that this fit makes", "rank 0 has 3, rank 1 has 1"]),
        ("steps_per_epoch", ["ValueError", "fit makes 2 steps per epoch, not the 3", "`dataset`"]),
        ("not our optimizer", ["ValueError", "whose optimizer is a DistributedOptimizer. Received: SGD"]),
    ],
)  # fmt: skip
def test_every_rank_says_what_one_did_wrong(two_nodes: Path, way: str, words: list[str]) -> None:
    for rank in range(RANKS):
        messages: dict[str, Any] = json.loads((two_nodes / f"errors-{rank}.json").read_text())
        for word in words:
            assert word in messages[way], f"rank {rank}: {messages[way]}"


def test_what_is_no_dataset_is_refused_on_all_ranks(two_nodes: Path) -> None:
    for rank in range(RANKS):
        messages = json.loads((two_nodes / f"errors-{rank}.json").read_text())
        expected = "TypeError: EqualSteps takes a tf.data.Dataset" if rank == 1 else "ValueError: EqualSteps needs"
        assert messages["array"].startswith(expected), messages["array"]


def test_a_wrong_weight_changes_no_weight(two_nodes: Path) -> None:
    for rank in range(RANKS):
        messages = json.loads((two_nodes / f"errors-{rank}.json").read_text())
        for weight in ("-1.0", "nan", "inf", "-2.0"):
            assert messages[f"weights after {weight}"] == str([[1.0, 1.0]] * 4)
