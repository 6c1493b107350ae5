"""Becomes a rank's program, which then ends when its launcher is gone. Run by its path: it imports nothing of ours.

    python -I -S rank_start.py LAUNCHER_PID PROGRAM [ARGUMENTS ...]

Not a function between fork and exec in the launcher, which has threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # it was gone before
        sys.exit(128 + signal.SIGTERM)
    try:
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
