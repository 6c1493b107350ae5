"""Planted faults, each of which the oracle must find."""

from __future__ import annotations

from tests.oracle import draw, one_draw
from tests.oracle.faults import FAULTS
from tests.oracle.options import Operation, Options, Plan, TableOptions

_TABLE = TableOptions(
    layer="embedding",
    features=1,
    dim=4,
    keys=90,
    bounded=False,
    weights=False,
    dtype="float32",
    rounding="stochastic",
    constraint="",
    placement="replicated",
    pull="float32",
    storage="memory",
    cache="",
    eviction="lru",
    unused_steps=2,
)


def _plan(seed: int, fault: str) -> Plan:
    base = draw.plan(seed).options
    values = {
        "engine": "horovod",
        "layout": "2",
        "rule": "adagrad",
        "matched": True,
        "reduction": "frequency",
        "topology": "hierarchical",
        "wire": "float32",
        "clip": 0.0,
        "schedule": "synchronous",
        "batch": 8,
        "width": 2,
        "policy": "none",
        "named": False,
        "per_node": False,
        "tables": (_TABLE,),
    }
    options = Options(**{name: getattr(base, name) for name in Options.__dataclass_fields__} | values)
    script = (
        Operation("train", 2, 0),
        Operation("look_up", value=1),
        Operation("train", 3, 2),
        Operation("look_up", value=2),
    )
    return Plan(options, script, (), (), fault)


def missed(seed: int) -> list[str]:
    """Runs all controls; returns the faults that were not found, and other problems."""
    problems = []
    for fault in FAULTS:
        result = one_draw.make(_plan(seed, fault))
        found = [problem for problem in result.problems if "differs in" in problem or "lacks" in problem]
        if not found:
            problems.append(f"the planted fault {fault!r} was not found: {result.problems}")
        if result.folder is not None:
            one_draw.remove(result)
    clean = one_draw.make(_plan(seed, ""))
    if clean.problems:
        problems.append(f"the same job without a fault has problems: {clean.problems}")
    return problems
