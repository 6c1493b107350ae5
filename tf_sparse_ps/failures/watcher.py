"""`Watcher`: the base class of the threads that watch other ranks."""

from __future__ import annotations

import abc
import threading

from tf_sparse_ps.collectives.key_values import FOUND, KeyValueStore
from tf_sparse_ps.failures import ending


class Watcher(abc.ABC):
    """A thread that detects and reports a rank that this process would wait for forever.

    Attributes:
      found: The error to raise for this rank; None: the thread has found none.
    """

    def __init__(self, name: str, rank: int, key_values: KeyValueStore) -> None:
        """Makes the thread. A subclass starts it with `_thread.start()`.

        Args:
          name: The name of the thread.
          rank: The rank of this process.
          key_values: The job's key-value store.
        """
        self.found: RuntimeError | None = None
        self._rank, self._key_values = rank, key_values
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join(1.0)

    @abc.abstractmethod
    def _run(self) -> None:
        """Watches until `_stop` is set, or a failure was reported."""

    def _tell(self, kind: type[RuntimeError], text: str) -> None:
        """Reports a failure to all ranks and to the user. Ends the process if its main thread cannot raise the error.

        Args:
          kind: The type of the error.
          text: The message, without this rank.
        """
        self.found = kind(f"rank {self._rank}: {text}")
        self._key_values.write_first(FOUND, text)
        ending.tell(self.found, self._rank, self._stop)
