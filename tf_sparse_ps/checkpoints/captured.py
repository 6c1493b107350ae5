"""Tables as of the step of a save, which are written while training goes on. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tf_sparse_ps.checkpoints import array_file, stored_rows
from tf_sparse_ps.table import parameter_files
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.table import Scan


class TableContent(parameter_files.Content, Protocol):
    """Rows of a table, or what has changed of them: a `Scan`, or a `ShardedContent`.

    Attributes:
      erased: Of changes the keys that were erased; None: all rows come.
    """

    @property
    def erased(self) -> Keys | None: ...


class Captured:
    """A replicated table as of one committed state, on rank 0; whoever trains it goes on.

    Attributes:
      facts: Of the table, for the manifest; complete when it has been written.
    """

    def __init__(self, facts: dict[str, Any], scan: Scan, header: dict[str, Any]) -> None:
        self.facts, self._scan, self._header = facts, scan, header

    def write(self, folder: Path, stamp: Mapping[str, Any]) -> Iterator[str]:
        """Writes it. Needs no TensorFlow, and may be called by another thread.

        Args:
          folder: Of the checkpoint.
          stamp: What the file of erased keys says of the step that it is of.

        Yields:
          The name of each file, when it is complete.

        Raises:
          UnavailableError: More was written meanwhile than there was room for images of.
          OSError: From the file system.
        """
        with self._scan:
            yield from write(self._scan, self._header, folder, self.facts, stamp, progress=False)

    def close(self) -> None:
        """It is not needed any more."""
        self._scan.close()


def write(
    content: TableContent,
    header: Mapping[str, Any],
    folder: Path,
    facts: dict[str, Any],
    stamp: Mapping[str, Any],
    *,
    progress: bool,
) -> Iterator[str]:
    """Writes a table's files; yields the name of each when it is complete.

    Args:
      content: Its rows, or what has changed of them.
      header: `parameter_files.header`.
      folder: Of the checkpoint.
      facts: Of the table, which become complete.
      stamp: What the file of erased keys says of the step that it is of.
      progress: Show a progress bar.
    """
    erased = content.erased
    rows_known = None if erased is not None else len(content)
    parameter_files.write_content(header, content, folder / facts["file"], n_rows=rows_known, progress=progress)
    facts["rows_checksum"] = stored_rows.rows_checksum(folder / facts["file"])
    yield facts["file"]
    if erased is None:
        return
    facts["content"] = "changes"
    if len(erased):
        facts["erased"] = str(Path(facts["file"]).with_suffix(".erased.npz"))
        array_file.write(folder / facts["erased"], [(0, erased)], stamp)
        yield facts["erased"]
