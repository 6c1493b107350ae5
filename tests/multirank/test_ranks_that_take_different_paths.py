"""Ranks that take different paths end with an error that names what they waited for, and what each rank does.

They wait as long as a missing rank makes progress. What one rank imports changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator

import pytest
from launch import HOROVOD, LONGEST_S, ONE_NODE, VARIABLE, launched

TIMEOUT_S = 6
MARGIN_S = 10.0  # within this time after TFSPS_TIMEOUT_S, all ranks have ended


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[dict[str, str]]]:
    with launched("apart_program.py", "callbacks", hosts=ONE_NODE, ranks=2) as job:
        assert job.wait() == 0, job.output[-20000:]
        yield [json.loads((job.folder / f"outcomes-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.daily
@pytest.mark.parametrize("way", ["import_on_one_rank", "drain_on_one_rank", "exception_with_equal_steps"])
def test_what_one_rank_does_is_no_error(outcomes: list[dict[str, str]], way: str) -> None:
    assert [outcome[way] for outcome in outcomes] == ["no error"] * 2


@pytest.mark.daily
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("average_on_one_rank", ["tsps.callbacks.MetricAverage on some ranks and not on ranks [0]"]),
        ("other_order", ["different orders", "rank 0 has ['tsps.callbacks.MetricAverage'", "rank 1 has"]),
        ("other_root", ["root of tsps.callbacks.BroadcastVariables: rank 0 has 0, rank 1 has 1"]),
        ("other_option", ["every_steps of tsps.callbacks.Checkpoint: rank 0 has 2, rank 1 has 3"]),
        ("other_number_of_steps", ["steps that this fit makes", "rank 0 has 2, rank 1 has 4"]),
        ("refused_on_one_rank", ["EarlyStopping(restore_best_weights=True) is not supported"]),
    ],
)
def test_every_rank_names_the_setting_and_the_ranks(outcomes: list[dict[str, str]], way: str, words: list[str]) -> None:
    for rank, outcome in enumerate(outcomes):
        for word in words:
            assert word in outcome[way], f"rank {rank}: {outcome[way]}"


def test_the_rank_that_refuses_its_fit_is_named_on_the_others(outcomes: list[dict[str, str]]) -> None:
    assert outcomes[0]["refused_on_one_rank"].startswith("ValueError: this fit is refused on rank 1: UnsupportedError")


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("layer", [r"waited \d+ s for the leader to write table .*t0001-table1", r"in operation 'tsps\.fit"]),
        (
            "collective",
            [r"in operation 'test\.barrier", r"for rank 1 of node 0 \(pid \d+\)", r"line \d+ of apart_program"],
        ),
    ],
)
@pytest.mark.nightly
def test_a_wait_before_the_first_step_ends_and_says_what_each_rank_does(way: str, says: list[str]) -> None:
    environment = {"TFSPS_TIMEOUT_S": str(TIMEOUT_S)}
    with launched("apart_program.py", way, hosts=ONE_NODE, ranks=2, env=environment) as job:
        assert job.wait() != 0
        for words in says:
            assert re.search(words, job.output), f"{words!r}: {job.output[-20000:]}"


@pytest.mark.nightly
def test_a_rank_that_fails_before_the_first_step_is_named_at_once() -> None:
    with launched("shielded.py", "apart_program.py", "raises", hosts=ONE_NODE, ranks=2) as job:
        job.wait_for("rank 0: rank 1 ended with ValueError: no such shard", LONGEST_S)
        (job.folder / "end").touch()
        assert job.wait() != 0


@pytest.mark.nightly
def test_ranks_of_a_machine_with_different_folders_of_tables() -> None:
    if os.environ[VARIABLE] != HOROVOD:
        pytest.skip("with TensorFlow's collectives the folder tells which ranks share tables")
    with launched("apart_program.py", "folders", hosts=ONE_NODE, ranks=2) as job:
        assert job.wait() != 0
        assert "TFSPS_DIR differs between them" in job.output, job.output[-20000:]
        assert "/other' on rank 1" in job.output


@pytest.mark.parametrize("way", ["restore", "evaluates"])
@pytest.mark.nightly
def test_ranks_wait_for_one_that_makes_progress(way: str) -> None:
    environment = {"TFSPS_TIMEOUT_S": str(TIMEOUT_S)}
    with launched("apart_program.py", way, hosts=ONE_NODE, ranks=2, env=environment) as job:
        began = time.monotonic()
        assert job.wait() == 0, job.output[-20000:]
        print(f"{way}: {time.monotonic() - began:.0f} s")
        assert "have waited" not in job.output
