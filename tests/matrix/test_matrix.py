"""The documentation's tables of what works with what, run row by row on two ranks.

Rows and cases are held against each other, so that neither is without the other. Cases of one job run one after
another; a case that does not end, or ends the job, has failed, and another job goes on with those after it.
"""

from __future__ import annotations

import ast
import json
import re
import time
from pathlib import Path

import cases  # noqa: F401, registers them
import pytest
from launch import Launch, launched
from registry import CASES, COVERED, DECLARED, ROOT, TABLES, rows

CASE_S = 200.0  # for one case; then the job hangs
Outcome = list[str] | None  # an error and where it came from


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_case_and_every_case_a_row(table: str) -> None:
    of_cases = {(feature, refused) for of, feature, refused in DECLARED if of == table}
    written = {
        row.feature: row.verdict or row.text for row in rows(table)
    }  # one may be empty where Kerases have a column each
    assert {feature for feature, _ in of_cases} == set(written)
    for feature, verdict in written.items():
        wanted = verdict.startswith("refused")
        assert (feature, wanted) in of_cases, f"{feature} is said to be: {verdict}; no case of that"


def test_what_other_suites_cover_is_there() -> None:
    for one in COVERED:
        for test in one.tests:
            file, _, name = test.partition("::")
            names = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
            assert name in names, f"{one.feature}: {test}"


def run(names: list[str], listed: Path) -> dict[str, list[Outcome]]:
    """Outcomes of cases on both ranks; `listed`: a file for their names."""
    found: dict[str, list[Outcome]] = {}
    program = str(Path(__file__).with_name("program.py"))
    while names:
        listed.write_text("\n".join(names))
        with launched(program, str(listed), hosts="localhost:2", ranks=2, env={"TFSPS_TIMEOUT_S": "60"}) as job:
            ended, begun = _follow(job, names)
            output = job.output[-6000:]
        found |= ended
        names = [name for name in names if name not in ended]
        if names:  # the job has ended, or hangs, in the first of them
            found[names[0]] = [[f"the job did not get through it; begun by ranks {begun}", output]] * 2
            names = names[1:]
    return found


def _follow(job: Launch, names: list[str]) -> tuple[dict[str, list[Outcome]], list[int]]:
    """What the job has written when it ends, or when nothing comes for too long."""
    last, since = -1, time.monotonic()
    while job.process.poll() is None and time.monotonic() < since + CASE_S:
        size = sum(path.stat().st_size for path in job.folder.glob("*.jsonl"))
        if size != last:
            last, since = size, time.monotonic()
        time.sleep(0.2)
    logs = []
    for rank in (0, 1):
        path = job.folder / f"{rank}.jsonl"
        logs.append([json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [])
    errors = [{line["ended"]: line["error"] for line in log if "ended" in line} for log in logs]
    ended = {name: [of_rank[name] for of_rank in errors] for name in names if all(name in one for one in errors)}
    first = next((name for name in names if name not in ended), None)
    return ended, [rank for rank, log in enumerate(logs) if {"begun": first} in log]


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """Of the cases that are selected."""
    chosen = [item.callspec.params["case"] for item in request.session.items if "case" in item.fixturenames]
    return run([name for name in CASES if name in chosen], tmp_path_factory.mktemp("matrix") / "cases")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES)
def test_row(case: str, outcomes: dict[str, list[Outcome]]) -> None:
    words = CASES[case].refused
    for rank, error in enumerate(outcomes[case]):
        if words is None:
            assert error is None, f"rank {rank}: {error[1]}"
        else:
            assert error is not None, f"rank {rank}: not refused"
            assert re.search(words, error[0], re.DOTALL), f"rank {rank}: {error[1]}"
