"""`Increments`: whether the next checkpoint of this run may be an increment, and what it builds on.

An increment needs all checkpoints that it builds on, and a restore reads all of them. So a base has at most
`MOST_INCREMENTS` increments, and their bytes are at most `MOST_BYTES` of the base's, as seen when a save begins. Then a
checkpoint with all rows takes over, and is the next base.
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.manifest import Link, Manifest
from tf_sparse_ps.errors import TableError

MOST_INCREMENTS = 16
MOST_BYTES = 0.5


class Increments:
    """The last checkpoint of a run, as its next increment needs it, on every rank. The writer of manifests decides.

    Attributes:
      marks: On leaders, the mark of the newest checkpoint for each table, by the table's uuid.
    """

    def __init__(self, is_wanted: bool) -> None:
        """Knows of no checkpoint yet.

        Args:
          is_wanted: Whether checkpoints may be increments at all.
        """
        self._is_wanted = is_wanted
        self._chain: tuple[Link, ...] = ()  # the base, and what has been added
        self._base_bytes = self._added_bytes = 0
        self.marks: Mapping[str, str] = {}

    def next_builds_on(self, directory: CheckpointDirectory) -> tuple[Link, ...]:
        """Returns the chain that the next checkpoint is added to; an empty one if it holds all rows.

        Called on who writes manifests. A chain whose last checkpoint is missing, or another one by now, is not used.

        Args:
          directory: The directory.
        """
        if not self._is_wanted or not self._chain or len(self._chain) > MOST_INCREMENTS:
            return ()
        if self._added_bytes > MOST_BYTES * self._base_bytes:
            return ()
        *before, last = self._chain
        try:
            content = directory.still_has(last.name)
        except (TableError, OSError):
            return ()
        return self._chain if (content.id, content.chain) == (last.id, tuple(before)) else ()

    def forget(self) -> None:
        """Forgets what was saved: the next checkpoint holds all rows."""
        self._chain, self.marks = (), {}

    def saved(self, content: Manifest | None, marks: Mapping[str, str]) -> None:
        """Notes a checkpoint of this run that is complete.

        Args:
          content: Its manifest, on who wrote it. None on other ranks.
          marks: On leaders, the marks that were made when it was captured.
        """
        self.marks = dict(marks)
        if content is None:
            return
        if content.chain:
            self._added_bytes += content.table_bytes
        else:
            self._base_bytes, self._added_bytes = content.table_bytes, 0
        self._chain = (*content.chain, Link(content.name, content.id))
