"""python -m tests.soak [--fits N]: one process that calls `fit` N times must not grow.

The fits have checkpoints, evaluations, predictions, exports, early ends and exceptions (`program.py`). TensorFlow and
Keras leak a little in each fit, about 1 KB for each dataset that is gone through. So a peer comes first, which does the
same with Keras's own layers and optimizer. From fit 20 on, the memory that is allocated grows by less than 2 KB per fit
more than the peer's, by least squares. Descriptors, threads, mapped files and the folder of the tables do not grow.
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
    """What a process of its own holds after each of its fits."""
    with (
        tempfile.TemporaryDirectory(prefix="tsps-soak-") as folder,
        tempfile.TemporaryDirectory(prefix="tsps-soak-", dir="/dev/shm") as tables,
    ):
        # Python's own allocator keeps memory in pools, and glibc some of what each thread has freed. There a leak of
        # small objects cannot be seen.
        environment = os.environ | {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        environment |= {"TFSPS_DIR": tables, "PYTHONPATH": str(ROOT)}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
        environment.pop("TFSPS_JOB", None)
        command = [sys.executable, "-m", "tests.soak.program", "--fits", str(fits), "--folder", folder, "--leak", leak]
        command += ["--peer"] * peer
        found = []
        with (
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process,
            tqdm(total=fits, unit="fit", desc="peer" if peer else f"leak: {leak}", disable=None) as bar,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    found.append(measure.Held(**json.loads(line)))
                    bar.update()
    if process.returncode or len(found) != fits:
        raise RuntimeError(f"the soaked process ended with status {process.returncode} after {len(found)} fits")
    return found


def growth(found: list[measure.Held]) -> dict[str, float]:
    """By how much each number grows per fit, from fit `FROM_FIT` on: memory by a line, counts between parts of the run.

    A process may start a thread or open a file for good when it first needs it. So the counts are those of the second
    and the last third of the run, and of either the least: what stays.
    """
    later = found[FROM_FIT:]
    grown = {name: measure.slope([getattr(one, name) for one in later]) for name in ("allocated", "resident")}
    third = len(later) // 3
    for name in measure.COUNTS:
        counts = [getattr(one, name) for one in later]
        grown[name] = (min(counts[-third:]) - min(counts[third:-third])) / third
    return grown


def too_much(grown: dict[str, float], of_peer: float) -> list[str]:
    """Which numbers grow, each as a text. `of_peer`: Bytes per fit that the peer's allocated memory grows by."""
    limits = {"allocated": LIMIT + max(0.0, of_peer)} | dict.fromkeys(measure.COUNTS, 0)
    return [f"{name} grows by {grown[name]:.1f} per fit" for name, limit in limits.items() if grown[name] > limit]


def main() -> int:
    """See the module; returns the exit status."""
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
    found = soaked(arguments.fits)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([vars(one) for one in found]))
    grown = growth(found)
    for name, value in grown.items():
        print(f"{name:14} {value:10.1f} per fit")
    problems = too_much(grown, of_peer)
    for text in problems:
        print(f"failed: {text}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
