"""`SaveInProgress`: the thread of a leader that writes a captured save."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_sparse_ps.checkpoints.directory import SaveFolder
from tf_sparse_ps.checkpoints.manifest import Manifest
from tf_sparse_ps.checkpoints.writers import Writer

if TYPE_CHECKING:
    from tf_sparse_ps.checkpoints.captured import Captured

_TOLD_S, _TELL_EVERY_S = 5.0, 60.0  # after how long a wait is reported, and how often
_NICENESS = 8  # of the thread: it gets a seventh of a core that training uses


class SaveInProgress:
    """Runs a writer in a thread."""

    def __init__(
        self,
        save: SaveFolder,
        within: contextlib.ExitStack,
        writer: Writer,
        captured: Sequence[Captured],
        *,
        quiet: bool = False,
    ) -> None:
        """Writes nothing yet.

        Args:
          save: The folder that is written to.
          within: The contexts around the save. They are closed when it has ended.
          writer: Writes the save.
          captured: The tables that it writes. They are closed when it has ended.
          quiet: Another rank reports what is waited for.
        """
        self._save, self._within, self._writer, self._captured = save, within, writer, captured
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._tell_at = float("inf") if quiet else 0.0

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the checkpoint, when that is complete; only on the rank that writes it."""
        return self._writer.manifest

    def start(self, *, in_background: bool) -> None:
        """Starts the thread. The process does not end before the thread has.

        Args:
          in_background: Training continues meanwhile, and gets more of a core than the thread. Otherwise the caller
            waits.
        """
        thread = threading.Thread(target=self._run_niced if in_background else self._run, name="tsps-checkpoint")
        atexit.register(self._report_at_exit)
        try:
            thread.start()
        except RuntimeError as error:  # there can be no more threads
            self._close(error)
            return
        self._thread = thread

    @property
    def is_running(self) -> bool:
        """Whether the thread is writing."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, longest_s: float | None = None) -> bool:
        """Waits until the thread has ended, or for so many seconds. Reports a long wait.

        Returns:
          Whether the thread has ended.
        """
        began = time.monotonic()
        while self._thread is not None and self._thread.is_alive():
            left_s = _TOLD_S if longest_s is None else began + longest_s - time.monotonic()
            if left_s <= 0:
                return False
            self._thread.join(min(left_s, _TOLD_S))
            self._tell()
        return True

    def stop(self) -> None:
        """Ends the writing: another node has failed."""
        self._writer.stop()

    def _tell(self) -> None:
        """Prints what is waited for, from time to time."""
        now = time.monotonic()
        if not self.is_running or now < self._tell_at:
            return
        self._tell_at = now + _TELL_EVERY_S
        print(
            f"tf_sparse_ps: waiting for checkpoint {self._save.shown} {self._save.progress}",
            file=sys.stderr,
            flush=True,
        )

    def result(self) -> Exception | None:
        """Waits, and returns the error with which the save has failed, or None."""
        self.wait()
        atexit.unregister(self._report_at_exit)
        return self._error

    def _run_niced(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        self._run()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._writer.write()
        except BaseException as caught:
            error = caught
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        for table in self._captured:
            table.close()
        try:
            self._within.__exit__(type(error) if error else None, error, None)
        except BaseException as caught:
            error = error or caught
        self._error = error if error is None or isinstance(error, Exception) else RuntimeError(repr(error))

    def _report_at_exit(self) -> None:
        if self._error is not None:
            print(
                f"tf_sparse_ps: checkpoint {self._save.shown} was not saved: {type(self._error).__name__}: "
                f"{self._error}",
                file=sys.stderr,
                flush=True,
            )
