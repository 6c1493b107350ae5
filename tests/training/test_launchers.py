"""Processes that a launcher started as ranks, and that are not connected: each would train alone, and is refused."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from fork_server import AT_IMPORT, ForkServer

import tf_sparse_ps as tsps
from tf_sparse_ps.collectives import launchers, registry

_OF_LAUNCHERS = (
    "TFSPS_SIZE TFSPS_LOCAL_SIZE "
    "HOROVOD_SIZE HOROVOD_RANK HOROVOD_LOCAL_SIZE OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE MV2_COMM_WORLD_SIZE "
    "MV2_COMM_WORLD_LOCAL_SIZE JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_SIZE PMI_SIZE MPI_LOCALNRANKS SLURM_NTASKS "
    "SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES"
).split()

TRAIN = """
import numpy as np, tensorflow as tf, tf_sparse_ps as tsps
def train():
    model = tf.keras.Sequential([tsps.Embedding(10, 2), tf.keras.layers.GlobalAveragePooling1D()])
    model.compile(tsps.DistributedOptimizer("sgd"), "mse")
    model.fit(np.ones((4, 1), np.int64), np.ones((4, 2)), verbose=0)
def said(action):
    try:
        action()
    except RuntimeError as error:
        return str(error)
    return "no error"
"""


def in_a_fresh_process(code: str, **environment: str) -> list[str]:
    """Runs a program in a fresh process, which must succeed, and returns the lines of its output."""
    env = {name: value for name, value in os.environ.items() if name not in _OF_LAUNCHERS}
    with tempfile.TemporaryDirectory(prefix="tsps-test-", dir="/dev/shm") as folder:
        env |= {"TFSPS_DIR": folder, "PYTHONPATH": str(Path(tsps.__file__).parent.parent), **AT_IMPORT, **environment}
        done = ForkServer.of_this_process().run(TRAIN + code, env)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_ranks_of_mpirun_that_have_not_met_are_refused_until_they_say_that_they_are_alone() -> None:
    before, also_before, after, alone = in_a_fresh_process(
        """
print(said(train))
print(said(lambda: tsps.DistributedOptimizer("sgd")))
print(said(tsps.init))
tsps.init(collectives="local")
train()
print(tsps.collectives.current().size)
""",
        OMPI_COMM_WORLD_SIZE="3",
        OMPI_COMM_WORLD_LOCAL_SIZE="3",
    )
    for text in (before, also_before, after):
        assert "OMPI_COMM_WORLD_SIZE=3" in text
        assert "tsps.init(collectives='local')" in text
    for text in (before, also_before):
        assert "Call tsps.init()" in text or "not installed" in text
    assert "hvd.size() is 1" in after or "not installed" in after
    assert alone == "1"


def test_ranks_of_srun_that_have_not_met_are_refused_and_the_script_of_a_batch_job_trains() -> None:
    code = "print(said(train))"
    (text,) = in_a_fresh_process(code, SLURM_NTASKS="8", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NUM_NODES="2")
    assert "SLURM_STEP_NUM_TASKS=2" in text
    assert in_a_fresh_process(code, SLURM_NTASKS="8") == ["no error"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without the variables of any launcher."""
    for name in _OF_LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(registry, "_local_chosen", registry.threading.Event())
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "found_variable", "on_one_machine"),
    [
        ({}, None, False),
        ({"SLURM_NTASKS": "4"}, None, False),
        ({"SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "1"}, None, False),
        ({"PMI_SIZE": "four"}, None, False),
        ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}, "HOROVOD_SIZE", False),
        ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "0", "HOROVOD_LOCAL_SIZE": "4"}, "HOROVOD_SIZE", True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE", True),
        ({"MV2_COMM_WORLD_SIZE": "4"}, "MV2_COMM_WORLD_SIZE", False),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, "PMI_SIZE", True),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "1"}, "SLURM_STEP_NUM_TASKS", True),
        ({"TFSPS_SIZE": "4", "TFSPS_LOCAL_SIZE": "4"}, "TFSPS_SIZE", True),
        # Processes that a Slurm step has started in turn.
        ({"SLURM_STEP_NUM_TASKS": "2", "TFSPS_SIZE": "4", "TFSPS_LOCAL_SIZE": "2"}, "TFSPS_SIZE", False),
        ({"SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE", False),
        ({"SLURM_STEP_NUM_TASKS": "2", "HOROVOD_SIZE": "4", "HOROVOD_RANK": "1"}, "HOROVOD_SIZE", False),
        ({"SLURM_STEP_NUM_TASKS": "2", "HOROVOD_SIZE": "1", "HOROVOD_RANK": "0"}, None, False),
    ],
)
def test_launchers_are_told_by_their_variables(
    variables: dict[str, str], found_variable: str | None, on_one_machine: bool, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    launch = launchers.find()
    assert (launch and launch.variable) == found_variable
    if launch is not None:
        assert (launch.size, launch.on_one_machine) == (4, on_one_machine)


def test_one_rank_is_enough_when_it_says_so_for_one_optimizer(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PMI_SIZE", "2")
    for kind in ("auto", "horovod"):
        with pytest.raises(RuntimeError, match=r"PMI_SIZE=2|hvd\.init\(\)"):
            registry.resolve(kind)
    assert tsps.DistributedOptimizer("sgd", collectives="local").collectives == "local"
    assert registry.current().size == 1
