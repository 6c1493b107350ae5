"""The processes that the harness starts: a writer that steps until it is killed, a reader that checks every read.

python -m tests.crash.processes writer|reader GROUP [UNTOUCHED]
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

from tests.crash.content import Expectation, Group


def write(path: Path) -> None:
    """Steps for ever, and says after each step which one it was."""
    group = Group.open(path, "r+")
    os.write(1, b"%d\n" % group.step)
    while True:
        os.write(1, b"%d\n" % group.advance())


def read(path: Path, untouched: Path) -> None:
    """Reads and checks until something comes on its standard input; then reports as JSON."""
    group = Group.open(path, "r")
    expectation = Expectation(Group.open(untouched, "r"))
    reads, last, backwards = 0, 0, 0
    wrong: list[str] = []
    while not select.select([0], [], [], 0)[0]:
        step, found = expectation.check_read(group)
        reads += 1
        backwards += step < last
        last = step
        wrong += found
        if len(wrong) > 1000:
            break
    print(json.dumps({"reads": reads, "backwards": backwards, "violations": len(wrong), "first": wrong[:5]}))


if __name__ == "__main__":
    if sys.argv[1] == "writer":
        write(Path(sys.argv[2]))
    else:
        read(Path(sys.argv[2]), Path(sys.argv[3]))
