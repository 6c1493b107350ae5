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
    parser.add_argument("--seed", type=int, default=1, help="of the instants (default: 1)")
    parser.add_argument("--control", choices=CONTROLS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    found = harness.run(arguments.kills, arguments.seed)
    if arguments.control:
        print(json.dumps({"kills": found.kills, "violations": found.violations}))
        return 0
    print(
        f"{found.kills} kills, {found.mid_mutation} in the middle of a mutation; {found.steps} steps written, "
        f"{found.reads} reads and {found.scans} scans beside; {len(found.torn)} torn states, "
        f"{len(found.mixed)} mixed reads"
    )
    print(
        f"{found.rows_on_disk} rows on disk at most, {found.files_removed} files of them removed by compaction at most"
    )
    for problem in (*found.torn, *found.mixed):
        print(f"  {problem}")
    tiers = found.rows_on_disk > 0 and found.files_removed > 0
    if not tiers and arguments.kills >= harness.KILLS_PER_ROUND:
        print("  no round had rows on disk, and files of them that compaction removed")
    failed = int(found.violations > 0 or (not tiers and arguments.kills >= harness.KILLS_PER_ROUND))
    for mechanism in CONTROLS:
        options = ["--control", mechanism, "--kills", str(arguments.kills), "--seed", str(arguments.seed)]
        failed += not controls.is_noticed("tests.crash", mechanism, options)
    print(f"{1 + len(CONTROLS) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
