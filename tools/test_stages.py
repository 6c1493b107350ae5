"""Runs the stages of a tier of tests, each of which is a make target, and prints a table of their results and times.

    make quick                        runs at most two minutes, for the inner loop
    make test                         runs before every push: fifteen minutes on two cores
    make nightly                      runs all tests
    make nightly FROM=matrix          runs this stage and all later ones, with earlier results of this commit
    python tools/test_stages.py --tier nightly asan tsan     runs these stages

If lint, build or cc-test fails, the run stops, because later results would mean little. Other stages do not stop it.
The folder build/checks/TIER/COMMIT/ keeps the output and the result of each stage.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_TIME = re.compile(r"^file +([\d.]+) s  (\S+)$", re.MULTILINE)  # tests/conftest.py prints these lines
SLOWEST = 10
# A stage of the nightly tier that takes longer must be split: a failure near its end costs too much.
LONGEST_STAGE_MIN = 40


@dataclasses.dataclass(frozen=True)
class Stage:
    """A make target.

    Attributes:
      target: The name of the target.
      minutes: The time that the stage takes on two idle cores, after everything is built.
      stops: Whether its failure stops the run.
    """

    target: str
    minutes: float
    stops: bool = False


LINT, DOCS, BUILD = Stage("lint", 0.5, stops=True), Stage("docs", 0.5), Stage("build", 0.1, stops=True)
CC_TEST = Stage("cc-test", 2, stops=True)
PYTEST, WHEEL_SMOKE = Stage("pytest", 12), Stage("wheel-smoke", 1)

TIERS = {
    "quick": (
        Stage("lint-python", 0.3, stops=True),
        BUILD,
        Stage("cc-quick", 0.5, stops=True),
        Stage("pytest-quick", 1),
    ),
    "test": (LINT, DOCS, BUILD, CC_TEST, PYTEST, Stage("keras2-smoke", 2), WHEEL_SMOKE),
    "nightly": (
        LINT,
        DOCS,
        BUILD,
        CC_TEST,
        PYTEST,
        Stage("pytest-nightly", 35),
        Stage("plan-accuracy", 3),
        Stage("multirank-nightly", 30),
        Stage("sharded-nightly", 25),
        Stage("restarts-nightly", 35),
        Stage("multirank-tensorflow", 30),
        Stage("sharded-tensorflow", 25),
        Stage("restarts-tensorflow", 30),
        Stage("matrix", 15),
        Stage("pytest-tf215", 15),
        Stage("pytest-nightly-tf215", 35),
        Stage("plan-accuracy-tf215", 3),
        Stage("multirank-nightly-tf215", 30),
        Stage("sharded-nightly-tf215", 25),
        Stage("restarts-nightly-tf215", 35),
        Stage("multirank-tensorflow-tf215", 30),
        Stage("sharded-tensorflow-tf215", 25),
        Stage("restarts-tensorflow-tf215", 30),
        Stage("matrix-tf215", 15),
        WHEEL_SMOKE,
        Stage("bazel", 9),
        Stage("crash", 15),
        Stage("crash-nodes", 10),
        Stage("mutate", 15),
        Stage("s3", 2),
        Stage("sdist", 3),
        Stage("wheels-smoke", 12),
        Stage("oracle", 30),
        Stage("fuzz-ranks", 36),
        Stage("soak", 30),
        Stage("simd", 3),
        Stage("asan", 10),
        Stage("tsan", 10),
    ),
}


@dataclasses.dataclass
class Result:
    """The result of a stage."""

    stage: str
    status: int
    seconds: float
    counts: dict[str, int]
    skips: list[str]
    files: dict[str, float]
    when: str

    @property
    def verdict(self) -> str:
        """The verdict in the table: "FAILED" or "ok"."""
        return "FAILED" if self.status else "ok"


def _counts(output: str, status: int) -> dict[str, int]:
    """Adds up the summary lines of pytest and GoogleTest. A stage that prints neither counts as one check."""
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


def commit() -> str:
    """Returns the short name of the checkout's commit, with "-changed" if files differ from the commit."""

    def git(*arguments: str) -> str:
        process = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return process.stdout.strip()

    name = git("rev-parse", "--short=12", "HEAD") or "no-commit"
    return name + "-changed" * bool(git("status", "--porcelain"))


