"""Limits and measures the memory of processes that a benchmark starts, by a control group. It needs root."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_INTERVAL_S = 0.02


class Group:
    """A control group for memory, of version 1 or 2.

    Args:
        folder: The folder of the group.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_first = (folder / "memory.limit_in_bytes").exists()
        self._peak = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def limit(self, number: int) -> None:
        """Limits the group to `number` bytes. The kernel kills processes that need more."""
        name = "memory.limit_in_bytes" if self._is_first else "memory.max"
        (self._folder / name).write_text(str(number))

    def command(self, command: list[str]) -> list[str]:
        """Returns the command that runs `command` in the group."""
        return ["sh", "-c", f'echo $$ > "{self._folder}/cgroup.procs" && exec "$@"', "sh", *command]

    @property
    def peak(self) -> int:
        """The most bytes of private and shared memory, and of the kernel's memory for them.

        This is everything that counts for the limit, except files that the kernel keeps while memory is free.
        """
        return self._peak

    def _watch(self) -> None:
        names = ("total_rss", "total_shmem") if self._is_first else ("anon", "shmem", "kernel")
        while not self._ending.wait(_INTERVAL_S):
            lines = (line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
            values = {name: int(value) for name, value in lines}
            kernel_bytes = int((self._folder / "memory.kmem.usage_in_bytes").read_text()) if self._is_first else 0
            self._peak = max(self._peak, sum(values[name] for name in names) + kernel_bytes)

    def close(self) -> None:
        """Removes the group, after its processes have ended."""
        self._ending.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # another process has joined the group
            self._folder.rmdir()


@contextlib.contextmanager
def group(name: str) -> Iterator[Group]:
    """Makes a group, and removes it afterwards.

    Raises:
        OSError: This process may not make a group, or the kernel has no control groups for memory.
    """
    parent = _ROOT / "memory" if (_ROOT / "memory").is_dir() else _ROOT
    folder = parent / f"tsps-{name}-{os.getpid()}"
    folder.mkdir()
    if not (folder / "memory.stat").exists():
        folder.rmdir()
        raise OSError(f"{parent} has no control groups for memory")
    made_group = Group(folder)
    try:
        yield made_group
    finally:
        made_group.close()
