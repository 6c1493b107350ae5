"""Horovod before it runs: is it initialised, its environment variables, and `hvd.init()`. Imports no TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import sys

from tf_sparse_ps.collectives import launchers
from tf_sparse_ps.errors import UnsupportedError

# hvd.init() reads it. Without it, there are no collectives among a subset of the ranks.
PROCESS_SETS = "HOROVOD_DYNAMIC_PROCESS_SETS"
# The size of the buffer in which Horovod sends small tensors together. Each process keeps one. Its default is 128 MiB.
FUSION_THRESHOLD, FUSION_BYTES = "HOROVOD_FUSION_THRESHOLD", 16 << 20
_ELASTIC = "HOROVOD_ELASTIC"  # horovodrun sets it

import_errors: list[str] = []
"""Why Horovod, which is installed, could not be imported."""


def is_initialised() -> bool:
    """Whether `hvd.init()` has been called in this process."""
    for module in ("horovod.tensorflow", "horovod.tensorflow.mpi_ops"):
        loaded = sys.modules.get(module)
        if loaded is not None and hasattr(loaded, "is_initialized") and loaded.is_initialized():
            return True
    return False


def set_environment() -> None:
    """Sets the environment variables that `hvd.init()` reads. Importing tf_sparse_ps calls this.

    Jobs of one node get no process sets, because they need none: with process sets, Horovod ends a process by
    std::terminate as soon as another one dies, before it can report why.
    """
    launch = launchers.find()
    if launch is None or is_initialised():
        return
    os.environ.setdefault(FUSION_THRESHOLD, str(FUSION_BYTES))
    if not launch.on_one_machine:
        os.environ.setdefault(PROCESS_SETS, "1")


def refuse_elastic() -> None:
    """Raises UnsupportedError in a process of an elastic Horovod job."""
    if os.environ.get(_ELASTIC, "0") not in ("", "0"):
        raise UnsupportedError(
            "horovodrun's elastic mode (--min-np, --host-discovery-script) is not supported: it changes the ranks, "
            "machines and leaders of a running process, but tables and collectives are bound to those with which they "
            "were made. Start a fixed number of ranks. If one fails, start the same command again: "
            "tsps.callbacks.Checkpoint and tsps.Checkpointer resume after the newest checkpoint, also with another "
            f"number of ranks (docs/checkpoints.md). Received: {_ELASTIC}={os.environ[_ELASTIC]}"
        )


def initialise() -> None:
    """Calls `hvd.init()`.

    Raises:
      ImportError: Horovod is not installed, or cannot be imported; with the remedy.
    """
    try:
        import horovod.tensorflow as hvd  # optional
    except Exception as error:  # also if one of its libraries cannot be loaded
        if importlib.util.find_spec("horovod") is None:
            raise
        import_errors.append(str(error))
        raise ImportError(
            f"Horovod is installed, but it cannot be imported: {error}. Build it again for the TensorFlow that is "
            "installed (tools/horovod/build.sh), or start the ranks with `tf-sparse-ps run --collectives tensorflow`, "
            "which does not need Horovod"
        ) from error
    hvd.init()
