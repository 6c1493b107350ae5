"""A step that a killed run of a named job has left undecided.

Nodes that have sharded tables make a step together or not at all. Their leaders write it, seal it and vote; when all
are for it they publish. A group that is sealed does not know whether others have published. So when the job is started
again all nodes tell what they have: if one has published, the others do, too; if none has, none does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import NotFoundError, StateError
from tf_sparse_ps.job.identity import Identity

_REMEDY = (
    "Start it on the nodes that it had, with their tables; or remove the job's folders on all nodes, and start from "
    "what was saved last"
)


@dataclasses.dataclass(frozen=True)
class GroupState:
    """What a node has.

    Attributes:
      step: The last step that is made.
      run_id: The run whose steps these are.
      sealed: The step that is written and not decided, or None.
      sealed_run: The run that has written it.
      voters: The number of nodes that decide it.
    """

    step: int
    run_id: int
    sealed: int | None = None
    sealed_run: int = 0
    voters: int = 0

    @classmethod
    def of(cls, path: str) -> GroupState | None:
        """Of the group in a folder; None: there is none."""
        try:
            info: dict[str, Any] = _table.Group.open(path).info()
        except NotFoundError:
            return None
        sealed = info["sealed"]
        if sealed is None or sealed["peers"] < 2:
            return cls(info["step"], info["run_id"])
        return cls(info["step"], info["run_id"], sealed["step"], sealed["run_id"], sealed["peers"])


def settle(path: str, identity: Identity, collectives: Collectives) -> str:
    """Asks all nodes. Every rank calls it, before the leaders open their groups.

    Args:
      path: Of this node's group.
      identity: Of this rank, of a named job.
      collectives: Of the job.

    Returns:
      What the leaders' `open_writer` is given as `outcome`.

    Raises:
      StateError: It cannot be settled; on all ranks.
    """
    own = GroupState.of(path) if identity.is_leader else None
    states = collectives.allgather_object(own, "tfsps_states")
    return outcome([states[leader] for leader in identity.leaders], str(identity.name))


def outcome(states: Sequence[GroupState | None], job: str) -> str:
    """What becomes of a step that some nodes have sealed.

    Args:
      states: Of each node; None: it has no group of the job.
      job: Its name.

    Returns:
      "publish", if a node has made the step; "undo", if none has; "refuse", if no node has sealed one.

    Raises:
      StateError: Nodes are missing, or have something else.
    """
    sealed = [one for one in states if one is not None and one.sealed is not None]
    if not sealed:
        return "refuse"
    step, run, voters = sealed[0].sealed, sealed[0].sealed_run, sealed[0].voters
    assert step is not None
    against = []
    if voters != len(states):
        against.append(f"{voters} nodes decide it, and this run has {len(states)}")
    for node, one in enumerate(states):
        if one is None:
            against.append(f"node {node} has no tables of the job")
        elif one.sealed is not None and (one.sealed, one.sealed_run, one.voters) != (step, run, voters):
            against.append(f"node {node} has written step {one.sealed} of another run")
        elif one.sealed is None and (one.run_id != run or one.step not in (step - 1, step)):
            against.append(f"node {node} is at step {one.step} of another run")
    kept = {one.step for one in states if one is not None and one.sealed is None}
    if len(kept & {step - 1, step}) == 2:
        against.append("some nodes have made it, and some do not have it")
    if against:
        raise StateError(
            f"job {job!r} was killed while its nodes were deciding step {step} together, and it cannot be settled: "
            f"{'; '.join(against)}. {_REMEDY}"
        )
    return "publish" if step in kept else "undo"
