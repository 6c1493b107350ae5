"""`Increments`: whether the next checkpoint of this run may be an increment, and what it builds on.

An increment needs all that it builds on, and a restore reads all of it, so a base has few of them: at most
`MOST_INCREMENTS`, and with each save it is seen whether those that there are have more than `MOST_BYTES` of the base's
bytes. Then a checkpoint with all rows takes over, and is the next base.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tf_sparse_ps.checkpoints import directory
from tf_sparse_ps.checkpoints.manifest import Link, Manifest
from tf_sparse_ps.errors import TableError

MOST_INCREMENTS = 16
MOST_BYTES = 0.5


class Increments:
    """What a run has saved, as far as its next increment needs it. Every rank has one; who writes manifests decides.

    Attributes:
      marks: On leaders, for each table by its uuid, the mark of the newest checkpoint.
    """

    def __init__(self, wanted: bool) -> None:
        """`wanted`: Whether there are to be increments at all."""
        self._wanted = wanted
        self._chain: tuple[Link, ...] = ()  # the base, and what has been added
        self._base_bytes = self._added_bytes = 0
        self.marks: Mapping[str, str] = {}

    def next_builds_on(self, path: Path) -> tuple[Link, ...]:
        """On who writes manifests: the chain that the next checkpoint is to be added to; empty: it has all rows.

        Args:
          path: Of the directory. What is not there any more, or is another one, is not built on.
        """
        if not self._wanted or not self._chain or len(self._chain) > MOST_INCREMENTS:
            return ()
        if self._added_bytes > MOST_BYTES * self._base_bytes:
            return ()
        *before, last = self._chain
        try:
            content = directory.look(path / last.name).manifest
        except (TableError, OSError):
            return ()
        return self._chain if (content.id, content.chain) == (last.id, tuple(before)) else ()

    def forget(self) -> None:
        """The next checkpoint has all rows."""
        self._chain, self.marks = (), {}

    def saved(self, content: Manifest | None, marks: Mapping[str, str]) -> None:
        """A checkpoint of this run is there.

        Args:
          content: Its manifest, on who wrote it.
          marks: On leaders those that were made when it was captured.
        """
        self.marks = dict(marks)
        if content is None:
            return
        if content.chain:
            self._added_bytes += content.table_bytes
        else:
            self._base_bytes, self._added_bytes = content.table_bytes, 0
        self._chain = (*content.chain, Link(content.name, content.id))
