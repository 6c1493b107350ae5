"""`VersionBuilder`: makes a version in a hidden folder, which gets its name when everything is on the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tf_sparse_ps import _table
from tf_sparse_ps.folders import Folder, Trust, remove_folder, sync_file, sync_folder
from tf_sparse_ps.serving import fault_points, layer_plan, table_files
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import (
    ASSETS,
    MANIFEST,
    TABLES,
    FileEntry,
    OtherFile,
    TableEntry,
    VersionManifest,
    check_new,
    other_file,
)
from tf_sparse_ps.table.path_claim import claimed

SUFFIX = ".serving"


class VersionBuilder:
    """A version in progress. Use it as a context manager; without `finish`, nothing is left of it.

    Attributes:
      path: The folder that the version will be.
      folder: The folder that its files are written to until then.
    """

    def __init__(self, path: str | os.PathLike[str], writer: str) -> None:
        """Writes nothing yet.

        Args:
          path: The folder of the version, which must not exist.
          writer: Who writes it, for the error that another writer gets.

        Raises:
          InvalidArgumentError: The folder exists.
        """
        self.path = Path(os.path.abspath(path))
        check_new(self.path)
        self.folder = self.path.with_name(f".{self.path.name}.partial")
        self._claim = claimed(os.fspath(self.path), writer)
        self._finished = False

    def __enter__(self) -> VersionBuilder:
        self._claim.__enter__()
        try:
            Folder.open(self.path.parent, Trust.GROUP, make=True).close()
            self._remove()  # what a killed writer has left
            os.mkdir(self.folder)
            fault_points.reach("folder_made")
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._finished:
                self._remove()
        finally:
            self._claim.__exit__(kind, error, trace)

    def _remove(self) -> None:
        if os.path.lexists(self.folder):
            remove_folder(self.folder, Trust.GROUP)

    def new_table(self, asset: str) -> TableFiles:
        """Returns the files of a table, which are none yet. `asset`: the name of the table in `assets`."""
        return TableFiles(self.table_folder(asset), self.folder, asset)

    def table_folder(self, asset: str) -> Path:
        """Returns the folder for the files of a table, which may also have temporary data."""
        folder = self.folder / TABLES / asset
        os.makedirs(folder, exist_ok=True)
        return folder

    def finish(self, manifest: VersionManifest) -> None:
        """Makes the folder a version. All files are on the disk before it appears.

        Args:
          manifest: The manifest without `others`.

        Raises:
          InvalidArgumentError: Another writer has made the folder meanwhile.
        """
        manifest = dataclasses.replace(manifest, others=tuple(self._others()))
        (self.folder / MANIFEST).write_bytes(manifest.encode())
        fault_points.reach("manifest_written")
        self.finish_without_manifest()

    def finish_without_manifest(self) -> None:
        """Gives the folder its name. Raises the errors of `finish`."""
        publish_folder(self.folder, self.path)
        self._finished = True

    def _others(self) -> Iterator[OtherFile]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.suffix != SUFFIX:
                yield other_file(path.relative_to(self.folder).as_posix(), path.read_bytes())


class Bases(NamedTuple):
    """How a table in a new version gets a new base."""

    new: Path | None = None
    """A file that takes the place of the oldest files."""
    replaced: int = 1
    """The number of files that it replaces. Without it: the number of files that one will replace, and the base."""
    are_written_apart: bool = True
    """Whether a `BaseWriter` writes bases; if not, they are written with the version."""

    @property
    def unchanged(self) -> int:
        """The number of files, from the base on, that are not merged to layers."""
        return self.replaced if self.new is None else 1


NO_BASES = Bases(are_written_apart=False)


class TableFiles:
    """The files of a table in a version in progress.

    Attributes:
      files: The files, newest first.
      sequence: The number of the last export that has changed them.
    """

    def __init__(self, folder: Path, version: Path, asset: str) -> None:
        """Callers use `VersionBuilder.new_table`."""
        self._folder, self._version, self._asset = folder, version, asset
        self.files: list[FileEntry] = []
        self.sequence = 0
        self._hash_seed = 0
        self._bases = NO_BASES

    def add_base(
        self,
        facts: TableFacts,
        content: Any,
        *,
        show_progress: bool = True,
        may_continue: Callable[[], None] = lambda: None,
    ) -> None:
        """Writes a base. The arguments are those of `table_files.write_base`."""
        path = self._new_path("base")
        table_files.write_base(path, facts, content, show_progress=show_progress, may_continue=may_continue)
        self.files, self._hash_seed = [self._entry(path)], facts.hash_seed

    def link(self, version: Path, table: TableEntry, bases: Bases = NO_BASES) -> None:
        """Takes over the files of a table of an earlier version, by hard links, or by copies to another file system.

        Args:
          version: The folder of the earlier version.
          table: The table in it.
          bases: A new base, which takes the place of the oldest files.
        """
        paths = [version / entry.path for entry in table.files]
        if bases.new is not None:
            paths[-bases.replaced :] = [bases.new]
        self._bases = bases
        for path in paths:
            target = self._folder / path.name
            link(path, target)
            self.files.append(self._entry(target))
        self.sequence, self._hash_seed = table.sequence, table.hash_seed

    def add_layer(
        self,
        facts: TableFacts,
        changes: Any,
        *,
        may_continue: Callable[[], None] = lambda: None,
    ) -> None:
        """Writes a layer above the files, unless nothing has changed. See `table_files.write_layer`."""
        path = self._new_path(f"layer-{self.sequence + 1}")
        n = table_files.write_layer(
            path,
            facts,
            changes,
            [self._path(entry) for entry in self.files[:-1]],
            sequence=self.sequence + 1,
            may_continue=may_continue,
        )
        self._put_on_top(path, n)

    def add_difference(
        self,
        facts: TableFacts,
        content: Any,
        *,
        show_progress: bool = True,
        may_continue: Callable[[], None] = lambda: None,
    ) -> None:
        """Writes a layer that makes the rows of the files those of `content`. See `table_files.write_base`."""
        # Rows that are sorted alike can be compared without memory.
        base = self._new_path("compared")
        table_files.write_base(base, facts, content, show_progress=show_progress, may_continue=may_continue)
        path = self._new_path(f"layer-{self.sequence + 1}")
        version = [self._path(entry) for entry in self.files]
        n = table_files.write_difference(
            os.fspath(base), version, path, sequence=self.sequence + 1, may_continue=may_continue
        )
        os.unlink(base)
        self._put_on_top(path, n)

    def _put_on_top(self, path: Path, n: int) -> None:
        """Adds a layer that was written with `n` keys; if there are none, it was not written."""
        if n:
            self.sequence += 1
            self.files.insert(0, self._entry(path))

    def merge(self, may_continue: Callable[[], None] = lambda: None) -> None:
        """Merges files if there are too many, or if the layers are large beside the base."""
        sizes = [entry.bytes for entry in self.files]
        most_of_base = layer_plan.OVERDUE if self._bases.are_written_apart else layer_plan.MOST_OF_BASE
        if layer_plan.needs_base(sizes, most_of_base):
            chosen: tuple[int, int] | None = (0, len(sizes))
        else:
            chosen = layer_plan.to_merge(sizes, self._bases.unchanged)
        if chosen is None:
            return
        begin, end = chosen
        merged, older = self.files[begin:end], self.files[end:-1]
        path = self._new_path("base" if end == len(sizes) else "layer-merged")
        paths = [self._path(entry) for entry in merged]
        table_files.merge(paths, [self._path(entry) for entry in older], path, may_continue=may_continue)
        self.files[begin:end] = [self._entry(path)]
        for old in paths:
            os.unlink(old)

    def finish(self, name: str, facts: TableFacts, *, step: int, marks: Sequence[str], absent: str) -> TableEntry:
        """Writes the file in `assets` that names the files, and returns what the version says of the table."""
        named = [(entry.path, entry.bytes, entry.crc) for entry in self.files]
        assets = self._version / ASSETS
        assets.mkdir(exist_ok=True)
        (assets / self._asset).write_text(_table.serving_manifest(name, step, named))
        return TableEntry(
            name=name,
            asset=self._asset,
            uuid=facts.uuid,
            marks=tuple(marks),
            sequence=self.sequence,
            rows=facts.rows,
            absent=absent,
            hash_seed=self._hash_seed,
            files=tuple(self.files),
        )

    def _new_path(self, name: str) -> Path:
        # Versions that do not know of each other may be next to each other.
        return self._folder / f"{name}-{secrets.token_hex(4)}{SUFFIX}"

    def _path(self, entry: FileEntry) -> str:
        return os.fspath(self._version / entry.path)

    def _entry(self, path: Path) -> FileEntry:
        info = _table.serving_file_info(os.fspath(path))
        fault_points.reach("file_ready")
        return FileEntry(path.relative_to(self._version).as_posix(), int(info["bytes"]), int(info["crc"]))


def publish_folder(folder: Path, path: Path) -> None:
    """Syncs all files of a version, and gives its folder its name.

    Raises:
      InvalidArgumentError: A folder has this name.
    """
    for inner, _, names in os.walk(folder):
        for name in names:
            if not name.endswith(SUFFIX):  # these were synced when they were written
                sync_file(Path(inner, name))
        sync_folder(inner)
    fault_points.reach("synced")
    check_new(path)
    os.rename(folder, path)
    fault_points.reach("renamed")
    sync_folder(path.parent)


def link(source: Path, target: Path) -> None:
    """Gives a file another name, or copies it if the file system does not allow that."""
    try:
        os.link(source, target)
    except OSError as error:
        # EXDEV: another file system. EPERM: another user's file, or a file system without links. EMLINK: too many.
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        partial = target.with_suffix(".copying")
        with open(source, "rb") as original, open(partial, "wb") as copy:
            shutil.copyfileobj(original, copy, 2 << 20)  # pieces that stay together in the page cache
            copy.flush()
            os.fsync(copy.fileno())
        with contextlib.suppress(OSError):
            shutil.copymode(source, partial)
        os.rename(partial, target)
