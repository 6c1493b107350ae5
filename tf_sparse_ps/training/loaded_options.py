"""Adapts the options of a saved optimizer to the process that loads it.

The collectives and the number of ranks belong to a job. A model that was trained on eight ranks must load in a
notebook.
"""

from __future__ import annotations

import warnings
from typing import Any

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import schedules
from tf_sparse_ps.collectives import Collectives


def for_this_job(config: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of a `DistributedOptimizer` that work in this process.

    Args:
      config: The arguments of the saved optimizer, with objects in place of their configurations.

    Returns:
      The same arguments. If this process cannot have the collectives or the schedule, it warns and replaces them.
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
    """Returns the collectives of a kind; or those that this process has, and the reason."""
    try:
        return collectives_lib.resolve(kind), None
    except (ValueError, RuntimeError) as error:
        return collectives_lib.resolve("auto"), error


def _schedule(saved: schedules.Schedule, optimizer: Any, collectives: Collectives) -> schedules.Schedule:
    loaded = saved.for_job(collectives)
    try:
        loaded.refuse(optimizer, collectives)
    except ValueError as error:
        loaded = schedules.Synchronous()
        _warn(str(saved), str(loaded), str(error))
    else:
        if loaded != saved:
            _warn(str(saved), str(loaded), f"the plan is for another number of ranks; this job has {collectives.size}")
    return loaded


def _warn(saved: str, loaded: str, reason: str) -> None:
    warnings.warn(
        f"the saved optimizer has {saved}, which this process cannot have: {reason}. It is loaded with {loaded}",
        stacklevel=4,
    )
