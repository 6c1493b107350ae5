"""python -m tests.soak [--fits N]: one process that calls `fit` N times must not grow.

The fits have checkpoints, evaluations, predictions, exports, early ends and exceptions (`program.py`). TensorFlow and
Keras leak a little in each fit, about 1 KB for each dataset that is read to its end. A peer therefore does the same
with Keras's own layers and optimizer first. From fit 20 on, the allocated memory may grow by less than 2 KB per fit
more than the peer's, by least squares. Descriptors, threads, mapped files and the folder of the tables must not grow.
Before that comes the control: shorter runs with a planted leak of each kind, all of which must be found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from tests.soak import measure

ROOT = Path(__file__).resolve().parents[2]
FROM_FIT = 20
LIMIT = 2000  # bytes per fit
CONTROL_FITS = 80
LEAKS = ("memory", "descriptors", "threads", "shared")


def soaked(fits: int, leak: str = "none", *, peer: bool = False) -> list[measure.Held]:
    """Returns what a separate process holds after each of its fits."""
    with (
        tempfile.TemporaryDirectory(prefix="tsps-soak-") as folder,
        tempfile.TemporaryDirectory(prefix="tsps-soak-", dir="/dev/shm") as tables,
    ):
        # Python's own allocator keeps memory in pools, and glibc keeps some of what each thread has freed. Both would
        # hide a leak of small objects.
        environment = os.environ | {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        environment |= {"TFSPS_DIR": tables, "PYTHONPATH": str(ROOT)}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
        environment.pop("TFSPS_JOB", None)
        command = [sys.executable, "-m", "tests.soak.program", "--fits", str(fits), "--folder", folder, "--leak", leak]
        command += ["--peer"] * peer
        records = []
        with (
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process,
            tqdm(total=fits, unit="fit", desc="peer" if peer else f"leak: {leak}", disable=None) as bar,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    records.append(measure.Held(**json.loads(line)))
                    bar.update()
    if process.returncode or len(records) != fits:
        raise RuntimeError(f"the soaked process ended with status {process.returncode} after {len(records)} fits")
    return records


def growth(records: list[measure.Held]) -> dict[str, float]:
    """Returns the growth of each number per fit, from fit `FROM_FIT` on.

    Memory grows along a line. Counts are compared between the second and the last third of the run, by the least count
    of each, because a process may start a thread or open a file once, when it first needs it.
    """
    later = records[FROM_FIT:]
    grown = {name: measure.slope([getattr(record, name) for record in later]) for name in ("allocated", "resident")}
    third = len(later) // 3
    for name in measure.COUNTS:
        counts = [getattr(record, name) for record in later]
        grown[name] = (min(counts[-third:]) - min(counts[third:-third])) / third
    return grown


def too_much(grown: dict[str, float], of_peer: float) -> list[str]:
    """Describes the numbers that grow. `of_peer`: the growth of the peer's allocated memory, in bytes per fit."""
    limits = {"allocated": LIMIT + max(0.0, of_peer)} | dict.fromkeys(measure.COUNTS, 0)
    return [f"{name} grows by {grown[name]:.1f} per fit" for name, limit in limits.items() if grown[name] > limit]


def main() -> int:
    """Makes the control and the run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--fits", type=int, default=300)
    parser.add_argument("--no-control", action="store_true", help="no planted leaks")
    parser.add_argument("--out", type=Path, help="a file for the numbers of each fit, as JSON")
    arguments = parser.parse_args()
    of_peer = growth(soaked(arguments.fits, peer=True))["allocated"]
    print(f"peer: {of_peer:.1f} bytes per fit")
    if not arguments.no_control:
        expected = {"memory": "allocated"}
        for leak in LEAKS:
            grown = growth(soaked(CONTROL_FITS, leak))
            if not any(text.startswith(expected.get(leak, leak)) for text in too_much(grown, of_peer)):
                print(f"control: the planted leak of {leak} was not found: {grown}")
                return 1
        print("control: all planted leaks were found")
    records = soaked(arguments.fits)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([vars(record) for record in records]))
    grown = growth(records)
    for name, value in grown.items():
        print(f"{name:14} {value:10.1f} per fit")
    problems = too_much(grown, of_peer)
    for text in problems:
        print(f"failed: {text}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
