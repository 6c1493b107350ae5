"""Jobs that are killed and started again by the same command, and what they have trained in the end."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import launch
import numpy as np
import psutil
from restart_program import BATCHES, Options

from tf_sparse_ps.checkpoints import fault_points
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory

PROGRAM, JOB = "restart_program.py", "restarts"
LOGS = "epoch "
TWO_MACHINES = "localhost:1,127.0.0.1:1"
MEMORY = 12_620_000  # of a tiered table: 12 MiB are buffers, and there is room for some of a machine's 200 rows

_COMPACT = """
import os, signal, sys
from pathlib import Path
from tf_sparse_ps.checkpoints import compaction, fault_points
fault_points.set_action(lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == sys.argv[2] else None)
compaction.compact(Path(sys.argv[1]))
"""


def arguments(options: Options, ranks: int, hosts: str | None) -> tuple[list[str], dict[str, Any]]:
    """For `launch.launched`."""
    text = json.dumps(dataclasses.asdict(options))
    return [PROGRAM, text], {"hosts": hosts or f"localhost:{ranks}", "ranks": ranks}


def start(options: Options, ranks: int, hosts: str | None = None, **how: Any) -> tuple[int, str]:
    """Runs the program; returns its status and output. `how`: of `launch.launched`."""
    words, of_ranks = arguments(options, ranks, hosts)
    with launch.launched(*words, **of_ranks, **how) as job:
        return job.wait(), job.output


def finish(options: Options, ranks: int, **more: Any) -> str:
    """Runs the program to its end."""
    status, output = start(options, ranks, **more)
    assert status == 0, output[-10000:]
    assert output.count("rank is done") == ranks
    return output


def kill_launcher(number: int, options: Options, ranks: int, hosts: str | None = None, **how: Any) -> tuple[int, str]:
    """Runs the program until a rank waits to be killed, and ends its launcher by this signal; as `start`."""
    words, of_ranks = arguments(dataclasses.replace(options, kill_waits=True), ranks, hosts)
    with launch.launched(*words, **of_ranks, **how) as job:
        job.wait_for("waits to be killed", launch.LONGEST_S)
        started = [one for one in launch.family(job.process.pid) if one.pid != job.process.pid]
        assert len(started) >= ranks
        job.process.send_signal(number)
        status = job.wait()
        _, alive = psutil.wait_procs(started, 60)
        assert alive == [], f"outlived their launcher:\n{job.output[-5000:]}"
        return status, job.output


def compaction_is_killed(directory: str, point: str) -> None:
    """Compacts the newest checkpoint, and is killed at a named point, if it comes there."""
    command = [sys.executable, "-c", _COMPACT, directory, point]
    environment = {**os.environ, "PYTHONPATH": str(launch.REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    found, skipped = CheckpointDirectory(directory).newest()
    assert found is not None
    assert skipped == []


def content(folder: str, ranks: int) -> list[dict[str, Any]]:
    """What each rank had in the end."""
    found = []
    for rank in range(ranks):
        with np.load(Path(folder) / f"rank{rank}.npz") as arrays:
            found.append(dict(arrays))
    return found


def must_equal(one: str, other: str, ranks: int, *, but: str = "", within: float = 0.0) -> None:
    """Two runs have ended with the same bits, or within a distance of each other, on each rank."""
    for rank, (a, b) in enumerate(zip(content(one, ranks), content(other, ranks), strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            if name != but:
                what = f"{name} of rank {rank}"
                if within and a[name].dtype.kind == "f":
                    np.testing.assert_allclose(a[name], b[name], rtol=within, atol=within, err_msg=what)
                else:
                    np.testing.assert_array_equal(a[name], b[name], err_msg=what)


def killed(options: Options, ranks: int, *kills: dict[str, Any], hosts: str | None = None, **more: Any) -> list[str]:
    """Runs the program, killed in different ways, until it ends by itself; returns the outputs.

    Args:
      options: Of the run.
      ranks: Their number.
      kills: Of each, what the options have besides. `launcher`: the signal that ends it, that of `tf-sparse-ps run`, or
        on several machines horovodrun, if nothing else is asked for; `compaction`: none of the job, but of a compaction
        behind it, at this point.
      hosts: Of the ranks.
      more: Of `start`.
    """
    outputs = []
    for kill in kills:
        ways = {name: kill[name] for name in ("launcher", "compaction") if name in kill}
        if "compaction" in ways:
            compaction_is_killed(options.checkpoints, ways["compaction"])
            continue
        rest = {name: value for name, value in kill.items() if name not in ways}
        run = dataclasses.replace(options, results="", **rest)
        if "launcher" in ways:
            by = {} if more.keys() & {"by_run", "by_horovodrun"} else {"by_horovodrun" if hosts else "by_run": True}
            status, output = kill_launcher(ways["launcher"], run, ranks, hosts, **more, **by)
        else:
            status, output = start(run, ranks, hosts, **more)
        assert status != 0, f"it was not killed:\n{output[-5000:]}"
        outputs.append(output)
    return [*outputs, finish(options, ranks, hosts=hosts, **more)]


def kills_at_random(
    n: int, seed: int, ranks: int = 2, *, launcher: bool = False, nodes: int = 1, per_node: bool = False
) -> list[dict[str, Any]]:
    """Kills between steps, in saves, restores and compactions, of a run of 18 steps.

    Args:
      n: Their number.
      seed: Of the choice.
      ranks: Of the job; rank 0 is a leader, and the one that writes manifests.
      launcher: Its kills, too, by SIGKILL and SIGTERM.
      nodes: Of the job. If there are as many as ranks, others that write their part of a checkpoint are killed, too.
      per_node: Each has a directory, and none is compacted.
    """
    draw = random.Random(seed)
    kills: list[dict[str, Any]] = []
    ways = ["step", "step", "save", "restore", "save" if per_node else "compaction"] + ["launcher"] * 2 * launcher
    for number in range(n):
        how = draw.choice(ways)
        if how == "compaction" and number:
            kills.append({"compaction": draw.choice(fault_points.POINTS)})
            continue
        if how == "restore" and number:
            kill_rank = draw.randrange(nodes)
            kills.append({"kill_rank": kill_rank, "kill_restore": draw.choice(fault_points.RESTORE_POINTS)})
            continue
        # The last save comes at 18; behind a checkpoint old ones are removed from the third on.
        kill = {"kill_rank": draw.randrange(ranks), "kill_at": 1 + 15 * number // n}
        if how == "save" or (how == "launcher" and draw.random() < 0.5):
            kill |= {"kill_rank": 0, "kill_point": draw.choice((*fault_points.POINTS[:9], fault_points.CAPTURED))}
            if nodes == ranks and draw.random() < 0.5:
                kill["kill_rank"] = draw.randrange(nodes)
                if not per_node:
                    of_parts = (fault_points.CAPTURED, "file_written", *fault_points.PART_POINTS[:2])
                    kill["kill_point"] = draw.choice(of_parts) if kill["kill_rank"] else fault_points.PART_TAKEN
        if how == "launcher":
            kill["launcher"] = draw.choice((signal.SIGKILL, signal.SIGTERM))
        kills.append(kill)
    return kills


def logs(output: str) -> list[str]:
    """The lines that tell the metrics of epochs."""
    return sorted(line[line.index(LOGS) :].strip() for line in output.splitlines() if LOGS in line and "{" in line)


def fit_options(folder: Path, name: str, **options: Any) -> Options:
    """Of a run with folders of this name."""
    return Options(str(folder / name), results=str(folder / f"{name}-results"), **options)


class Whole:
    """Uninterrupted runs, each made once for all tests of a file."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for their results."""
        self._folder = folder
        self._made: dict[str, tuple[str, str]] = {}

    def run(self, ranks: int, hosts: str | None = None, named: bool = False, **options: Any) -> tuple[str, str]:
        """Returns where its results are, and its output. Tables of a job that is `named` begin with other values."""
        name = re.sub("[^a-z0-9]", "_", str((ranks, hosts, named, *options.values())).lower())
        if name not in self._made:
            chosen = fit_options(self._folder, name, **options)
            env = {"TFSPS_JOB": JOB} if named else None
            self._made[name] = chosen.results, finish(chosen, ranks, hosts=hosts, env=env)
            for one in content(chosen.results, ranks):
                assert one["step of the tables"] == sum(BATCHES), "a batch was skipped, or came twice"
        return self._made[name]
