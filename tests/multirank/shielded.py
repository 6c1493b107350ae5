"""Runs a program of this folder as a child, and ends when the test allows it: horovodrun ends all ranks once one ends.

So what the other ranks have to say does not depend on who is faster.

Arguments: the program and its arguments, of which the last is the folder for results; the file "end" there allows it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

LONGEST_S = 200.0


def main() -> None:
    """Ends with the program's status."""
    program = Path(__file__).with_name(sys.argv[1])
    status = subprocess.call([sys.executable, str(program), *sys.argv[2:]])
    deadline = time.monotonic() + LONGEST_S
    while not (Path(sys.argv[-1]) / "end").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
