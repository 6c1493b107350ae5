"""Planted faults, each of which the fuzzer must find.

To add one, add a case to `plant`, and a plan to `CONTROLS` of a job in which the fault shows. Every rank calls `plant`
at "begin", before ranks are connected, and at "end", before their states are compared. To switch a check of the library
off, replace its function at "begin".
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from tests.fuzz_ranks.plan import Plan, draw
from tf_sparse_ps.reduction import agreement


def plant(fault: str, when: str, rank: int, model: Any) -> None:
    """Plants a fault in this process.

    Args:
      fault: The name of the fault; "": none.
      when: "begin" or "end".
      rank: The rank of this process; -1 at the beginning.
      model: The trained model; None at the beginning.
    """
    if fault == "other weights" and when == "end" and rank == 1:
        variable = model.trainable_variables[-1]
        variable.assign(variable + 1e-6)
    elif fault == "no comparison" and when == "begin":
        agreement.compared = False
    elif fault == "a hang" and when == "end" and rank == 1:
        time.sleep(3600)


_QUIET = dataclasses.replace(
    draw(0),
    engine="horovod",
    hosts="localhost:2",
    ranks=2,
    rule="sgd",
    sharded=False,
    callbacks=(),
    catches=False,
    event="nothing",
    moment="begin",
    who=1,
    detail="",
)
_NOT_COMPARED = dataclasses.replace(_QUIET, fault="no comparison")
# Each plan, and the beginning of the problem that the fuzzer must report.
CONTROLS: dict[str, tuple[Plan, str]] = {
    "other weights": (dataclasses.replace(_QUIET, fault="other weights"), "silent difference"),
    "a hang": (dataclasses.replace(_QUIET, fault="a hang"), "hang"),
    "rates are not compared": (
        dataclasses.replace(_NOT_COMPARED, event="rate", moment="step", step=2),
        "silent difference",
    ),
    "tables are not compared": (
        dataclasses.replace(_NOT_COMPARED, hosts="localhost:1,127.0.0.1:1", event="write", moment="between"),
        "silent difference",
    ),
}
# A job without a fault.
CLEAN = _QUIET
