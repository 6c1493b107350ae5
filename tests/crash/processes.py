"""The processes that the harness starts.

The writer makes steps until it is killed. The reader and the scanner check the tables. The looker looks up rows on
disk, which all processes then find in shared memory, until it is killed.

python -m tests.crash.processes writer|reader|scanner|looker GROUP [UNTOUCHED]
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

import numpy as np

from tests.crash.content import FAR_NEW, Expectation, Group
from tf_sparse_ps.errors import UnavailableError


def write(path: Path) -> None:
    """Makes steps without end, and prints the number of each."""
    group = Group.open(path, "r+")
    group.erase(group.step)
    os.write(1, b"%d\n" % group.step)
    while True:
        os.write(1, b"%d\n" % group.advance())


def read(path: Path, untouched: Path) -> None:
    """Reads and checks until its standard input has data, and then reports as JSON."""
    group = Group.open(path, "r")
    expectation = Expectation(Group.open(untouched, "r"))
    reads, last, backwards = 0, 0, 0
    wrong: list[str] = []
    while not select.select([0], [], [], 0)[0]:
        step, faults = expectation.check_read(group)
        reads += 1
        backwards += step < last
        last = step
        wrong += faults
        if len(wrong) > 1000:
            break
    print(json.dumps({"reads": reads, "backwards": backwards, "violations": len(wrong), "first": wrong[:5]}))


def scan(path: Path, untouched: Path) -> None:
    """Does the same by scans. Most scans outlive a writer."""
    group = Group.open(path, "r")
    expectation = Expectation(Group.open(untouched, "r"))
    scans, wrong = 0, list[str]()
    while not select.select([0], [], [], 0)[0] and len(wrong) < 1000:
        try:
            wrong += expectation.check_scans(group)
            scans += 1
        except UnavailableError as error:  # its writer died, and the next one changed rows
            if "changed while it was read" not in str(error):
                raise
    print(json.dumps({"reads": scans, "backwards": 0, "violations": len(wrong), "first": wrong[:5]}))


def look(path: Path) -> None:
    """Looks up rows of the partly stored table without end."""
    group = Group.open(path, "r")
    table, draw = group.tables["far"], np.random.default_rng()
    os.write(1, b"begun\n")
    while True:
        last = (group.step + 2) * FAR_NEW
        try:
            table.lookup(draw.integers(0, last, 200))
        except UnavailableError:  # a writer was killed in the middle of a mutation, and the next one has not started
            continue


if __name__ == "__main__":
    if sys.argv[1] in ("writer", "looker"):
        {"writer": write, "looker": look}[sys.argv[1]](Path(sys.argv[2]))
    else:
        {"reader": read, "scanner": scan}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