class Records:
    """The results of one tier at one commit."""

    def __init__(self, tier: str) -> None:
        self.folder = ROOT / "build/checks" / tier / commit()
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, result: Result, output: str) -> None:
        """Writes the result and the output of a stage."""
        (self.folder / f"{result.stage}.log").write_text(output)
        (self.folder / f"{result.stage}.json").write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")

    def load(self, stage: Stage) -> Result | None:
        """Returns the earlier result of a stage at this commit, or None."""
        file = self.folder / f"{stage.target}.json"
        return Result(**json.loads(file.read_text())) if file.exists() else None


def run(stage: Stage) -> tuple[Result, str]:
    """Runs a stage, shows its output, and returns its result and output."""
    print(f"\n=== {stage.target}, about {stage.minutes:g} min", flush=True)
    start = time.monotonic()
    lines = []
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", stage.target]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not FILE_TIME.match(line):
                print(line, end="", flush=True)
            lines.append(line)
    output = "".join(lines)
    seconds = time.monotonic() - start
    result = Result(
        stage=stage.target,
        status=process.returncode,
        seconds=round(seconds, 1),
        counts=_counts(output, process.returncode),
        skips=[line.strip() for line in lines if line.startswith("SKIPPED")],
        files={f"{name} ({stage.target})": float(time_s) for time_s, name in FILE_TIME.findall(output)},
        when=datetime.datetime.now().isoformat(timespec="seconds"),
    )
    print(f"--- {stage.target}: {result.verdict} in {seconds:.0f} s", flush=True)
    return result, output


def report(stages: tuple[Stage, ...], results: dict[str, Result], folder: Path) -> None:
    """Prints the table of stages, the slowest files, and the total."""
    total = {kind: sum(result.counts[kind] for result in results.values()) for kind in ("passed", "failed", "skipped")}
    print(f"\n=== stages, {sum(result.seconds for result in results.values()):.0f} s; logs: {folder.relative_to(ROOT)}")
    for stage in stages:
        result = results.get(stage.target)
        if result is None:
            print(f"{stage.target:27} not run at this commit")
            continue
        counts = ", ".join(f"{count} {kind}" for kind, count in result.counts.items() if count)
        print(f"{stage.target:27} {result.verdict:6} {result.seconds:6.0f} s  {counts}")
        for skip in result.skips:
            print(f"{'':27} {skip}")
        if result.seconds > 60 * LONGEST_STAGE_MIN:
            print(f"{'':27} took more than {LONGEST_STAGE_MIN} minutes: split this stage")
    files = sorted(((s, name) for result in results.values() for name, s in result.files.items()), reverse=True)
    if files:
        print(f"--- the {min(SLOWEST, len(files))} slowest files")
        for seconds, name in files[:SLOWEST]:
            print(f"{seconds:7.1f} s  {name}")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


def main() -> int:
    """Runs a tier or some of its stages. Returns 1 if a stage fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=TIERS, default="test", help="tier to run (default: test)")
    parser.add_argument("--from", dest="first", default="", metavar="STAGE", help="run this stage and all later ones")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="run only these stages of the tier")
    arguments = parser.parse_args()
    stages = TIERS[arguments.tier]
    names = [stage.target for stage in stages]
    chosen = arguments.stages or names
    if unknown := {*chosen, *filter(None, [arguments.first])} - set(names):
        parser.error(f"{arguments.tier} has no stage {', '.join(sorted(unknown))}. Its stages: {', '.join(names)}")
    if arguments.first:
        chosen = [name for name in names[names.index(arguments.first) :] if name in chosen]

    records = Records(arguments.tier)
    results: dict[str, Result] = {}
    if arguments.first:
        results = {stage.target: record for stage in stages if (record := records.load(stage)) is not None}
    for stage in stages:
        if stage.target in chosen:
            result, output = run(stage)
            records.save(result, output)
            results[stage.target] = result
            if stage.stops and result.status:
                break
    report(tuple(stage for stage in stages if arguments.first or stage.target in chosen), results, records.folder)
    return 1 if any(result.status for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
