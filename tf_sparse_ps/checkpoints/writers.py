"""What a thread writes when a save has been captured: `CheckpointWriter` on rank 0, `PartWriter` on other leaders.

Everything was captured between two steps: dense values are copies, tables are scans of one committed state. Neither
talks to other ranks: a part is told of by a file (`node_part.py`), and how a save has ended when all ranks call the
next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tf_sparse_ps.checkpoints import fault_points, node_part
from tf_sparse_ps.checkpoints.directory import Save, SaveFolder
from tf_sparse_ps.checkpoints.manifest import Link, Manifest, TablePart
from tf_sparse_ps.checkpoints.node_part import NodePart
from tf_sparse_ps.collectives.timeout import timeout_s
from tf_sparse_ps.errors import PartNotSavedError

if TYPE_CHECKING:
    from tf_sparse_ps.checkpoints.captured import Captured

_LOOK_EVERY_S = (0.01, 0.5)  # at first, and at most


class Copies(Protocol):
    """Values that were copied between two steps."""

    def write(self, folder: Path, stamp: Mapping[str, Any]) -> Iterator[str]:
        """Writes files to a folder; yields the name of each when it is complete."""


class Writer(Protocol):
    """Writes what was captured, once, in any thread."""

    manifest: Manifest | None
    """Of the checkpoint, when it is there; None on who writes a part of it."""

    def write(self) -> None: ...
    def stop(self) -> None: ...


class CheckpointWriter:
    """Writes a checkpoint, but for the parts of other nodes, which it waits for."""

    def __init__(
        self,
        save: Save,
        content: Manifest,
        builds_on: tuple[Link, ...],
        values: Sequence[Copies],
        captured: Sequence[Captured],
        others: Sequence[int] = (),
        *,
        first: Callable[[], None] | None = None,
        then: Callable[[Path], None] | None = None,
    ) -> None:
        """Writes nothing yet.

        Args:
          save: The save.
          content: The manifest, but for `name`, `chain`, `files`, and what tables have become.
          builds_on: What the tables' changes, if any, are changes of.
          values: Dense variables, and states of callbacks.
          captured: This node's part of each table.
          others: The nodes whose parts others write to the same folder, ascending.
          first: Called before anything is written.
          then: Called with the checkpoint's folder when it is there.
        """
        self._save, self._content, self._builds_on, self._values = save, content, builds_on, values
        self._captured, self._others, self._first, self._then = captured, others, first, then
        self._stopped = threading.Event()
        self.manifest: Manifest | None = None

    def write(self) -> None:
        """Writes it all.

        Raises:
          PartNotSavedError: The part of another node has not come.
          UnavailableError: There was too little room for images of rows.
          OSError: From the file system.
        """
        if self._first is not None:
            self._first()
        stamp = self._content.stamp
        for one in self._values:
            for name in one.write(self._save.folder, stamp):
                self._save.add(name)
        parts = [[part] for part in _write_tables(self._save, self._captured, stamp, self._stopped)]
        for node in self._others:
            theirs = self._wait_for(node)
            self._save.files += theirs.files
            for own, part in zip(parts, theirs.tables, strict=True):
                own.append(part)
        changes = any(part.content == "changes" for own in parts for part in own)
        tables = tuple(
            {**facts, "parts": [dataclasses.asdict(part) for part in own]}
            for facts, own in zip(self._content.tables, parts, strict=True)
        )
        manifest = dataclasses.replace(
            self._content,
            name=self._save.name,
            chain=self._builds_on if changes else (),
            tables=tables,
            files=tuple(self._save.files),
        )
        self._save.finish(manifest)
        self.manifest = manifest
        if self._then is not None:
            self._then(self._save.path)

    def stop(self) -> None:
        """Another node has failed: what is left needs not be written, or waited for."""
        self._stopped.set()

    def _wait_for(self, node: int) -> NodePart:
        pause_s, longest_s = _LOOK_EVERY_S
        until, size = float("inf"), -1
        while not node_part.is_there(self._save.folder, node):
            if not threading.main_thread().is_alive():  # this process is ending: nobody will tell what became of others
                before, size = size, self._save.size()
                if size != before:
                    until = time.monotonic() + timeout_s()
            if self._stopped.wait(pause_s) or time.monotonic() > until:
                raise PartNotSavedError(f"node {node} has not written its part of {self._save.path}")
            pause_s = min(2 * pause_s, longest_s)
        part = node_part.take(self._save.folder, node)
        if part.error is not None:
            raise PartNotSavedError(f"node {node} has not written its part of {self._save.path}: {part.error}")
        fault_points.reach(fault_points.PART_TAKEN)
        return part


class PartWriter:
    """Writes one node's part of a checkpoint, to the folder of rank 0's save."""

    manifest: Manifest | None = None

    def __init__(self, save: SaveFolder, node: int, captured: Sequence[Captured], stamp: Mapping[str, Any]) -> None:
        """Writes nothing yet.

        Args:
          save: Rank 0's.
          node: This one.
          captured: This node's part of each table.
          stamp: What files say of the step that they are of.
        """
        self._save, self._node, self._captured, self._stamp = save, node, captured, stamp
        self._stopped = threading.Event()

    def write(self) -> None:
        """Writes it, and tells rank 0.

        Raises:
          UnavailableError: There was too little room for images of rows.
          OSError: From the file system.
        """
        try:
            parts = _write_tables(self._save, self._captured, self._stamp, self._stopped)
            fault_points.reach(fault_points.PART_WRITTEN)
        except Exception as error:
            with contextlib.suppress(OSError):  # then it is told when all ranks call the next save
                NodePart((), (), f"{type(error).__name__}: {error}").report(self._save.folder, self._node)
            raise
        NodePart(tuple(parts), tuple(self._save.files)).report(self._save.folder, self._node)

    def stop(self) -> None:
        """Another node has failed: what is left needs not be written."""
        self._stopped.set()


def _write_tables(
    save: SaveFolder, captured: Sequence[Captured], stamp: Mapping[str, Any], stopped: threading.Event
) -> list[TablePart]:
    """Writes this node's part of each table, and closes what was captured."""

    def may_go_on() -> None:
        if stopped.is_set():
            raise PartNotSavedError(f"another node has not written its part of {save.path}")

    parts = []
    for one in captured:
        for file in one.write(save.folder, stamp, may_go_on):
            save.add(*file)
        assert one.part is not None
        parts.append(one.part)
    return parts
