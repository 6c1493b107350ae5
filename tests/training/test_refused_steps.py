"""A refused batch leaves tables, dense weights and the optimizer unchanged, and training continues."""

from __future__ import annotations

from typing import Any

import pytest
import refused_batches


@pytest.mark.parametrize(
    ("case", "mode"),
    [*((case, "graph") for case in refused_batches.CASES), ("synchronous", "eager"), ("synchronous", "train_on_batch")],
)
@pytest.mark.daily_cases(3)
def test_training_after_a_refused_batch_equals_training_without_it(case: str, mode: str) -> None:
    actual, errors = refused_batches.train(case, bad=True, mode=mode)
    assert len(errors) == len(refused_batches.BAD)
    assert all("is not finite" in error for error in errors), errors
    expected, errors = refused_batches.train(case, bad=False, mode=mode)
    assert errors == []
    assert refused_batches.differences(actual, expected) == []


def test_a_refused_batch_would_show() -> None:
    # The control: the same batches with valid targets.
    def spoil(i: int, ids: Any, targets: Any) -> None:
        targets[0] = 1.0

    with pytest.raises(AssertionError):  # more updates than steps
        refused_batches.train("synchronous", bad=True, spoil=spoil)
