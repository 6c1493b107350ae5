"""What the threads that look after other ranks have in common."""

from __future__ import annotations

import abc
import threading

from tf_sparse_ps.collectives.key_values import FOUND, KeyValueStore
from tf_sparse_ps.failures import ending


class Watcher(abc.ABC):
    """A thread that finds out which rank this process will wait for in vain, and tells.

    Attributes:
      found: What to raise for it; None: nothing is known.
    """

    def __init__(self, name: str, rank: int, key_values: KeyValueStore) -> None:
        """The thread, called `name`, is started by `_thread.start()`, when what it needs is there."""
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
        """Until `_stop` is set, or something was told."""

    def _tell(self, kind: type[RuntimeError], text: str) -> None:
        """Tells all ranks, and the user; ends the process unless its main thread comes to raise it."""
        self.found = kind(f"rank {self._rank}: {text}")
        self._key_values.write_first(FOUND, text)
        ending.tell(self.found, self._rank, self._stop)
