"""A job of which one rank, the launcher, or all of them get SIGTERM saves, ends with 143, and resumes bit for bit."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest
from restart_program import BATCHES, Options
from restart_support import TWO_MACHINES, Whole, finish, fit_options, must_equal, start

from tf_sparse_ps.checkpoints.directory import CheckpointDirectory

WHO = ("rank", "launcher", "all")
STEPS = sum(BATCHES)
NEVER = 10_000


def preempt(options: Options, who: str, rank: int, at: int, hosts: str | None = None) -> tuple[int, str]:
    """Runs the job until a signal ends it. Returns the step that it has saved, and its output."""
    run = dataclasses.replace(options, results="", sends=who, kill_rank=rank, kill_at=at)
    status, output = start(run, 2, hosts, by_run=hosts is None)
    assert status == 143, output[-5000:]
    match = re.search(
        r"got SIGTERM, so this job ends with status 143\. It was saved.* batch (\d+) of epoch (\d+)", output
    )
    assert match is not None, output[-5000:]
    batch, epoch = int(match[1]), int(match[2])
    return sum(BATCHES[:epoch]) + batch, output


def must_have_said(output: str, who: str, rank: int) -> None:
    launcher = "the launcher of node 0 got SIGTERM"
    if who == "rank":
        assert f"the job ended with status 143 because rank {rank} got SIGTERM" in output
    else:
        assert launcher in output
    assert "failed first" not in output
    assert "SIGKILL" not in output


@pytest.mark.daily
def test_one_rank_gets_the_signal_and_all_save_one_step(tmp_path: Path) -> None:
    broken = fit_options(tmp_path, "broken", every=NEVER, preemption=True, background=True)
    step, output = preempt(broken, "rank", 1, 2)
    assert 2 <= step <= STEPS
    newest, _ = CheckpointDirectory(broken.checkpoints).newest()
    assert newest is not None
    assert newest.manifest.step == step
    must_have_said(output, "rank", 1)


def test_a_rank_the_launcher_or_all_get_the_signal(tmp_path: Path, whole: Whole) -> None:
    results, _ = whole.run(2, every=NEVER, preemption=True)
    broken = fit_options(tmp_path, "broken", every=NEVER, preemption=True, background=True)
    saved = 0
    for who, rank, at in (("rank", 1, 2), ("launcher", 0, 6), ("all", 0, 11)):
        step, output = preempt(broken, who, rank, at)
        assert max(at, saved) <= step <= STEPS
        saved = step
        must_have_said(output, who, rank)
    finish(broken, 2)
    must_equal(results, broken.results, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_random_moments(tmp_path: Path, whole: Whole, seed: int) -> None:
    results, _ = whole.run(2, every=NEVER, preemption=True)
    broken = fit_options(tmp_path, "broken", every=NEVER, preemption=True, background=True)
    draw = random.Random(seed)
    step = 0
    for number in range(3):
        at = step + draw.randint(1, max(1, (STEPS - step) // (3 - number)))
        if at <= STEPS:
            step, _ = preempt(broken, draw.choice(WHO), draw.randrange(2), at)
            assert at <= step <= STEPS
    finish(broken, 2)
    must_equal(results, broken.results, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_a_rank_of_another_machine_gets_the_signal(tmp_path: Path, whole: Whole, placement: str) -> None:
    results, _ = whole.run(2, TWO_MACHINES, every=NEVER, preemption=True, placement=placement)
    broken = fit_options(tmp_path, "broken", every=NEVER, preemption=True, background=True, placement=placement)
    for rank, at in ((1, 3), (0, 9)):
        step, _ = preempt(broken, "rank", rank, at, TWO_MACHINES)
        assert at <= step <= STEPS
    finish(broken, 2, hosts=TWO_MACHINES)
    must_equal(results, broken.results, 2)
