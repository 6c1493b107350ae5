"""Starts a rank's program so that it ends when its launcher ends. This file is run by its path, without this package.

    python -I -S rank_start.py LAUNCHER_PID PROGRAM [ARGUMENTS ...]

It is not a function that runs between fork and exec, because the launcher has threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # the launcher ended before the call of prctl
        sys.exit(128 + signal.SIGTERM)
    try:
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
