"""Runs a draw, and judges it: all ranks agree bit for bit, or all ended in time with a message that says why."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from pathlib import Path

from tests.fuzz_ranks.plan import Plan

HERE = Path(__file__).resolve().parent
for _folder in ("reference", "multirank"):
    sys.path.append(str(HERE.parent / _folder))

import launch  # noqa: E402

TIMEOUT_S = 15  # TFSPS_TIMEOUT_S
MARGIN_S = 10.0  # within this time after the timeout, all ranks have ended
RUN_S = 120.0  # for the work of a job in addition to waits, on a busy machine
# Texts in an error, in addition to the rank, that name the difference.
_NAMES = r"ranks? \[?[\d, ]*\b{who}\b|TFSPS_|configured differently|every rank|different numbers of batches"
# The lines of errors among all others.
_ERROR = r"Error|KeyboardInterrupt|tf_sparse_ps:|Lost|the ranks of this job"


@dataclasses.dataclass
class Result:
    """The result of a draw.

    Attributes:
      plan: The plan of the draw.
      problem: A description of the problem; "": none.
      ended: The end of the job: "agreed"; "error"; or "refused": ranks differ, and no later step was made.
      late_s: The seconds until a job with an error ended, from the event or the last step that a rank made after it.
      output: The output of all ranks.
    """

    plan: Plan
    problem: str = ""
    ended: str = ""
    late_s: float = 0.0
    output: str = ""


def make(plan: Plan, run_s: float = RUN_S) -> Result:
    """Runs a draw.

    Args:
      plan: The plan of the draw.
      run_s: The seconds that the draw may take in addition to waits of ranks for each other.
    """
    result = Result(plan)
    environment = {"TFSPS_TIMEOUT_S": str(TIMEOUT_S), "CUDA_VISIBLE_DEVICES": ""}
    with launch.launched(
        str(HERE / "program.py"),
        plan.text,
        hosts=plan.hosts,
        ranks=plan.ranks,
        env=environment,
        collectives=plan.engine,
    ) as job:
        begin = progress = time.monotonic()
        n_reports = 0
        while job.process.poll() is None:
            now = time.monotonic()
            if n_reports != (n_reports := job.output.count("fuzz: ")):
                progress = now
            limit_s = run_s + TIMEOUT_S + MARGIN_S
            if now - begin > limit_s:
                result.problem = f"hang: the job has not ended after {limit_s:.0f} s"
                break
            time.sleep(0.05)
        else:
            status = job.wait()
            result.late_s = time.monotonic() - progress
            _judge(result, status, job)
        result.output = job.output
    return result


def _judge(result: Result, status: int, job: launch.Launch) -> None:
    plan = result.plan
    result.ended = "error" if status else "agreed"
    if status:
        if not _is_named(plan, job.output):
            result.problem = f"no message names rank {plan.who} or what differs"
        elif result.late_s > TIMEOUT_S + MARGIN_S:
            result.problem = f"late: all ranks have ended only {result.late_s:.0f} s after the last step of a rank"
        return
    states = [json.loads((job.folder / f"state-{rank}.json").read_text()) for rank in range(plan.ranks)]
    caught = [state.pop("caught") for state in states]
    for rank, state in enumerate(states):
        for name, value in state.items():
            expected = next(other[name] for other in states if name in other)
            if value == expected:
                continue
            result.ended = "refused"
            # A program that catches errors continues. Its steps are refused until the end, and all ranks get errors.
            if not all(_is_named(plan, text) for text in caught):
                result.problem = f"silent difference: {name} on rank {rank} is {value}, on another {expected}"
                return


def _is_named(plan: Plan, output: str) -> bool:
    """Whether the output has an error that names the rank, or what differs."""
    names = _NAMES.format(who=plan.who)
    if plan.event in ("raise", "interrupt"):
        names += "|FuzzError|KeyboardInterrupt"
    return any(re.search(names, line) for line in output.splitlines() if re.search(_ERROR, line))
