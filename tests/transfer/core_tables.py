"""Private folders for tables."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a folder in shared memory, with mode 0700, that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="tf_sparse_ps-rows-", dir="/dev/shm"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
