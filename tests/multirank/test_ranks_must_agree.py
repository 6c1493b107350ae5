"""Ranks that are configured differently end with an error on every rank. It names what differs, and on which ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from launch import HOROVOD, VARIABLE, launched

Outcomes = list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    with launched("mismatch_program.py") as job:
        status = job.wait()
        assert status != 0, "a gradient that is not finite went through"
        assert "not finite" in job.output, job.output[-20000:]
        assert (job.folder / "outcomes-0.json").exists(), job.output[-20000:]
        yield [json.loads((job.folder / f"outcomes-{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("reduction", ["sparse_reduction", "rank 0 has frequency", "rank 2 has sum"]),
        ("topology", ["topology", "rank 0 has flat", "rank 2 has hierarchical"]),
        ("wire", ["wire", "rank 0 has float32", "rank 2 has bfloat16"]),
        ("rule", ["update rule of table", "rank 0 has adagrad(0.1,)", "rank 2 has adagrad(0.2,)"]),
        ("bound", ["key_limit of table", "rank 0 has 10, rank 2 has 11"]),
        ("dense_shape", ["dense gradients", "rank 2 has ['dense[3]']"]),
        ("clipping", ["clipping", "norm=1.0", "rank 2 has", "norm=2.0"]),
        ("version", ["tf_sparse_ps: rank 0 has 0.1.0", "rank 2 has 0.2.0"]),
        ("leader_fails", ["adagrad", "adam", "TFSPS_JOB"]),
        ("broadcast_shapes", ["shapes"]),
        ("callback_on_some_ranks", ["tsps.callbacks.Checkpoint on some ranks and not on ranks [2]"]),
    ],
)
def test_every_rank_says_what_differs(outcomes: Outcomes, way: str, words: list[str]) -> None:
    for rank, outcome in enumerate(outcomes):
        assert outcome[way].startswith("ValueError"), f"rank {rank}: {outcome[way]}"
        for word in words:
            assert word in outcome[way], f"rank {rank}: {outcome[way]}"


def test_a_horovod_that_was_initialised_too_early_is_an_error_with_the_remedy() -> None:
    with launched("early_horovod_program.py", by_horovodrun=True) as job:
        assert job.wait() == 0, job.output[-20000:]
        for rank in range(4):
            message = (job.folder / f"error-{rank}").read_text()
            assert "Import tf_sparse_ps before hvd.init(), or call tsps.init()" in message, message
            assert "topology='flat'" in message, message


def test_explicit_values_are_those_of_rank_0_on_all_nodes(outcomes: Outcomes) -> None:
    assert [outcome["explicit before"][0][0] for outcome in outcomes] == [0, 0, 2, 2], (
        "each node's leader wrote its own"
    )
    untouched, trained = 0.0, pytest.approx(-0.01)  # keys 1, 2 and 3 have gradient 1 on all ranks
    for outcome in outcomes:
        assert outcome["explicit"] == [
            [value] * 3 for value in (untouched, trained, trained, trained, untouched, untouched)
        ]


def test_collectives_give_every_rank_what_they_promise(outcomes: Outcomes) -> None:
    operations = ["t.constant.float32", "t.same.float32"]
    horovod = os.environ[VARIABLE] == HOROVOD
    operations += ["t.unused.float32"] if horovod else ["t.unused", "t.unused.sizes.int64"]
    for rank, outcome in enumerate(outcomes):
        values = outcome["collectives"]
        assert values["last"] == (5 * 16 if rank == 1 else 0)
        assert values["enqueued"] == dict.fromkeys(operations, 5)
        assert values["alltoall"] == [
            [100 * sender + 2 * rank + i for sender in range(4) for i in (0, 1)],
            [2, 2, 2, 2],
        ]
        assert values["ragged"] == [[1, 2, 2, 3, 3, 3], [[1.0], [2.0], [2.0], [3.0], [3.0], [3.0]], []]
        assert values["means"] == [[1.5], [1.0, 1.5]]
        assert values["broadcast"] == [3, -3]
        assert values["objects"] == [{"rank": rank_number, "text": "x" * rank_number} for rank_number in range(4)]
        assert values["object"] == ["from", 1]
