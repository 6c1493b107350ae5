"""python -m tests.fuzz_ranks [--draws N] [--minutes M] [--seed S]: random programs in which one rank is different.

Of two to four ranks one raises, is interrupted, imports a module, writes, saves, evaluates or validates alone, leaves
out a callback, builds another layer or has another option, at a random moment. Afterwards all ranks agree bit for bit,
or all have ended in time with a message that names the difference. The controls come first: faults that are planted
must be found.
"""

from __future__ import annotations

import argparse
import collections
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

from tests.fuzz_ranks import controls, one_draw, plan  # noqa: E402


def main() -> int:
    """See above; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_ranks", description=__doc__.split("\n\n")[0])
    parser.add_argument("--draws", type=int, help="how many (default: as many as fit into --minutes, or 20)")
    parser.add_argument("--minutes", type=float, help="begin no draw after so many")
    parser.add_argument("--seed", type=int, help="of the first draw; the next ones count up (default: random)")
    parser.add_argument("--control", action="store_true", help="only the planted faults")
    parser.add_argument("--no-control", action="store_true", help="no planted faults: to repeat a draw")
    parser.add_argument("--show", action="store_true", help="the output of every draw")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends and removes what was started
    began = time.monotonic()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    if not arguments.no_control:
        missed = _missed()
        print("\n".join(missed) or "control: all planted faults were found", flush=True)
        if missed or arguments.control:
            return int(bool(missed))
    count = arguments.draws or (20 if arguments.minutes is None else 10**6)
    results = []
    with tqdm(total=arguments.draws or None, unit="draw", disable=None) as bar:
        for number in range(count):
            if arguments.minutes is not None and time.monotonic() - began > arguments.minutes * 60:
                break
            bar.set_description(f"seed {seed + number}")
            result = one_draw.make(plan.draw(seed + number))
            results.append(result)
            bar.update()
            if result.problem or arguments.show:
                tqdm.write(_told(result))
    return _summary(results, seed)


def _missed() -> list[str]:
    """Makes the controls; returns those that went wrong."""
    found = []
    for fault, (one, expected) in controls.CONTROLS.items():
        result = one_draw.make(one, run_s=45.0 if expected == "hang" else one_draw.RUN_S)
        if not result.problem.startswith(expected):
            found.append(
                f"the planted fault {fault!r} was not found: {result.problem or result.ended}\n{result.output}"
            )
    clean = one_draw.make(controls.CLEAN)
    if clean.problem or clean.ended != "agreed":
        found.append(f"a job without a fault has a problem: {clean.problem or clean.ended}\n{clean.output[-4000:]}")
    return found


def _told(result: one_draw.Result) -> str:
    """A draw, in words."""
    seed = result.plan.seed
    return (
        f"{'FAILED' if result.problem else 'ok'} seed {seed} (python -m tests.fuzz_ranks --seed {seed} --draws 1 "
        f"--no-control --show): {result.problem or result.ended}\n  {result.plan}\n{result.output[-6000:]}"
    )


def _summary(results: list[one_draw.Result], seed: int) -> int:
    """Prints what came of the draws; returns the exit status."""
    failed = [result for result in results if result.problem]
    late = [result.late_s for result in results if result.ended == "error"]
    print(f"draws      {len(results)}, seeds {seed} to {seed + len(results) - 1}")
    print(f"agreed     {sum(result.ended == 'agreed' and not result.problem for result in results)}")
    print(f"errors     {len(late)}, at most {max(late, default=0.0):.0f} s after the event")
    print(f"events     {dict(collections.Counter(result.plan.event for result in results))}")
    print(f"failures   {len(failed)}")
    for result in failed:
        print(f"failed: seed {result.plan.seed}, {result.plan.event} at {result.plan.moment}: {result.problem}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
