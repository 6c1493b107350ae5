"""python -m tests.crash [--kills 300]: the full harness and its controls, which must find violations."""

from __future__ import annotations

import argparse
import json
import sys

from tests.crash import controls, harness

CONTROLS = ("undo", "moves", "seqlock", "scan_images")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="random SIGKILLs of the writer (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the random times (default: 1)")
    parser.add_argument("--control", choices=CONTROLS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    result = harness.run(arguments.kills, arguments.seed)
    if arguments.control:
        print(json.dumps({"kills": result.kills, "violations": result.violations}))
        return 0
    print(
        f"{result.kills} kills, {result.mid_mutation} in the middle of a mutation; {result.steps} steps written, "
        f"{result.reads} reads and {result.scans} scans meanwhile; {len(result.torn)} torn states, "
        f"{len(result.mixed)} mixed reads"
    )
    print(
        f"{result.rows_on_disk} rows on disk at most, "
        f"{result.files_removed} files of them removed by compaction at most"
    )
    for problem in (*result.torn, *result.mixed):
        print(f"  {problem}")
    tiers = result.rows_on_disk > 0 and result.files_removed > 0
    if not tiers and arguments.kills >= harness.KILLS_PER_ROUND:
        print("  no round had rows on disk and files that compaction removed")
    failed = int(result.violations > 0 or (not tiers and arguments.kills >= harness.KILLS_PER_ROUND))
    for mechanism in CONTROLS:
        options = ["--control", mechanism, "--kills", str(arguments.kills), "--seed", str(arguments.seed)]
        failed += not controls.is_noticed("tests.crash", mechanism, options)
    print(f"{1 + len(CONTROLS) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
