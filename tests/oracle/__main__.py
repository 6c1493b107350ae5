"""python -m tests.oracle [--draws N] [--minutes M] [--seed S]: random jobs against a plain NumPy model.

Each draw chooses the options of a job (update rule, types, placement, storage, cache, eviction, admission, schedule,
collectives, ranks, checkpoints) and a script (training, lookups, evaluation, writes, evictions, saves, exports). Its
ranks are killed at random moments and started again by the same command. Every snapshot of every rank is compared with
the model: keys, rows, slots, uses, counters, dense weights, step. The control comes first: the oracle must find planted
faults.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("reference", "multirank")]

from tests import draws  # noqa: E402
from tests.oracle import controls, draw, one_draw  # noqa: E402


def main() -> int:
    """Makes the control and the draws; returns the exit status."""
    arguments = draws.parse("python -m tests.oracle", __doc__.split("\n\n")[0])
    seed = arguments.seed
    if not arguments.no_control:
        missed = controls.missed(seed)
        for text in missed:
            print(text)
        if missed or arguments.control:
            print("control: " + ("failed" if missed else "all planted faults were found"))
            return int(bool(missed))
    results = draws.make(
        arguments,
        lambda seed_of_draw: one_draw.make(draw.plan(seed_of_draw)),
        lambda result: failure_text(result) if result.problems else "",
    )
    return summary(results, seed)


def failure_text(result: one_draw.Result) -> str:
    """Describes a failed draw."""
    options = json.dumps(dataclasses.asdict(result.plan.options))
    kills = json.dumps([dataclasses.asdict(kill) for kill in result.plan.kills])
    problems = "\n".join(f"  {problem}" for problem in result.problems[:8])
    repeat = f"python -m tests.oracle --seed {result.plan.options.seed} --draws 1 --no-control"
    return (
        f"FAILED seed {result.plan.options.seed} ({repeat})\n{problems}\n  options: {options}\n  kills: {kills}\n"
        + (f"  kept: {result.folder}")
    )


def summary(results: list[one_draw.Result], seed: int) -> int:
    """Prints the table; returns the exit status."""
    failed = [result for result in results if result.problems]
    rows = {
        "draws": len(results),
        "with eviction": sum(any(t.eviction for t in result.plan.options.tables) for result in results),
        "with admission": sum(any(t.count for t in result.plan.options.tables) for result in results),
        "seeds": f"{seed} to {seed + len(results) - 1}",
        "kills": sum(result.kills for result in results),
        "restarts": sum(result.runs - 1 for result in results),
        "arrays compared": sum(result.compared for result in results),
        "seconds per draw": f"{sum(result.seconds for result in results) / max(len(results), 1):.1f}",
        "failures": len(failed),
    }
    for name, value in rows.items():
        print(f"{name:18}{value}")
    for result in failed:
        print(f"failed: seed {result.plan.options.seed}, {result.folder}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
