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
# By fault: the plan, and the beginning of what the fuzzer must say.
CONTROLS: dict[str, tuple[Plan, str]] = {
    "other weights": (dataclasses.replace(_QUIET, fault="other weights"), "silent difference"),
    "a hang": (dataclasses.replace(_QUIET, fault="a hang"), "hang"),
}
# A job without a fault.
CLEAN = _QUIET
