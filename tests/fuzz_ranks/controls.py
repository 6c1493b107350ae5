"""Faults that are planted: the fuzzer must find each.

To add one: a case in `plant`, which every rank calls at "begin", before ranks are connected, and at "end", before their
states are compared; and a plan in `CONTROLS` of a job in which the fault shows. A check of the library is switched off
at "begin", by replacing its function.
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
      fault: Its name; "": none.
      when: "begin" or "end".
      rank: This process; -1 at the beginning.
      model: That was trained; None at the beginning.
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
# The plan, and the beginning of what the fuzzer must say.
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
