"""Whether ranks on this machine can communicate by Horovod: looked at before any is started.

Horovod itself ends a rank with SIGSEGV where the machine's own name has no address (0.28.1 with Gloo), and a Horovod
that was built for another TensorFlow fails in each rank when it is imported.
"""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys

from tf_sparse_ps.errors import LaunchError
from tf_sparse_ps.launch.options import Options
from tf_sparse_ps.launch.output import say

_LONGEST_S = 60.0
_NO_NEED = "--collectives tensorflow, which needs no Horovod"
# Loads Horovod's library for TensorFlow, with all of its symbols, and what the launcher imports of it: a second of
# time. To import TensorFlow would take five.
_LOAD = """
import ctypes, glob, importlib.util, os
def folder(package):
    found = importlib.util.find_spec(package)
    return found and found.submodule_search_locations[0]
import horovod.runner.http.http_server
tensorflow = folder("tensorflow")
libraries = glob.glob(os.path.join(folder("horovod"), "tensorflow", "mpi_lib*.so"))
if not libraries:
    raise ImportError("it was built without TensorFlow")
for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2") if tensorflow else ():
    if os.path.exists(os.path.join(tensorflow, name)):
        ctypes.CDLL(os.path.join(tensorflow, name), ctypes.RTLD_GLOBAL)
for library in libraries if tensorflow else ():
    ctypes.CDLL(library, os.RTLD_NOW)
"""


def settle(options: Options) -> Options:
    """Returns the options with what ranks communicate by: "horovod" only where that can work.

    Raises:
      LaunchError: Horovod was asked for by name, and cannot work, with the remedy.
    """
    if options.collectives != "horovod" or not (wrong := _problem()):
        return options
    if options.by_name:
        raise LaunchError(f"--collectives horovod: {wrong}, or use {_NO_NEED}", status=2)
    others = " Give --collectives tensorflow on all machines." if options.nnodes > 1 else ""
    say(f"{wrong}. Ranks communicate by TensorFlow's collectives instead.{others}")
    return dataclasses.replace(options, collectives="tensorflow")


def _problem() -> str:
    """Why Horovod cannot work here, with the remedy; "": nothing is known against it."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return (
            f"the name of this machine, {name!r}, has no address, and Horovod needs one. Give it one in /etc/hosts "
            f"(on a single machine: `127.0.0.1 {name}`)"
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOAD],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):  # a machine that is too busy to say
        return ""
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"status {done.returncode}"
    return (
        f"Horovod is installed for {sys.executable}, and cannot be imported ({reason}). Build it again for the "
        "TensorFlow that is installed (tools/horovod/build.sh)"
    )
