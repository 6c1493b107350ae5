"""Runs suites through make, cheap ones first, and ends with the time of each and one line of counts.

    make test                        the stages of every day
    make nightly                     all stages, none as a slice
    python tools/test_stages.py lint cc-test      these
    python tools/test_stages.py --nightly matrix

Lint, build and cc-test stop the run when they fail: nothing after them would mean much. Later ones all run.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Stage:
    name: str
    variables: tuple[str, ...] = ()  # for make: the slice of a suite that is run here
    stops: bool = False


# What hardly depends on TensorFlow's version, and what needs Horovod there, runs under TensorFlow 2.15 at night.
_SAME_UNDER_BOTH = (
    *("core", "benchmarks", "docs", "examples", "launch", "reference"),
    *(f"checkpoints/test_{file}.py" for file in ("checkpoint_commands", "checkpoint_files", "damaged_increments")),
    "checkpoints/test_killed_increments.py",
)
_WITH_KERAS_2 = "PYTEST_ARGS=" + " ".join(
    [*(f"--ignore=tests/{one}" for one in _SAME_UNDER_BOTH), "-m 'not nightly and not multirank'"]
)
# Ranks that TensorFlow connects: that they agree, keep the same rows and say who is lost; all else at night.
_SMOKE = "PYTEST_ARGS=-k 'must_agree or same_rows or two_nodes_train or (say_which_rank and kill)'"
_ALL = "PYTEST_ARGS=-m 'nightly or not nightly'"
STAGES = (
    Stage("lint", stops=True),
    Stage("docs"),
    Stage("build", stops=True),
    Stage("cc-test", stops=True),
    Stage("pytest"),
    Stage("multirank-tensorflow", (_SMOKE,)),
    Stage("pytest-tf215", (_WITH_KERAS_2,)),
    Stage("wheel-smoke"),
)


NIGHTLY = (
    *STAGES[:5],
    Stage("pytest-tf215"),
    Stage("pytest-nightly"),
    Stage("multirank-tensorflow", (_ALL,)),
    Stage("multirank-tensorflow-tf215", (_ALL,)),
    Stage("matrix"),
    Stage("matrix-tf215"),
    Stage("wheel-smoke"),
    Stage("bazel"),
    Stage("crash"),
    Stage("crash-nodes"),
    Stage("mutate"),
    Stage("simd"),
    Stage("asan"),
    Stage("tsan"),
)


@dataclasses.dataclass
class Result:
    stage: Stage
    seconds: float
    status: int
    counts: dict[str, int]
    skips: list[str]


def _counts(output: str, status: int) -> dict[str, int]:
    """Adds up pytest's summary lines and GoogleTest's; a stage that prints neither is one check."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for line in re.findall(r"^.*\d+ (?:passed|failed|skipped|error)\b.*$", output, re.MULTILINE):
        for number, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
            counts["failed" if kind == "error" else kind] += int(number)
    for ran, passed in re.findall(r"\[=+\] (\d+) tests? .* ran\.[^\[]*\[  PASSED  \] (\d+) tests?", output):
        counts["passed"] += int(passed)
        # The brief report names failed tests but not skipped ones.
        failed = len(re.findall(r"^\[  FAILED  \] \S+.* \(\d+ ms\)$", output, re.MULTILINE))
        counts["failed"] += failed
        counts["skipped"] += int(ran) - int(passed) - failed
    if status and not counts["failed"]:
        counts["failed"] = 1
    elif not any(counts.values()):
        counts["passed"] = 1
    return counts


def run(stage: Stage) -> Result:
    print(f"\n=== {stage.name}", flush=True)
    start = time.monotonic()
    lines = []
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", stage.name, *stage.variables]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    seconds = time.monotonic() - start
    counts = _counts("".join(lines), process.returncode)
    skips = [line.strip() for line in lines if line.startswith("SKIPPED")]
    print(f"--- {stage.name}: {'FAILED' if process.returncode else 'ok'} in {seconds:.0f} s", flush=True)
    return Result(stage, seconds, process.returncode, counts, skips)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nightly", action="store_true", help="all of them, and none as a slice")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(stage.name for stage in NIGHTLY))
    arguments = parser.parse_args()
    names, stages = arguments.stages, NIGHTLY if arguments.nightly else STAGES
    if unknown := set(names) - {stage.name for stage in stages}:
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")

    results: list[Result] = []
    for stage in stages:
        if not names or stage.name in names:
            results.append(run(stage))
            if stage.stops and results[-1].status:
                break

    total = {kind: sum(result.counts[kind] for result in results) for kind in ("passed", "failed", "skipped")}
    print(f"\n=== stages, {sum(result.seconds for result in results):.0f} s")
    for result in results:
        counts = ", ".join(f"{count} {kind}" for kind, count in result.counts.items() if count)
        print(f"{result.stage.name:12} {'FAILED' if result.status else 'ok':6} {result.seconds:6.0f} s  {counts}")
        for skip in result.skips:
            print(f"{'':12} {skip}")
    not_run = [stage.name for stage in stages if not names and stage not in [result.stage for result in results]]
    if not_run:
        print(f"not run after the failure: {', '.join(not_run)}")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if any(result.status for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
