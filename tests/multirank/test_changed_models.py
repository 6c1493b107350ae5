"""A checkpoint of several ranks is restored into a changed model: new, dropped and renamed tables."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import launch
import numpy as np
import pytest
from changed_model_program import Options

from tf_sparse_ps.checkpoints import stored_checkpoint

pytestmark = pytest.mark.nightly


def run(options: Options, hosts: str, ranks: int, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs the program to its end; returns what each rank wrote, by the names of files, and the output."""
    text = json.dumps(dataclasses.asdict(options))
    with launch.launched("changed_model_program.py", text, hosts=hosts, ranks=ranks, env=env) as job:
        status = job.wait()
        if options.kill_at:
            assert status != 0
            return {"output": job.output}
        assert status == 0, job.output[-10000:]
        assert job.output.count("rank is done") == ranks, job.output[-10000:]
        results: dict[str, Any] = {"output": job.output}
        for file in job.folder.iterdir():
            if file.suffix == ".npz":
                with np.load(file) as arrays:
                    results[file.stem] = dict(arrays)
            else:
                results[file.stem] = json.loads(file.read_text())
        return results


def of_both(contents: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of the tables and towers that both models have."""
    parts = {name: set(re.split("[./_]", name)) for name in contents}
    return {name: contents[name] for name, words in parts.items() if not words & {"old", "price"}}


def must_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(actual) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


@pytest.mark.parametrize(("placement", "per_node"), [("replicated", False), ("sharded", False), ("sharded", True)])
def test_two_machines_restore_a_changed_model(tmp_path: Path, placement: str, per_node: bool) -> None:
    options = Options("save", str(tmp_path), placement, per_node)
    saved = run(options, launch.TWO_NODES, 4)
    changed = run(dataclasses.replace(options, how="change", differ=True), launch.TWO_NODES, 4)
    for rank in range(4):
        assert (
            f"rank {rank} refuses: the ranks of this job are configured differently. allow: rank 0 has "
            "['added_tables'," in changed["output"]
        )
        must_equal(of_both(changed[f"restored-{rank}"]), of_both(saved[f"saved-{rank}"]))
        must_equal(of_both(changed[f"trained-{rank}"]), of_both(saved[f"trained-{rank}"]))
        restored, of_rank_0 = changed[f"restored-{rank}"], changed["restored-0"]
        assert not len(restored["price.0"])
        assert len(changed[f"trained-{rank}"]["price.0"]) == 24
        # Ranks began with other weights: those that are initialized are the same on all of them.
        np.testing.assert_array_equal(restored["price_top/kernel"], of_rank_0["price_top/kernel"])
        report = changed[f"report-{rank}"]
        assert (report["restored_tables"], report["new_tables"]) == (["customer", "item"], ["price"])
        assert (report["renamed_tables"], report["dropped_tables"]) == ({"user": "customer"}, ["old"])
    assert changed["output"].count("tf_sparse_ps: initialized: tables 'price'") == 1
    again = run(dataclasses.replace(options, how="again"), launch.TWO_NODES, 4)
    for rank in range(4):
        must_equal(again[f"restored-{rank}"], changed[f"trained-{rank}"])
        assert not again[f"report-{rank}"]["new_tables"]


def test_a_named_job_that_is_killed_in_such_a_restore_restores_again(tmp_path: Path, shared_memory: str) -> None:
    """The tables of the changed model stay in shared memory, trained and half restored."""
    checkpoints, one_node = tmp_path / "checkpoints", "localhost:2"
    saved = run(Options("save", str(checkpoints)), one_node, 2)
    files = {file: file.read_bytes() for file in checkpoints.rglob("*") if file.is_file()}
    named = {"TFSPS_JOB": "changed", "TFSPS_DIR": shared_memory}
    options = Options("change", str(checkpoints), save=False)
    first = run(options, one_node, 2, named)
    for point in ("table_restored", "step_set", "variables_restored"):
        run(dataclasses.replace(options, kill_at=point), one_node, 2, named)
        assert {file: file.read_bytes() for file in checkpoints.rglob("*") if file.is_file()} == files
        for folder in checkpoints.glob("step-*"):
            stored_checkpoint.check(folder)
    last = run(options, one_node, 2, named)
    for rank in range(2):
        must_equal(of_both(last[f"restored-{rank}"]), of_both(saved[f"saved-{rank}"]))
        must_equal(last[f"trained-{rank}"], first[f"trained-{rank}"])
    assert not len(last["restored-0"]["price.0"])
