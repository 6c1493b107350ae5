"""Tables as of the step of a save, which are written while training goes on. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tf_sparse_ps.checkpoints import array_file
from tf_sparse_ps.checkpoints.manifest import TablePart
from tf_sparse_ps.table import parameter_files
from tf_sparse_ps.table.scan import Scan


class NewFile(NamedTuple):
    """A file that is complete."""

    name: str
    crc32: str | None
    """Of its bytes, if it is on the disk, too."""


class Captured:
    """This node's part of a table, as of one committed state, on its leader; whoever trains it goes on.

    Attributes:
      part: What has been written, when it has been.
    """

    def __init__(self, file: str, scan: Scan, header: dict[str, Any], *, n_rows: int | None = None) -> None:
        """Reads no row.

        Args:
          file: The name of the file that will have the rows.
          scan: The rows, or what has changed of them.
          header: `parameter_files.header`.
          n_rows: How many rows come; None: that is not known yet.
        """
        self._file, self._scan, self._header, self._n_rows = file, scan, header, n_rows
        self.part: TablePart | None = None

    def write(self, folder: Path, stamp: Mapping[str, Any], may_go_on: Callable[[], None]) -> Iterator[NewFile]:
        """Writes it. Needs no TensorFlow, and may be called by another thread.

        Args:
          folder: Of the checkpoint.
          stamp: What the file of erased keys says of the step that it is of.
          may_go_on: Called again and again. What it raises ends the writing.

        Yields:
          Each file, when it is complete.

        Raises:
          UnavailableError: More was written meanwhile than there was room for images of.
          OSError: From the file system.
        """
        with self._scan as scan:
            written = parameter_files.write_content(
                self._header,
                scan,
                folder / self._file,
                n_rows=self._n_rows,
                progress=False,
                may_go_on=may_go_on,
            )
            yield NewFile(self._file, written.crc32)
            erased: str | None = None
            if scan.erased is not None and len(scan.erased):
                erased = str(Path(self._file).with_suffix(".erased.npz"))
                array_file.write(folder / erased, [(0, scan.erased)], stamp)
                yield NewFile(erased, None)
            content = "all" if scan.erased is None else "changes"
            self.part = TablePart(self._file, content, erased, written.rows_checksum)

    def close(self) -> None:
        """It is not needed any more."""
        self._scan.close()
