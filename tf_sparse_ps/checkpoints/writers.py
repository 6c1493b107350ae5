"""Writers of a captured save, for a thread: `CheckpointWriter` on rank 0, `PartWriter` on other leaders.

A save is captured between two steps: dense values are copies, tables are scans of one committed state. A writer talks
to no other rank. It reports its part in a file (`node_part.py`), and ranks learn how a save has ended when all of them
call the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tf_sparse_ps.checkpoints import fault_points
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
    """The manifest of the checkpoint, when that is complete; None for a `PartWriter`."""

    def write(self) -> None: ...
    def stop(self) -> None: ...


class CheckpointWriter:
    """Writes a checkpoint, and waits for the parts that other nodes write to the same folder."""

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
          content: The manifest without `name`, `chain` and `files`, and without the `parts` of tables.
          builds_on: The chain that changes of tables, if any, are changes of.
          values: Dense variables, and states of callbacks.
          captured: This node's part of each table.
          others: The nodes that write the other parts, in ascending order.
          first: Called before anything is written.
          then: Called with the checkpoint's folder when it is complete.
        """
        self._save, self._content, self._builds_on, self._values = save, content, builds_on, values
        self._captured, self._others, self._first, self._then = captured, others, first, then
        self._stopped = threading.Event()
        self.manifest: Manifest | None = None

    def write(self) -> None:
        """Writes the checkpoint.

        Raises:
          PartNotSavedError: Another node has not written its part.
          UnavailableError: Training has changed more rows meanwhile than there is memory for their old values.
          OSError: From the file system.
        """
        if self._first is not None:
            self._first()
        stamp = self._content.stamp
        for copies in self._values:
            for name in copies.write(self._save.folder, stamp):
                self._save.add(name)
        parts_by_table = [[part] for part in _write_tables(self._save, self._captured, stamp, self._stopped)]
        for node in self._others:
            other_part = self._wait_for(node)
            self._save.files += other_part.files
            for parts, part in zip(parts_by_table, other_part.tables, strict=True):
                parts.append(part)
        has_changes = any(part.content == "changes" for parts in parts_by_table for part in parts)
        tables = tuple(
            {**facts, "parts": [dataclasses.asdict(part) for part in parts]}
            for facts, parts in zip(self._content.tables, parts_by_table, strict=True)
        )
        manifest = dataclasses.replace(
            self._content,
            name=self._save.name,
            chain=self._builds_on if has_changes else (),
            tables=tables,
            files=tuple(self._save.files),
        )
        self._save.finish(manifest)
        self.manifest = manifest
        if self._then is not None:
            self._then(self._save.path)

    def stop(self) -> None:
        """Ends the writing, and the waiting for parts: another node has failed."""
        self._stopped.set()

    def _wait_for(self, node: int) -> NodePart:
        pause_s, longest_pause_s = _LOOK_EVERY_S
        until, size = float("inf"), -1
        while not self._save.has_report(node):
            # If this process is ending, no rank will tell what became of the others: then it waits while files grow.
            if not threading.main_thread().is_alive():
                before, size = size, self._save.size()
                if size != before:
                    until = time.monotonic() + timeout_s()
            if self._stopped.wait(pause_s) or time.monotonic() > until:
                raise PartNotSavedError(f"node {node} has not written its part of {self._save.shown}")
            pause_s = min(2 * pause_s, longest_pause_s)
        part = self._save.take_report(node)
        if part.error is not None:
            raise PartNotSavedError(f"node {node} has not written its part of {self._save.shown}: {part.error}")
        fault_points.reach(fault_points.PART_TAKEN)
        return part


class PartWriter:
    """Writes one node's part of a checkpoint to the folder of rank 0's save."""

    manifest: Manifest | None = None

    def __init__(self, save: SaveFolder, node: int, captured: Sequence[Captured], stamp: Mapping[str, Any]) -> None:
        """Writes nothing yet.

        Args:
          save: The folder of rank 0's save.
          node: The number of this node.
          captured: This node's part of each table.
          stamp: Which step the files are of.
        """
        self._save, self._node, self._captured, self._stamp = save, node, captured, stamp
        self._stopped = threading.Event()

    def write(self) -> None:
        """Writes the part, and reports it to rank 0.

        Raises:
          UnavailableError: Training has changed more rows meanwhile than there is memory for their old values.
          OSError: From the file system.
        """
        try:
            parts = _write_tables(self._save, self._captured, self._stamp, self._stopped)
            fault_points.reach(fault_points.PART_WRITTEN)
        except Exception as error:
            with contextlib.suppress(OSError):  # then rank 0 learns it when all ranks call the next save
                self._save.report(NodePart((), (), f"{type(error).__name__}: {error}"), self._node)
            raise
        self._save.report(NodePart(tuple(parts), tuple(self._save.files)), self._node)

    def stop(self) -> None:
        """Ends the writing: another node has failed."""
        self._stopped.set()


def _write_tables(
    save: SaveFolder, captured: Sequence[Captured], stamp: Mapping[str, Any], stopped: threading.Event
) -> list[TablePart]:
    """Writes and uploads this node's part of each table, and frees what was captured."""

    def may_continue() -> None:
        if stopped.is_set():
            raise PartNotSavedError(f"another node has not written its part of {save.shown}")

    parts = []
    for table in captured:
        for file in table.write(save.folder, stamp, may_continue):
            save.add(*file)
        assert table.part is not None
        parts.append(table.part)
    save.upload(may_continue)  # when all scans have ended: they hold memory
    return parts
