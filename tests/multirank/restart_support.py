"""Jobs that are killed and started again by the same command, and the final contents that they have trained."""

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
MEMORY = 1_610_000  # bytes of a tiered table: 1.5 MiB of buffers, and space for some of a machine's 200 rows

_COMPACT = """
import os, signal, sys
from pathlib import Path
from tf_sparse_ps.checkpoints import compaction, fault_points
fault_points.set_action(lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == sys.argv[2] else None)
compaction.compact(Path(sys.argv[1]))
"""


def arguments(options: Options, ranks: int, hosts: str | None) -> tuple[list[str], dict[str, Any]]:
    """Returns the arguments for `launch.launched`."""
    text = json.dumps(dataclasses.asdict(options))
    return [PROGRAM, text], {"hosts": hosts or f"localhost:{ranks}", "ranks": ranks}


def start(options: Options, ranks: int, hosts: str | None = None, **how: Any) -> tuple[int, str]:
    """Runs the program; returns its status and output. `how`: options of `launch.launched`."""
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
    """Runs the program until a rank waits to be killed, and sends its launcher a signal; returns as `start` does."""
    words, of_ranks = arguments(dataclasses.replace(options, kill_waits=True), ranks, hosts)
    with launch.launched(*words, **of_ranks, **how) as job:
        job.wait_for("waits to be killed", launch.LONGEST_S)
        started = [process for process in launch.family(job.process.pid) if process.pid != job.process.pid]
        assert len(started) >= ranks
        job.process.send_signal(number)
        status = job.wait()
        _, alive = psutil.wait_procs(started, 60)
        assert alive == [], f"outlived their launcher:\n{job.output[-5000:]}"
        return status, job.output


def compaction_is_killed(directory: str, point: str) -> None:
    """Compacts the newest checkpoint in a process that is killed at a named point, if it reaches the point."""
    command = [sys.executable, "-c", _COMPACT, directory, point]
    environment = {**os.environ, "PYTHONPATH": str(launch.REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    newest, skipped = CheckpointDirectory(directory).newest()
    assert newest is not None
    assert skipped == []


def content(folder: str, ranks: int) -> list[dict[str, Any]]:
    """Returns the final contents of each rank."""
    contents = []
    for rank in range(ranks):
        with np.load(Path(folder) / f"rank{rank}.npz") as arrays:
            contents.append(dict(arrays))
    return contents


def must_equal(results: str, other_results: str, ranks: int, *, but: str = "", within: float = 0.0) -> None:
    """Fails unless two runs ended with the same bits, or within a distance of each other, on each rank."""
    for rank, (a, b) in enumerate(zip(content(results, ranks), content(other_results, ranks), strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            if name != but:
                label = f"{name} of rank {rank}"
                if within and a[name].dtype.kind == "f":
                    np.testing.assert_allclose(a[name], b[name], rtol=within, atol=within, err_msg=label)
                else:
                    np.testing.assert_array_equal(a[name], b[name], err_msg=label)


def killed(options: Options, ranks: int, *kills: dict[str, Any], hosts: str | None = None, **more: Any) -> list[str]:
    """Runs the program, killed in different ways, until it ends by itself; returns the outputs.

    Args:
      options: The options of the run.
      ranks: The number of ranks.
      kills: The additional options of each kill. `launcher`: the signal that ends the launcher, which is
        `tf-sparse-ps run`, or horovodrun on several machines, unless another one is chosen; `compaction`: kills no
        rank, but a later compaction, at this point.
      hosts: The hosts of the ranks.
      more: Further options of `start`.
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
    """Returns kills between steps, in saves, restores and compactions, of a run of 18 steps.

    Args:
      n: The number of kills.
      seed: The seed of the choice.
      ranks: The number of ranks of the job. Rank 0 is a leader, and writes the manifests.
      launcher: Whether to kill the launcher, too, by SIGKILL and SIGTERM.
      nodes: The number of nodes of the job. If it equals `ranks`, ranks that write their node's part are killed, too.
      per_node: Whether each node has a directory. Then there are no compactions.
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
        # The last save is at step 18. From the third checkpoint on, saving one removes an old one.
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
    """Returns the lines with the metrics of epochs."""
    return sorted(line[line.index(LOGS) :].strip() for line in output.splitlines() if LOGS in line and "{" in line)


def fit_options(folder: Path, name: str, **options: Any) -> Options:
    """Returns the options of a run with folders of this name."""
    return Options(str(folder / name), results=str(folder / f"{name}-results"), **options)


class Whole:
    """Uninterrupted runs, each of which is made once for all tests of a file."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for the results."""
        self._folder = folder
        self._made: dict[str, tuple[str, str]] = {}

    def run(self, ranks: int, hosts: str | None = None, named: bool = False, **options: Any) -> tuple[str, str]:
        """Returns the folder of its results, and its output. Tables of a `named` job begin with other values."""
        name = re.sub("[^a-z0-9]", "_", str((ranks, hosts, named, *options.values())).lower())
        if name not in self._made:
            chosen = fit_options(self._folder, name, **options)
            env = {"TFSPS_JOB": JOB} if named else None
            self._made[name] = chosen.results, finish(chosen, ranks, hosts=hosts, env=env)
            for rank_content in content(chosen.results, ranks):
                assert rank_content["step of the tables"] == sum(BATCHES), "a batch was skipped, or came twice"
        return self._made[name]
