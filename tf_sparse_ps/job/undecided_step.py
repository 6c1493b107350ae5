"""`settle`: publishes or undoes a step that a killed run of a named job has left undecided.

Nodes with sharded tables make a step together or not at all. Their leaders write the step, seal it, and vote. If all
agree, they publish it. A sealed group does not know whether other nodes have published. So when the job is started
again, all nodes report their states. If one node has published the step, the others publish it, too. If no node has,
all nodes undo it.
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
    "Start the job on the nodes that it had, with their tables. Or remove the job's folders on all nodes, and start "
    "from the newest checkpoint"
)


@dataclasses.dataclass(frozen=True)
class GroupState:
    """The state of a node's group.

    Attributes:
      step: The last published step.
      run_id: The run that made this step.
      sealed: The step that is written but not decided, or None.
      sealed_run: The run that wrote the sealed step.
      voters: The number of nodes that decide the sealed step.
      index_seed: The seed from which the seeds of its tables' indexes follow.
    """

    step: int
    run_id: int
    sealed: int | None = None
    sealed_run: int = 0
    voters: int = 0
    index_seed: int = 0

    @classmethod
    def of(cls, path: str) -> GroupState | None:
        """Returns the state of the group in a folder; None if the folder has no group."""
        try:
            info: dict[str, Any] = _table.Group.open(path).info()
        except NotFoundError:
            return None
        sealed = info["sealed"]
        if sealed is None or sealed["peers"] < 2:
            return cls(info["step"], info["run_id"], index_seed=info["index_seed"])
        seed = info["index_seed"]
        return cls(info["step"], info["run_id"], sealed["step"], sealed["run_id"], sealed["peers"], index_seed=seed)


def settle(path: str, identity: Identity, collectives: Collectives) -> tuple[str, int]:
    """Returns what all nodes do with an undecided step. Every rank calls this before the leaders open their groups.

    Args:
      path: The path of this node's group.
      identity: The identity of this rank. The job is named.
      collectives: The collectives of the job.

    Returns:
      The `outcome` that each leader passes to `open_writer`; and the `index_seed` of new groups, that of the groups
      that an earlier run has left on other nodes, so that keys have the same hashes on all nodes.

    Raises:
      StateError: The nodes cannot decide the step. It is raised on all ranks.
    """
    own_state = GroupState.of(path) if identity.is_leader else None
    states = collectives.allgather_object(own_state, "tfsps_states")
    of_nodes = [states[leader] for leader in identity.leaders]
    index_seed = next((state.index_seed for state in of_nodes if state is not None), identity.index_seed)
    return outcome(of_nodes, str(identity.name)), index_seed


def outcome(states: Sequence[GroupState | None], job: str) -> str:
    """Decides a step that some nodes have sealed.

    Args:
      states: The state of each node; None: the node has no group of the job.
      job: The name of the job.

    Returns:
      "publish" if a node has published the step; "undo" if none has; "refuse" if no node has sealed a step.

    Raises:
      StateError: Nodes are missing, or have steps that do not fit together.
    """
    sealed = [state for state in states if state is not None and state.sealed is not None]
    if not sealed:
        return "refuse"
    step, run, voters = sealed[0].sealed, sealed[0].sealed_run, sealed[0].voters
    assert step is not None
    objections = []
    if voters != len(states):
        objections.append(f"{voters} nodes decide it, and this run has {len(states)}")
    for node, state in enumerate(states):
        if state is None:
            objections.append(f"node {node} has no tables of the job")
        elif state.sealed is not None and (state.sealed, state.sealed_run, state.voters) != (step, run, voters):
            objections.append(f"node {node} has written step {state.sealed} of another run")
        elif state.sealed is None and (state.run_id != run or state.step not in (step - 1, step)):
            objections.append(f"node {node} is at step {state.step} of another run")
    published = {state.step for state in states if state is not None and state.sealed is None}
    if len(published & {step - 1, step}) == 2:
        objections.append("some nodes have published it, and some do not have it")
    if objections:
        raise StateError(
            f"job {job!r} was killed while its nodes were deciding step {step} together, and this run cannot decide "
            f"it: {'; '.join(objections)}. {_REMEDY}"
        )
    return "publish" if step in published else "undo"
