"""python -m tests.mutate [--mutations 4000]: mutates files at random, and runs a reader and the next writer on them.

The files are those of closed groups, of groups whose writer was killed, of rows on disk, and sparse-parameter files.
Each mutation has one of these outcomes: refused (an error of the store), found (by `Table.verify`), harmless (the same
content as without it), wrong (another content without an error), unclean (an exception of another kind), crash, hang.
The last three are failures. Then comes the control: with the checks off, which needs the build with fault points
(`make mutate`), there must be crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from tests.mutate import harness

_CONTROL = 400  # mutations, some of which must crash


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("--mutations", type=int, default=4000, help="how many (default: 4000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation, to repeat a single one")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument("--tiered", action="store_true", help="only mutate files of rows on disk")
    parser.add_argument("--verbose", action="store_true", help="print every mutation and its outcome")
    parser.add_argument("--control", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    outcomes = harness.run(
        range(arguments.first, arguments.first + arguments.mutations),
        arguments.seed,
        arguments.jobs,
        only_tiered=arguments.tiered,
    )
    failures = [outcome for outcome in outcomes if outcome.verdict in harness.FAILURES]
    if arguments.control:
        print(json.dumps({"failures": len(failures)}))
        return 0
    if arguments.verbose:
        for outcome in outcomes:
            print(f"{outcome.verdict:>9}  {outcome.mutation}  {outcome.words}")
    print(harness.table_of(outcomes, lambda outcome: outcome.mutation.state))
    wrong = [outcome for outcome in outcomes if outcome.verdict == "wrong"]
    if wrong:
        print("\nsilently wrong, by file and field:")
        print(harness.table_of(wrong, harness.place_of))
    for outcome in failures:
        print(f"{outcome.verdict}: {outcome.mutation}: {outcome.words}")
    failed = int(bool(failures))
    if arguments.mutations > 1:
        failed += not _control_fails(arguments)
    print(f"{len(outcomes)} mutations, {len(failures)} failures")
    return int(failed > 0)


def _control_fails(arguments: argparse.Namespace) -> bool:
    options = [f"--{name}={getattr(arguments, name)}" for name in ("first", "seed", "jobs")]
    options.append(f"--mutations={min(arguments.mutations, _CONTROL)}")
    options += ["--tiered"] if arguments.tiered else []
    control = subprocess.run(
        [sys.executable, "-m", "tests.mutate", "--control", *options],
        env={**os.environ, "TFSPS_FAULT_OFF": "damage"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    failures = json.loads(control.stdout)["failures"]
    print(f"control with the checks off: {failures or 'NO'} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
