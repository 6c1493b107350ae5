"""`Captured`: a table as of the step of a save, which is written while training continues. Needs no TensorFlow."""

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
    """The checksum of its bytes, if they are on the disk; None: they are still to be synced."""


class Captured:
    """This node's part of a table as of one committed state, on the node's leader. Training may change the table.

    Attributes:
      part: What the manifest says of the part. None until it has been written.
    """

    def __init__(self, file: str, scan: Scan, header: dict[str, Any], *, n_rows: int | None = None) -> None:
        """Reads no row.

        Args:
          file: The name of the file that will hold the rows.
          scan: The rows, or what has changed of them.
          header: `parameter_files.header`.
          n_rows: The number of rows, or None if it is not known yet.
        """
        self._file, self._scan, self._header, self._n_rows = file, scan, header, n_rows
        self.part: TablePart | None = None

    def write(self, folder: Path, stamp: Mapping[str, Any], may_continue: Callable[[], None]) -> Iterator[NewFile]:
        """Writes the part. Another thread may call it; it needs no TensorFlow.

        Args:
          folder: The checkpoint's folder.
          stamp: Which step the file of erased keys is of.
          may_continue: Called again and again. An error that it raises ends the writing.

        Yields:
          Each file, when it is complete.

        Raises:
          UnavailableError: Training has changed more rows meanwhile than there is memory for their old values.
          OSError: From the file system.
        """
        with self._scan as scan:
            written = parameter_files.write_content(
                self._header,
                scan,
                folder / self._file,
                n_rows=self._n_rows,
                progress=False,
                may_go_on=may_continue,
            )
            yield NewFile(self._file, written.crc32)
            erased_file: str | None = None
            if scan.erased is not None and len(scan.erased):
                erased_file = str(Path(self._file).with_suffix(".erased.npz"))
                array_file.write(folder / erased_file, [(0, scan.erased)], stamp)
                yield NewFile(erased_file, None)
            content = "all" if scan.erased is None else "changes"
            self.part = TablePart(self._file, content, erased_file, written.rows_checksum)

    def close(self) -> None:
        """Frees the scan."""
        self._scan.close()
