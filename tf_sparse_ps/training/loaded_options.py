"""Options of a saved optimizer in the process that loads it, which may be another job, or none.

How ranks are connected, and how many there are, are facts of a job. A model that was trained on eight ranks must load
in a notebook.
"""

from __future__ import annotations

import warnings
from typing import Any

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import schedules
from tf_sparse_ps.collectives import Collectives


def for_this_job(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a `DistributedOptimizer` as this process can have them.

    Args:
      config: Of the constructor, with objects in place of their configurations.

    Returns:
      The same, but other collectives or another schedule where this process cannot have those. A warning says so.
    """
    config = dict(config)
    kind = config.get("collectives", "auto")
    collectives, problem = _collectives(kind)
    if problem is not None:
        config["collectives"] = "auto"
        _warn(f"collectives={kind!r}", f"collectives='auto', which is {collectives.kind!r} here", str(problem))
    if isinstance(schedule := config.get("schedule"), schedules.Schedule):
        config["schedule"] = _schedule(schedule, config["optimizer"], collectives)
    return config


def _collectives(kind: str) -> tuple[Collectives, Exception | None]:
    """Those of a kind, or, with the reason, those that this process has."""
    try:
        return collectives_lib.resolve(kind), None
    except (ValueError, RuntimeError) as error:
        return collectives_lib.resolve("auto"), error


def _schedule(saved: schedules.Schedule, optimizer: Any, collectives: Collectives) -> schedules.Schedule:
    here = saved.for_job(collectives)
    try:
        here.refuse(optimizer, collectives)
    except ValueError as error:
        here = schedules.Synchronous()
        _warn(str(saved), str(here), str(error))
    else:
        if here != saved:
            _warn(str(saved), str(here), f"the plan is for another number of ranks; this job has {collectives.size}")
    return here


def _warn(saved: str, here: str, reason: str) -> None:
    warnings.warn(
        f"the saved optimizer has {saved}, which this process cannot have: {reason}. It is loaded with {here}",
        stacklevel=4,
    )
