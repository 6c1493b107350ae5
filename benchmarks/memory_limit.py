"""Memory of processes that a benchmark starts: a limit, and the most that they had. By a control group; as root."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_INTERVAL_S = 0.02


class Group:
    """A control group for memory, of either version.

    Args:
        folder: of the group.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_first = (folder / "memory.limit_in_bytes").exists()
        self._peak = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def limit(self, number: int) -> None:
        """So many bytes: the kernel kills what needs more."""
        name = "memory.limit_in_bytes" if self._is_first else "memory.max"
        (self._folder / name).write_text(str(number))

    def command(self, command: list[str]) -> list[str]:
        """The same, run in the group."""
        return ["sh", "-c", f'echo $$ > "{self._folder}/cgroup.procs" && exec "$@"', "sh", *command]

    @property
    def peak(self) -> int:
        """Bytes of private and shared memory, and of the kernel's for them: all that counts for the limit, without
        files that the kernel keeps while there is room.
        """
        return self._peak

    def _watch(self) -> None:
        names = ("total_rss", "total_shmem") if self._is_first else ("anon", "shmem", "kernel")
        while not self._ending.wait(_INTERVAL_S):
            lines = (line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
            found = {name: int(value) for name, value in lines}
            of_kernel = int((self._folder / "memory.kmem.usage_in_bytes").read_text()) if self._is_first else 0
            self._peak = max(self._peak, sum(found[name] for name in names) + of_kernel)

    def close(self) -> None:
        """When its processes have ended."""
        self._ending.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # another process has come into it
            self._folder.rmdir()


@contextlib.contextmanager
def group(name: str) -> Iterator[Group]:
    """A group, gone afterwards.

    Raises:
        OSError: this process may not make one, or the kernel has none.
    """
    parent = _ROOT / "memory" if (_ROOT / "memory").is_dir() else _ROOT
    folder = parent / f"tsps-{name}-{os.getpid()}"
    folder.mkdir()
    if not (folder / "memory.stat").exists():
        folder.rmdir()
        raise OSError(f"{parent} has no control groups for memory")
    found = Group(folder)
    try:
        yield found
    finally:
        found.close()
