"""Runs a program of this folder as a child, and ends when the test allows it. Launchers end all ranks after the first.

What the other ranks report therefore does not depend on which rank is faster. The child is forked, because this process
has imported TensorFlow already, unless horovodrun started it.

Arguments: the program and its arguments, the last of which is the folder for results. The file "end" in that folder
allows this process to end.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

LONGEST_S = 200.0


def main() -> None:
    """Ends with the program's status."""
    program = Path(__file__).with_name(sys.argv[1])
    pid = os.fork()
    if pid == 0:
        sys.argv = [str(program), *sys.argv[2:]]
        runpy.run_path(str(program), run_name="__main__")
        sys.exit(0)
    _, waited = os.waitpid(pid, 0)
    status = os.waitstatus_to_exitcode(waited)
    deadline = time.monotonic() + LONGEST_S
    while not (Path(sys.argv[-1]) / "end").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
