"""Runs the documentation's tables of what works with what, row by row on two ranks.

Every row must have a case, and every case a row. The cases of a job run one after another. A case that does not end, or
ends the job, has failed. Another job then runs the cases after it.
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

CASE_S = 200.0  # the limit of one case, after which the job is considered hanging
Outcome = list[str] | None  # an error and where it came from


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_case_and_every_case_a_row(table: str) -> None:
    of_cases = {(feature, refused) for table_of_case, feature, refused in DECLARED if table_of_case == table}
    written = {
        row.feature: row.verdict or row.text for row in rows(table)
    }  # if each Keras has a column, one of them may be empty
    assert {feature for feature, _ in of_cases} == set(written)
    for feature, verdict in written.items():
        is_refused = verdict.startswith("refused")
        assert (feature, is_refused) in of_cases, f"the page says of {feature}: {verdict}; no case tests this"


def test_what_other_suites_cover_is_there() -> None:
    for row in COVERED:
        for test in row.tests:
            file, _, name = test.partition("::")
            names = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
            assert name in names, f"{row.feature}: {test}"


def run(names: list[str], listed: Path) -> dict[str, list[Outcome]]:
    """Returns the outcomes of cases on both ranks. `listed`: a file for the names of the cases."""
    outcomes_of_cases: dict[str, list[Outcome]] = {}
    program = str(Path(__file__).with_name("program.py"))
    while names:
        listed.write_text("\n".join(names))
        with launched(program, str(listed), hosts="localhost:2", ranks=2, env={"TFSPS_TIMEOUT_S": "60"}) as job:
            ended, begun = _follow(job, names)
            output = job.output[-6000:]
        outcomes_of_cases |= ended
        names = [name for name in names if name not in ended]
        if names:  # the job has ended, or hangs, in the first of them
            outcomes_of_cases[names[0]] = [
                [f"the job did not finish this case; ranks {begun} had begun it", output]
            ] * 2
            names = names[1:]
    return outcomes_of_cases


def _follow(job: Launch, names: list[str]) -> tuple[dict[str, list[Outcome]], list[int]]:
    """Returns the outcomes that a job has written when it ends, or writes nothing for too long."""
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
    ended = {
        name: [errors_of_rank[name] for errors_of_rank in errors]
        for name in names
        if all(name in errors_of_rank for errors_of_rank in errors)
    }
    first = next((name for name in names if name not in ended), None)
    return ended, [rank for rank, log in enumerate(logs) if {"begun": first} in log]


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """The outcomes of the selected cases."""
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
