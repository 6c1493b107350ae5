"""If the launcher of a job is killed, its ranks end, and the same command resumes as if nothing had happened."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from restart_support import JOB, Whole, fit_options, killed, must_equal

KILL, TERM = signal.SIGKILL, signal.SIGTERM
BETWEEN_STEPS = {"kill_rank": 1, "kill_at": 6}
IN_A_SAVE = {"kill_rank": 0, "kill_at": 8, "kill_point": "manifest_written"}
IN_A_RESTORE = {"kill_rank": 0, "kill_restore": "rows_restored"}
BETWEEN_LATER_STEPS = {"kill_rank": 0, "kill_at": 14}
FOUR = (BETWEEN_STEPS, IN_A_SAVE, IN_A_RESTORE, BETWEEN_LATER_STEPS)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("by", "number", "kills"),
    [
        ("by_run", KILL, FOUR),
        ("by_run", TERM, FOUR),
        ("by_horovodrun", KILL, FOUR),
        ("by_horovodrun", TERM, FOUR),
    ],
    ids=["run-KILL", "run-TERM", "horovodrun-KILL", "horovodrun-TERM"],
)
def test_a_launcher_is_killed_in_fit(
    tmp_path: Path,
    shared_memory: str,
    whole: Whole,
    by: str,
    number: signal.Signals,
    kills: tuple[dict[str, Any], ...],
) -> None:
    results, _ = whole.run(2, named=True)
    broken = fit_options(tmp_path, "broken")
    named = {"TFSPS_JOB": JOB, "TFSPS_DIR": shared_memory}
    outputs = killed(broken, 2, *({**kill, "launcher": number} for kill in kills), env=named, **{by: True})
    restored = [f"restored {tmp_path}/broken/step-" in output for output in outputs[1:]]
    # A run that is killed in its restore does not report that it has restored.
    assert restored == ["kill_restore" not in kill for kill in kills[1:]] + [True]
    must_equal(results, broken.results, 2)
