"""python -m tests.oracle [--draws N] [--minutes M] [--seed S]: random jobs against a plain NumPy model.

Each draw chooses options of a job (update rule, types, placement, storage, cache, schedule, collectives, ranks,
checkpoints) and a script (training, look-ups, evaluation, writes, saves, exports). Its ranks are killed at random
moments and started again by the same command. Every snapshot of every rank is compared with the model: keys, rows,
slots, dense weights, step. The control comes first: faults that are planted must be found.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("reference", "multirank")]

from tqdm import tqdm  # noqa: E402

from tests.oracle import controls, draw, one_draw  # noqa: E402


def main() -> int:
    """See above; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__.split("\n\n")[0])
    parser.add_argument("--draws", type=int, help="how many (default: 20, or as many as fit into --minutes)")
    parser.add_argument("--minutes", type=float, help="begin no draw after so many")
    parser.add_argument("--seed", type=int, help="of the first draw; the next ones count up (default: random)")
    parser.add_argument("--control", action="store_true", help="only the planted faults")
    parser.add_argument("--no-control", action="store_true", help="no planted faults: to repeat a draw")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes what was started and made
    began = time.monotonic()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    if not arguments.no_control:
        missed = controls.missed(seed)
        for text in missed:
            print(text)
        if missed or arguments.control:
            print("control: " + ("failed" if missed else "all planted faults were found"))
            return int(bool(missed))
    count = arguments.draws or (20 if arguments.minutes is None else 10**6)
    results = []
    with tqdm(total=arguments.draws or None, unit="draw", disable=None) as bar:
        for number in range(count):
            if arguments.minutes is not None and time.monotonic() - began > arguments.minutes * 60:
                break
            bar.set_description(f"seed {seed + number}")
            result = one_draw.make(draw.plan(seed + number))
            results.append(result)
            bar.update()
            if result.problems:
                tqdm.write(told(result))
    return summary(results, seed)


def told(result: one_draw.Result) -> str:
    """A failed draw, in words."""
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
