"""If one rank refuses a step, no rank makes it, all report why, and later steps are as if it had never been tried."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import refused_batches
from launch import launched

CASES = ",".join([*refused_batches.CASES, "growth", "order"])
SAYS = {"growth": "/segments", "order": "the number of the step"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("localhost:2", id="one node", marks=pytest.mark.nightly),
        pytest.param("localhost:1,127.0.0.1:1", id="two nodes"),
    ],
)
def results(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    cases = (
        CASES if "," in request.param else CASES.removesuffix(",order")
    )  # ranks of a node read the step of one group
    with launched("refused_program.py", cases, hosts=request.param, ranks=2) as job:
        assert job.wait() == 0, job.output[-20000:]
        results_of_cases = {}
        for case in cases.split(","):
            files = [dict(np.load(job.folder / f"{case}-{rank}.npz")) for rank in range(2)]
            results_of_cases[case] = [file | json.loads(str(file.pop("facts"))) for file in files]
        return results_of_cases


@pytest.mark.parametrize("case", CASES.split(","))
def test_training_after_a_refused_batch_equals_training_without_it(results: Any, case: str) -> None:
    if case not in results:
        pytest.skip("the ranks of a node read the step of one group")
    first, second = results[case]
    for rank in (first, second):
        assert len(rank["errors"]) == len(refused_batches.BAD)
        assert rank["differences"] == []
    for error_1, error_2 in zip(first["errors"], second["errors"], strict=True):
        assert SAYS.get(case, "is not finite") in error_1
        reports = [
            [line for line in error.splitlines() if SAYS.get(case, "finite") in line] for error in (error_1, error_2)
        ]
        assert reports[0] == reports[1], "both ranks have the same error"
    # These are the dense weights, their moments, the tables and their slots.
    arrays = [name for name, value in first.items() if isinstance(value, np.ndarray)]
    assert [name for name in arrays if first[name].tobytes() != second[name].tobytes()] == []
