"""A killed run left a step undecided: whether it is committed or refused follows from the state of its nodes."""

from __future__ import annotations

import pytest

from tf_sparse_ps.errors import StateError
from tf_sparse_ps.job.undecided_step import GroupState, outcome

RUN, STEP = 11, 7
SEALED = GroupState(STEP - 1, RUN, STEP, RUN, 3)
MADE = GroupState(STEP, RUN)
NOT_WRITTEN = GroupState(STEP - 1, RUN)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([MADE, MADE, MADE], "refuse"),
        ([None, None, None], "refuse"),
        ([MADE, GroupState(STEP, 99), None], "refuse"),  # nothing is undecided; the differing step is reported later
        ([SEALED, SEALED, SEALED], "undo"),
        ([SEALED, NOT_WRITTEN, SEALED], "undo"),
        ([SEALED, NOT_WRITTEN, NOT_WRITTEN], "undo"),
        ([SEALED, MADE, SEALED], "publish"),
        ([MADE, MADE, SEALED], "publish"),
    ],
)
def test_nodes_that_have_it_decide(states: list[GroupState | None], expected: str) -> None:
    assert outcome(states, "job") == expected


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([SEALED, SEALED], "3 nodes decide it, and this run has 2"),
        ([SEALED], "3 nodes decide it, and this run has 1"),
        ([SEALED, None, SEALED], "node 1 has no tables of the job"),
        ([SEALED, SEALED, GroupState(STEP, RUN, STEP + 1, RUN, 3)], "node 2 has written step 8 of another run"),
        ([SEALED, GroupState(STEP - 1, RUN, STEP, 12, 3), SEALED], "node 1 has written step 7 of another run"),
        ([SEALED, GroupState(STEP, 12), SEALED], "node 1 is at step 7 of another run"),
        ([SEALED, GroupState(STEP + 1, RUN), SEALED], "node 1 is at step 8 of another run"),
        ([SEALED, MADE, NOT_WRITTEN], "some nodes have published it, and some do not have it"),
    ],
)
def test_what_cannot_be_settled_is_refused_with_the_remedy(states: list[GroupState | None], message: str) -> None:
    with pytest.raises(StateError, match=f"job 'job' was killed .* step {STEP} .*{message}.*newest checkpoint"):
        outcome(states, "job")
