"""Jobs with rows on a device are killed at random times."""

from __future__ import annotations

import cached_kills
import pytest


@pytest.mark.parametrize(
    ("kills", "seed", "flushes"),
    [
        pytest.param(3, 7, (None,), id="3"),
        pytest.param(100, 1, cached_kills.FLUSHES, id="100", marks=[pytest.mark.nightly, pytest.mark.timeout(7200)]),
    ],
)
@pytest.mark.nightly
def test_a_killed_job_says_up_to_which_step_its_table_is_complete(
    kills: int, seed: int, flushes: tuple[int | None, ...]
) -> None:
    result = cached_kills.kill(kills, seed, flushes)
    assert not result.violations
    assert result.kills == kills
    # The control: without the mark, tables would claim steps that they do not contain.
    assert result.unmarked > 0
    assert result.dirty >= result.unmarked
