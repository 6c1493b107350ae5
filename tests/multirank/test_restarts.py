"""A job that is killed and started again by the same command trains what an uninterrupted one trains, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launch
import numpy as np
import pytest
from restart_program import BATCHES, Options

PROGRAM = "restart_program.py"
STEPS = sum(BATCHES)
LOGS = "epoch "


@pytest.fixture
def shared_memory() -> Iterator[str]:
    """A TFSPS_DIR that outlives jobs."""
    folder = tempfile.mkdtemp(prefix="tsps-test-restarts-", dir="/dev/shm")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(options: Options, ranks: int, hosts: str | None = None, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs the program; returns its status and output."""
    text = json.dumps(dataclasses.asdict(options))
    hosts = hosts or f"localhost:{ranks}"
    with launch.launched(PROGRAM, text, hosts=hosts, ranks=ranks, env=env) as job:
        return job.wait(), job.output


def finish(options: Options, ranks: int, **more: Any) -> str:
    """Runs the program to its end."""
    status, output = start(options, ranks, **more)
    assert status == 0, output[-10000:]
    assert output.count("rank is done") == ranks
    return output


def content(folder: str, ranks: int) -> list[dict[str, Any]]:
    """What each rank had in the end."""
    found = []
    for rank in range(ranks):
        with np.load(Path(folder) / f"rank{rank}.npz") as arrays:
            found.append(dict(arrays))
    return found


def must_equal(one: str, other: str, ranks: int, *, but: str = "") -> None:
    """Two runs have ended with the same bits, on each rank."""
    for rank, (a, b) in enumerate(zip(content(one, ranks), content(other, ranks), strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            if name != but:
                np.testing.assert_array_equal(a[name], b[name], err_msg=f"{name} of rank {rank}")


def killed(options: Options, ranks: int, *kills: dict[str, Any], **more: Any) -> list[str]:
    """Runs the program, killed in different ways, until it ends by itself; returns the outputs."""
    outputs = []
    for kill in kills:
        status, output = start(dataclasses.replace(options, results="", **kill), ranks, **more)
        assert status != 0, f"it was not killed:\n{output[-5000:]}"
        outputs.append(output)
    return [*outputs, finish(options, ranks, **more)]


def logs(output: str) -> list[str]:
    """The lines that tell the metrics of epochs."""
    return sorted(line[line.index(LOGS) :].strip() for line in output.splitlines() if LOGS in line and "{" in line)


def run_both(
    tmp_path: Path, ranks: int, *kills: dict[str, Any], env: dict[str, str] | None = None, **options: Any
) -> Any:
    """An uninterrupted run and a killed one, which must be equal; returns the outputs of both."""
    hosts = options.pop("hosts", None)
    whole = Options(str(tmp_path / "whole"), results=str(tmp_path / "whole-results"), **options)
    first = finish(whole, ranks, hosts=hosts)
    broken = Options(str(tmp_path / "broken"), results=str(tmp_path / "broken-results"), **options)
    outputs = killed(broken, ranks, *kills, hosts=hosts, env=env)
    must_equal(whole.results, broken.results, ranks)
    (steps,) = {int(one["step of the tables"]) for one in content(whole.results, ranks)}
    assert steps == STEPS * options.get("epochs", 3) // 3
    return first, outputs


def test_fit_on_one_rank(tmp_path: Path) -> None:
    # In mid-epoch behind a checkpoint; before the epoch's end, between two; in a save.
    kills = [{"kill_at": 6}, {"kill_at": 11}, {"kill_at": 15, "kill_point": "manifest_written"}]
    first, outputs = run_both(tmp_path, 1, *({"kill_rank": 0, **one} for one in kills))
    for output, step in zip(outputs[1:], (4, 8, 12), strict=True):
        assert f"restored {tmp_path}/broken/step-{step:012d}: step {step}, batch" in output
    # The last run has seen the last epoch from its beginning.
    assert logs(outputs[-1])[-1:] == logs(first)[-1:]
    # Started once more, there is nothing left to do.
    again = finish(Options(str(tmp_path / "broken"), results=str(tmp_path / "again")), 1)
    assert logs(again) == []
    must_equal(str(tmp_path / "whole-results"), str(tmp_path / "again"), 1)
