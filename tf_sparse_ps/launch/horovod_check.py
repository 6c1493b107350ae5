"""Checks whether ranks on this machine can use Horovod, before any rank is started.

Horovod ends a rank with SIGSEGV if the machine's own name has no address (0.28.1 with Gloo). A Horovod that was built
for another TensorFlow fails in each rank when it is imported.
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
_WITHOUT_HOROVOD = "--collectives tensorflow, which does not need Horovod"
# Loads Horovod's library for TensorFlow, with all its symbols, and the module of Horovod that the launcher imports. It
# takes a second. Importing TensorFlow would take five.
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
    """Returns the options, with "tensorflow" as collectives if Horovod cannot work here.

    Raises:
      LaunchError: The command line asks for Horovod, but it cannot work here. The message contains the remedy.
    """
    if options.collectives != "horovod" or not (problem := _problem()):
        return options
    if options.by_name:
        raise LaunchError(f"--collectives horovod: {problem}, or use {_WITHOUT_HOROVOD}", status=2)
    other_machines = " Give --collectives tensorflow on all machines." if options.nnodes > 1 else ""
    say(f"{problem}. The ranks use TensorFlow's collectives instead.{other_machines}")
    return dataclasses.replace(options, collectives="tensorflow")


def _problem() -> str:
    """Returns why Horovod cannot work here, with the remedy; "" if no problem is known."""
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
    except (OSError, subprocess.TimeoutExpired):  # the machine is too busy for the check
        return ""
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"status {done.returncode}"
    return (
        f"Horovod is installed for {sys.executable}, but it cannot be imported ({reason}). Build it again for the "
        "TensorFlow that is installed (tools/horovod/build.sh)"
    )
