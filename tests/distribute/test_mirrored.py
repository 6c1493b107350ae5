"""Two replicas in one process equal two ranks of the reference, `fit` equals Keras, and other uses are refused."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import batches
import numpy as np
import pytest
import tensorflow as tf
from fork_server import ForkServer
from simulation import TOLERANCE, Results, largest_error, results_in, simulate
from workers import HERE, environment

import tf_sparse_ps as tsps
from tf_sparse_ps import job
from tf_sparse_ps.collectives import horovod_setup, registry, runtime, strategies, tf_distribute
from tf_sparse_ps.node import node_discovery

pytestmark = pytest.mark.nightly  # tests/distribute/test_workers.py runs every day
KERAS_3 = int(getattr(tf.keras, "__version__", "2").split(".")[0]) >= 3


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    tables = Path(tempfile.mkdtemp(prefix="tsps-test-", dir="/dev/shm"))
    results_folder = Path(tempfile.mkdtemp(prefix="tsps-test-"))
    try:
        done = ForkServer.of_this_process().run(
            HERE / "mirrored_program.py", environment(tables), [str(results_folder)]
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-15000:]
        assert list(tables.glob("*-n*")) == [], "the process must delete its group"
        yield results_folder
    finally:
        shutil.rmtree(tables, ignore_errors=True)
        shutil.rmtree(results_folder, ignore_errors=True)


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return results_in(folder, 1)


def test_ids_of_all_replicas_count(folder: Path) -> None:
    assert json.loads((folder / "admitted.json").read_text()) == [[1], [1, 2, 4]]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("sgd-frequency", batches.STEPS),
        ("adagrad-frequency", batches.STEPS),
        ("adam-frequency", batches.STEPS),
        ("adagrad-average", 30),
        ("sgd-sum", 10),
    ],
)
def test_two_replicas_equal_two_ranks_of_the_reference(results: Results, name: str, steps: int) -> None:
    kind, reduction = name.split("-")
    (arrays,) = results[name]
    error = largest_error(simulate(kind, reduction, steps, arrays, [[0], [1]]), arrays)
    print(f"{name}, {steps} steps: {error:.2e} of the largest weight")
    assert error <= TOLERANCE[kind]


def test_replicas_that_count_as_one_rank_miss_the_reference(results: Results) -> None:
    # The control counts keys of one rank only.
    (arrays,) = results["sgd-frequency"]
    assert largest_error(simulate("sgd", "sum", batches.STEPS, arrays, [[0], [1]]), arrays) > 1e-2


def test_fit_equals_keras_under_the_same_strategy(results: Results) -> None:
    (tsps_arrays,), (keras_arrays,) = results["ours"], results["keras"]
    for name, expected in keras_arrays.items():
        np.testing.assert_allclose(tsps_arrays[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)
    assert tsps_arrays["losses"][-1] < tsps_arrays["losses"][0]


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("local", ["ValueError", "collectives='local'", "2 replicas"]),
        ("horovod", ["RuntimeError", "Horovod is not initialised"]),
        ("horovod as well", ["ValueError", "Horovod is initialised", "reduced twice"]),
        ("wrapped optimizer made outside", ["ValueError", "SGD was made outside of the strategy's scope"]),
        ("made outside", ["ValueError", "collectives='local'", "with strategy.scope():"]),
        ("not in run", ["ValueError", "strategy.run()"]),
        ("tape not in run", ["ValueError", "strategy.run()"]),
        ("another strategy", ["ValueError", "CentralStorageStrategy"]),
        ("plain optimizer", ["ValueError", "tsps.DistributedOptimizer"]),
        pytest.param("legacy", ["ValueError", "legacy SGD"], marks=pytest.mark.skipif(KERAS_3, reason="Keras 2")),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(folder: Path, way: str, words: list[str]) -> None:
    message = json.loads((folder / "refusals.json").read_text())[way]
    for word in words:
        assert word in message, message


def test_tf_distribute_without_a_strategy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_setup, "is_initialised", lambda: False)  # another test may have initialised Horovod
    with pytest.raises(ValueError, match=r"strategy\.scope\(\)"):
        tsps.DistributedOptimizer("sgd", collectives="tf.distribute")
    with pytest.raises(ValueError, match=r"tf\.distribute"):
        tsps.DistributedOptimizer("sgd", collectives="mpi")


def strategy_of(workers: int, replicas: int, kind: str = "worker", chiefs: int = 0, task: int = 0) -> SimpleNamespace:
    cluster = {"chief": ["a:1"] * chiefs, "worker": ["b:1"] * workers}
    spec = SimpleNamespace(as_dict=lambda: {job: tasks for job, tasks in cluster.items() if tasks})
    resolver = SimpleNamespace(cluster_spec=lambda: spec, task_type=kind, task_id=task)
    return SimpleNamespace(cluster_resolver=resolver, num_replicas_in_sync=replicas)


def test_several_replicas_in_each_of_several_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="one worker per device"):
        tf_distribute._workers(strategy_of(workers=2, replicas=4))


def test_the_chief_is_rank_0_and_an_evaluator_is_alone() -> None:
    assert tf_distribute._workers(strategy_of(2, 3, "chief", 1, 0)) == (0, 3)
    assert tf_distribute._workers(strategy_of(2, 3, "worker", 1, 1)) == (2, 3)
    assert tf_distribute._workers(strategy_of(2, 2, "worker", 0, 1)) == (1, 2)
    assert tf_distribute._workers(strategy_of(2, 1, "evaluator", 1, 0)) == (0, 1)


def test_a_table_made_before_the_strategy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job.current()
    monkeypatch.setattr(strategies, "active_strategy", lambda: SimpleNamespace())
    monkeypatch.setattr(registry, "current", lambda: SimpleNamespace(size=2, rank=1))
    with pytest.raises(ValueError, match=r"outside of the strategy's scope.*worker 1 of 2"):
        job.current()


def test_names_of_one_key_are_refused() -> None:
    collectives = tf_distribute.TfDistributeCollectives("/CPU:0", 0, 1, 7, {})
    key = next(iter(_keys_of(collectives, "a")))
    with pytest.raises(RuntimeError, match="Rename"):
        _keys_of(collectives, "a", taken={key: "another"})


def _keys_of(collectives: Any, label: str, taken: dict[int, str] | None = None) -> set[int]:
    collectives._keys = dict(taken or {})
    collectives._op(lambda **arguments: arguments["instance_key"], tf.zeros([]), label, None)
    return set(collectives._keys)


def test_sizes_are_padded_by_an_eighth_at_most() -> None:
    for n_bytes in [1, 4, 33, 1000, 12345, 10**6, 10**9, 2**33]:
        words, which = runtime._size_of(tf.constant(n_bytes, tf.int64))
        assert n_bytes <= 4 * int(words) <= 1.125 * n_bytes + 4
        assert runtime._SIZES[int(which)] == int(words)


def test_a_folder_is_the_same_only_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert node_discovery.same_folder(str(tmp_path / "a")) == node_discovery.same_folder(str(tmp_path / "b"))
    assert node_discovery.same_folder(str(tmp_path / "a")) != node_discovery.same_folder(str(tmp_path))
