"""A job that is killed and started again by the same command trains like an uninterrupted one, bit for bit."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from restart_program import Options
from restart_support import JOB, Whole, content, finish, fit_options, killed, logs, must_equal, start

from tf_sparse_ps._compat._keras import IS_KERAS_3 as KERAS_3
from tf_sparse_ps.checkpoints import fault_points


def test_fit_on_one_rank(tmp_path: Path, whole: Whole) -> None:
    results, output = whole.run(1)
    broken = fit_options(tmp_path, "broken")
    # In the middle of an epoch after a checkpoint; before the epoch's end, between two checkpoints; in a save.
    kills = [{"kill_at": 6}, {"kill_at": 11}, {"kill_at": 15, "kill_point": "manifest_written"}]
    outputs = killed(broken, 1, *({"kill_rank": 0, **kill} for kill in kills))
    must_equal(results, broken.results, 1)
    for later, step in zip(outputs[1:], (4, 8, 12), strict=True):
        assert f"restored {tmp_path}/broken/step-{step:012d}: step {step}, batch" in later
    # The last run resumed in the last epoch: its metrics are those of the whole epoch.
    assert logs(outputs[-1]) == logs(output)[-1:]
    # If it is started once more, no work is left.
    again = finish(Options(str(tmp_path / "broken"), results=str(tmp_path / "again")), 1)
    assert logs(again) == []
    must_equal(results, str(tmp_path / "again"), 1)


@pytest.mark.daily
def test_a_leader_of_a_named_job_is_killed_once_in_fit(tmp_path: Path, shared_memory: str, whole: Whole) -> None:
    results, _ = whole.run(2, named=True)
    broken = fit_options(tmp_path, "broken")
    killed(broken, 2, {"kill_rank": 0, "kill_at": 6}, env={"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory})
    must_equal(results, broken.results, 2)


def test_a_rank_and_a_leader_of_a_named_job_are_killed_in_fit(tmp_path: Path, shared_memory: str, whole: Whole) -> None:
    results, output = whole.run(2, named=True)
    broken = fit_options(tmp_path, "broken")
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    # The tables of the job are always ahead of the checkpoint.
    outputs = killed(broken, 2, {"kill_rank": 1, "kill_at": 6}, {"kill_rank": 0, "kill_at": 14}, env=named)
    assert f"restored {tmp_path}/broken/step-{12:012d}: step 12, batch 0 of epoch 2" in outputs[-1]
    if KERAS_3:  # Keras 2 makes metrics at the first batch, so a resumed epoch restarts them
        assert f"restored {tmp_path}/broken/step-{4:012d}: step 4, batch 4 of epoch 0" in outputs[1]
        assert (begun := logs(outputs[1])), "it was killed before an epoch had ended"
        assert set(begun) <= set(logs(output)), "metrics of the resumed epoch must be those of the whole epoch"
    must_equal(results, broken.results, 2)
    (a, b) = content(results, 2)
    different = [name for name in a if name.startswith("variable") and not np.array_equal(a[name], b[name])]
    assert different, "no variable differs between the ranks: the test does not see what is kept for each"


@pytest.mark.parametrize("how", ["fit", pytest.param("loop", marks=pytest.mark.nightly)])
def test_ranks_are_killed_while_checkpoints_are_written_beside_training(
    tmp_path: Path, shared_memory: str, whole: Whole, how: str
) -> None:
    results, _ = whole.run(2, named=True, how=how, every=1)
    broken = fit_options(tmp_path, "broken", how=how, every=1, background=True)
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    # At any time; in the thread that writes; after a checkpoint, when old ones are removed.
    kills = [
        {"kill_rank": 1, "kill_at": 6},
        {"kill_rank": 0, "kill_at": 9, "kill_point": "file_written"},
        {"kill_rank": 0, "kill_at": 12, "kill_point": "set_aside"},
    ]
    outputs = killed(broken, 2, *kills, env=named)
    assert all(f"restored {tmp_path}/broken/step-" in output for output in outputs[1:])
    must_equal(results, broken.results, 2)


@pytest.mark.parametrize(
    "points",
    [("rows_restored",), pytest.param(fault_points.RESTORE_POINTS, marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def test_a_leader_is_killed_while_it_restores(
    tmp_path: Path, shared_memory: str, whole: Whole, points: tuple[str, ...]
) -> None:
    results, _ = whole.run(2, named=True)
    broken = fit_options(tmp_path, "broken", background=True)
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    restores = [{"kill_rank": 0, "kill_restore": point} for point in points]
    killed(broken, 2, {"kill_rank": 1, "kill_at": 10}, *restores, env=named)
    must_equal(results, broken.results, 2)


@pytest.mark.nightly
def test_datasets_of_unknown_length_in_fit(tmp_path: Path, whole: Whole) -> None:
    # Keras begins a step to find the end of an epoch, and this may draw random numbers. So the model has no dropout.
    results, _ = whole.run(1, dropout=False)
    broken = fit_options(tmp_path, "broken", dropout=False, unknown=True, every=3)
    # The last run is killed when the checkpoint of an epoch's last batch exists, and the epoch has not ended.
    killed(broken, 1, {"kill_rank": 0, "kill_at": 4}, {"kill_rank": 0, "kill_at": 12})
    must_equal(results, broken.results, 1)


def test_a_custom_loop_on_two_machines_with_sharded_tables(tmp_path: Path, whole: Whole) -> None:
    hosts = "localhost:1,127.0.0.1:1"
    results, _ = whole.run(2, hosts=hosts, how="loop", placement="sharded")
    broken = fit_options(tmp_path, "broken", how="loop", placement="sharded", background=True)
    # Between two steps; when the part of its machine is written, except for the report to rank 0.
    kills = [{"kill_rank": 1, "kill_at": 9}, {"kill_rank": 1, "kill_at": 12, "kill_point": fault_points.PART_WRITTEN}]
    killed(broken, 2, *kills, hosts=hosts)
    must_equal(results, broken.results, 2)
    # One machine alone restores the same rows. One of its tables is partly on disk.
    (tmp_path / "disk").mkdir()
    loaded = Options(
        broken.checkpoints,
        str(tmp_path / "loaded"),
        after="save",
        placement="replicated",
        tiered=str(tmp_path / "disk"),
    )
    output = finish(loaded, 1)
    assert "differed. All ranks resume with the values of rank 0" in output
    assert "'items': keys without a row are counted from 0 again, because 2 machines had counted them" in output
    (first, _), (of_one_machine,) = content(results, 2), content(loaded.results, 1)
    for name in first:
        np.testing.assert_array_equal(of_one_machine[name], first[name], err_msg=name)
    # Two machines restore the checkpoint of that machine. It has the ranks' own variables of one rank only.
    back = Options(broken.checkpoints, str(tmp_path / "back"), after="load", placement="sharded")
    assert f"restored {broken.checkpoints}/step-{18:012d}-2" in finish(back, 2, hosts=hosts)
    for restored in content(back.results, 2):
        for name in first:
            np.testing.assert_array_equal(restored[name], first[name], err_msg=name)


@pytest.mark.nightly
def test_rows_on_disk_are_evicted_after_a_restart_as_without_one(tmp_path: Path) -> None:
    jobs = {}
    for name in ("whole", "broken"):
        (tmp_path / f"disk-{name}").mkdir()
        disk = str(tmp_path / f"disk-{name}")
        jobs[name] = fit_options(tmp_path, name, tiered=disk, memory=1_636_000)  # 1.5 MiB are buffers
    finish(jobs["whole"], 2)
    killed(jobs["broken"], 2, {"kill_rank": 0, "kill_at": 6}, {"kill_rank": 1, "kill_at": 14})
    must_equal(jobs["whole"].results, jobs["broken"].results, 2)


def test_the_control_without_the_tables_is_refused_and_without_the_check_differs(
    tmp_path: Path, shared_memory: str, whole: Whole
) -> None:
    results, _ = whole.run(1, named=True)
    broken = fit_options(tmp_path, "broken")
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    status, _ = start(dataclasses.replace(broken, kill_rank=0, kill_at=6), 1, env=named)
    assert status != 0
    status, output = start(dataclasses.replace(broken, skip="tables"), 1, env=named)
    assert status != 0
    assert "the tables are at step 6 after a checkpoint of step 4" in output
    finish(dataclasses.replace(broken, skip="check"), 1, env=named)
    with pytest.raises(AssertionError, match="users"):
        must_equal(results, broken.results, 1, but="step of the tables")


def test_tables_of_a_killed_run_without_its_checkpoints_are_refused(tmp_path: Path, shared_memory: str) -> None:
    broken = fit_options(tmp_path, "broken")
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    status, _ = start(dataclasses.replace(broken, kill_rank=0, kill_at=6), 1, env=named)
    assert status != 0
    shutil.rmtree(broken.checkpoints)
    status, output = start(broken, 1, env=named)
    assert status != 0
    assert "the tables of job 'restarts' are at step 6, the optimizer is at 0" in output
