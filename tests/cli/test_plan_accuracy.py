"""A plan's bytes are within a tenth of those of a real table, and its step times within two fifths.

Everyday tests compare the bytes of two tables. `benchmarks/plan_cases.py` has the cases of the nightly test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tf_sparse_ps.plan import memory

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import plan_cases  # noqa: E402 - of the checkout, not of the package

MEMORY_GOAL, STEP_GOAL = 0.10, 0.40


@pytest.mark.parametrize("name", ["narrow, Adam", "tiered"])
def test_memory_of_a_table_is_within_a_tenth(name: str, tmp_path: Path, shm: Path) -> None:
    case = plan_cases.CASES[name]
    with plan_cases.tables(case, shm / "memory", tmp_path, rows=case.rows // 4) as made:
        measured = plan_cases.table_bytes(made)
        expected = plan_cases.expected_bytes(case, tmp_path, rows=case.rows // 4)
    assert expected == pytest.approx(measured, rel=MEMORY_GOAL)


@pytest.mark.parametrize("rows", [1_000, 30_000, 150_000, 400_000])
def test_segments_of_the_index_are_those_of_a_table(rows: int, shm: Path) -> None:
    case = plan_cases.Case(rows=rows, dims=(1,), optimizer="sgd", ids=1)
    with plan_cases.tables(case, shm / f"segments-{rows}", None) as (table,):
        measured = table.stats()["segments"]
    assert memory.index_segments(rows) == pytest.approx(measured, rel=0.06, abs=1)


@pytest.mark.nightly
@pytest.mark.parametrize("case", plan_cases.ALL.values(), ids=plan_cases.ALL)
def test_jobs_are_planned_well(case: plan_cases.Case, shm: Path, tmp_path: Path) -> None:
    figures = plan_cases.compare(case, shm / "nightly", tmp_path)
    assert figures.expected_bytes == pytest.approx(figures.bytes, rel=MEMORY_GOAL)
    errors = np.array(figures.expected_ms) / np.array(figures.ms) - 1
    # No other test runs meanwhile (`make plan-accuracy`), and one of the repetitions is without other work.
    assert np.abs(errors).min() < STEP_GOAL, figures
