"""python -m tests.fuzz_ranks [--draws N] [--minutes M] [--seed S]: random programs in which one rank acts differently.

One of two to four ranks raises, is interrupted, imports a module, writes, sets another learning rate, saves, evaluates
or validates alone, leaves out a callback, builds another layer or has another option, at a random moment. Afterwards
all ranks agree bit for bit, or all have ended in time with a message that names the difference. The controls come
first: the fuzzer must find planted faults.
"""

from __future__ import annotations

import collections
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("reference", "multirank")]

from tests import draws  # noqa: E402
from tests.fuzz_ranks import controls, one_draw, plan  # noqa: E402


def main() -> int:
    """Makes the controls and the draws; returns the exit status."""
    show = ("--show", "the output of every draw")
    arguments = draws.parse("python -m tests.fuzz_ranks", __doc__.split("\n\n")[0], show)
    seed = arguments.seed
    print(f"seed {seed}", flush=True)
    if not arguments.no_control:
        missed = _missed()
        print("\n".join(missed) or "control: all planted faults were found", flush=True)
        if missed or arguments.control:
            return int(bool(missed))
    results = draws.make(
        arguments,
        lambda seed_of_draw: one_draw.make(plan.draw(seed_of_draw)),
        lambda result: _result_text(result) if result.problem or arguments.show else "",
    )
    return _summary(results, seed)


def _missed() -> list[str]:
    """Makes the controls; returns those that failed."""
    failures = []
    for name, (plan_of_control, expected) in controls.CONTROLS.items():
        result = one_draw.make(plan_of_control, run_s=45.0 if expected == "hang" else one_draw.RUN_S)
        if not result.problem.startswith(expected):
            failures.append(
                f"the planted fault {name!r} was not found: {result.problem or result.ended}\n{result.output}"
            )
    clean = one_draw.make(controls.CLEAN)
    if clean.problem or clean.ended != "agreed":
        failures.append(f"a job without a fault has a problem: {clean.problem or clean.ended}\n{clean.output[-4000:]}")
    return failures


def _result_text(result: one_draw.Result) -> str:
    """Describes the result of a draw."""
    seed = result.plan.seed
    return (
        f"{'FAILED' if result.problem else 'ok'} seed {seed} (python -m tests.fuzz_ranks --seed {seed} --draws 1 "
        f"--no-control --show): {result.problem or result.ended}\n  {result.plan}\n{result.output[-6000:]}"
    )


def _summary(results: list[one_draw.Result], seed: int) -> int:
    """Prints a summary of the draws; returns the exit status."""
    failed = [result for result in results if result.problem]
    late = [result.late_s for result in results if result.ended == "error"]
    print(f"draws      {len(results)}, seeds {seed} to {seed + len(results) - 1}")
    print(f"agreed     {sum(result.ended == 'agreed' and not result.problem for result in results)}")
    print(f"refused    {sum(result.ended == 'refused' and not result.problem for result in results)}")
    print(f"errors     {len(late)}, at most {max(late, default=0.0):.0f} s after the last step")
    print(f"events     {dict(collections.Counter(result.plan.event for result in results))}")
    print(f"failures   {len(failed)}")
    for result in failed:
        print(f"failed: seed {result.plan.seed}, {result.plan.event} at {result.plan.moment}: {result.problem}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
