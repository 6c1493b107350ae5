"""`SaveInProgress`: what is left of a save when training may go on, on rank 0 and perhaps in a thread.

Everything it writes was captured between two steps: dense values are copies, tables are scans of one committed state.
It talks to no other rank: how it has ended is told to them when all call `Checkpointer.save` or `wait` again.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tf_sparse_ps.checkpoints.directory import Save
from tf_sparse_ps.checkpoints.manifest import Link, Manifest

if TYPE_CHECKING:
    from tf_sparse_ps.checkpoints.captured import Captured


class Copies(Protocol):
    """Values that were copied between two steps."""

    def write(self, folder: Path, stamp: Mapping[str, Any]) -> Iterator[str]:
        """Writes files to a folder; yields the name of each when it is complete."""


_TOLD_S, _TELL_EVERY_S = 5.0, 60.0  # a wait that takes longer is told of, and how often
_NICENESS = 5  # of the thread: of a core that training uses it gets a quarter


class SaveInProgress:
    """Writes what a save has captured. Made and run within `CheckpointDirectory.saving`.

    Attributes:
      manifest: When it has been written.
    """

    def __init__(
        self,
        save: Save,
        within: contextlib.ExitStack,
        content: Manifest,
        builds_on: tuple[Link, ...],
        values: Sequence[Copies],
        captured: Sequence[Captured],
        prune: Callable[[Save], None],
    ) -> None:
        """Writes nothing yet.

        Args:
          save: The save.
          within: What surrounds it; ended with it.
          content: The manifest, but for `name`, `chain` and `files`, and with what tables have become.
          builds_on: What the tables' changes, if any, are changes of.
          values: Dense variables, and states of callbacks.
          captured: Tables that are not written yet.
          prune: Called when the checkpoint is there.
        """
        self._save, self._within, self._content = save, within, content
        self._builds_on, self._values, self._captured, self._prune = builds_on, values, captured, prune
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._tell_at = 0.0
        self.manifest: Manifest | None = None

    def start(self, *, beside: bool) -> None:
        """Writes it all, in another thread. The process does not end before that.

        Args:
          beside: Training goes on meanwhile, and gets more of a core. Else the caller waits, and can say so.
        """
        target = self._run_beside if beside else self._run
        self._thread = threading.Thread(target=target, name="tsps-checkpoint")
        atexit.register(self._say_at_exit)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it writes, in another thread."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, longest_s: float | None = None) -> bool:
        """Until it has ended, or for so many seconds; whether it has. Says so if that takes long."""
        began = time.monotonic()
        while self._thread is not None and self._thread.is_alive():
            left_s = _TOLD_S if longest_s is None else began + longest_s - time.monotonic()
            if left_s <= 0:
                return False
            self._thread.join(min(left_s, _TOLD_S))
            self._tell()
        return True

    def _tell(self) -> None:
        """Says what is waited for, from time to time."""
        now = time.monotonic()
        if not self.is_running or now < self._tell_at:
            return
        self._tell_at = now + _TELL_EVERY_S
        size = 0
        with contextlib.suppress(FileNotFoundError):  # it has become a checkpoint, or has failed
            size = sum(one.stat().st_size for one in self._save.folder.iterdir())
        print(
            f"tf_sparse_ps: waiting for checkpoint {self._save.path} to be on the disk: {size / 1e6:.0f} MB written",
            file=sys.stderr,
            flush=True,
        )

    def result(self) -> Exception | None:
        """Waits, and returns what it has failed with."""
        self.wait()
        atexit.unregister(self._say_at_exit)
        return self._error

    def _run_beside(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        self._run()

    def _run(self) -> None:
        try:
            with self._within:
                self._write()
        except Exception as error:
            self._error = error
        finally:
            for one in self._captured:
                one.close()

    def _write(self) -> None:
        stamp = self._content.stamp
        for one in self._values:
            for name in one.write(self._save.folder, stamp):
                self._save.add(name)
        for table in self._captured:
            for name in table.write(self._save.folder, stamp):
                self._save.add(name)
        changes = any(facts["content"] == "changes" for facts in self._content.tables)
        manifest = dataclasses.replace(
            self._content,
            name=self._save.name,
            chain=self._builds_on if changes else (),
            files=tuple(self._save.files),
        )
        self._save.finish(manifest)
        self.manifest = manifest
        self._prune(self._save)

    def _say_at_exit(self) -> None:
        if self._error is not None:
            print(
                f"tf_sparse_ps: checkpoint {self._save.path} was not saved: {type(self._error).__name__}: "
                f"{self._error}",
                file=sys.stderr,
                flush=True,
            )
