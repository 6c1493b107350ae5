"""`CheckpointDirectory`: the checkpoints of a training job, a folder each. Needs no TensorFlow.

    <directory>/step-000000000040/manifest.json, t0000-user.tfsps, variables.npz, ...

A kill at any time leaves whole checkpoints only. A save writes to a folder `.saving-...`: first the files, each of them
synced, then the manifest, then the folder's list of names. A rename gives the folder its name, and the directory is
synced. A checkpoint that is removed loses its name first, to `.removing-...`. The next save removes what killed saves
have left. A name is used once: a step that is saved again is `step-000000000040-2`.

An increment holds the rows that have changed since the checkpoint before it, and names those that it builds on: a base,
and the increments in between. It is whole if they are, and they are kept as long as it is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps.checkpoints import fault_points, manifest, node_part, stored_checkpoint
from tf_sparse_ps.checkpoints.manifest import FileEntry, Manifest
from tf_sparse_ps.checkpoints.node_part import NodePart
from tf_sparse_ps.checkpoints.stored_checkpoint import (
    FOLDER_NAME,
    CheckpointReader,
    Progress,
    StoredCheckpoint,
    is_damage,
)
from tf_sparse_ps.errors import AccessError, DamagedFileError, NotFoundError, TableError
from tf_sparse_ps.folders import PROBE, Folder, Trust, remove_folder, sync_file, sync_folder
from tf_sparse_ps.table.path_claim import claimed

_SAVING, _REMOVING = ".saving-", ".removing-"


class CheckpointFolder(NamedTuple):
    """A folder that is named as a checkpoint. Later checkpoints are greater."""

    step: int
    attempt: int
    """The number of the checkpoint among those of its step, from 1 on."""
    path: Path


class SaveFolder:
    """The folder to which a save writes: this process's own (`Save`), or another's, to which it adds a part.

    Attributes:
      name: The name that the checkpoint will have.
      folder: The folder that its files are written to until then.
      path: The folder that it will be.
      files: The files that this process has added.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        self.name, self.folder, self.path = path.name, folder, path
        self.files: list[FileEntry] = []

    @property
    def shown(self) -> str:
        """The path or URL that the checkpoint will have."""
        return str(self.path)

    @property
    def progress(self) -> str:
        """The part of a message that says what is waited for, and how much of it is done."""
        return f"to be on the disk: {self.size() / 1e6:.0f} MB written"

    def is_seen(self) -> bool:
        """Waits a moment until this machine sees the folder that another one has made; returns whether it does."""
        return sees(self.folder)

    def staged(self) -> contextlib.AbstractContextManager[object]:
        """Surrounds the writing of a part."""
        return contextlib.nullcontext()

    def upload(self, may_continue: Callable[[], None] = lambda: None) -> None:
        """Brings the files that were added to where all machines see them. Here they are there already.

        Args:
          may_continue: Called again and again. An error that it raises ends it.
        """

    def add(self, name: str, crc32: str | None = None) -> None:
        """Adds a file that has been written to `folder`, and is complete.

        Args:
          name: The file's name.
          crc32: The checksum of its bytes, if it has been synced already. None: this method syncs and reads the file.
        """
        path = self.folder / name
        if crc32 is None:
            sync_file(path)
            crc32 = stored_checkpoint.file_crc32(path)
        self.files.append(FileEntry(name, path.stat().st_size, crc32))
        fault_points.reach("file_written")

    def size(self) -> int:
        """Returns the bytes of all files in `folder`, whoever writes them."""
        size = 0
        with contextlib.suppress(FileNotFoundError):  # it has become a checkpoint, or has failed
            for file in self.folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    size += file.stat().st_size
        return size

    def report(self, part: NodePart, node: int) -> None:
        """Reports a node's part, whose files were uploaded, to the process that writes the manifest."""
        part.report(self.folder, node)

    def has_report(self, node: int) -> bool:
        """Whether a node has reported."""
        return node_part.is_there(self.folder, node)

    def take_report(self, node: int) -> NodePart:
        """Reads what a node has reported, and removes the report.

        Raises:
          DamagedFileError: The report is not what was written, or a file is not there as it was.
        """
        return node_part.take(self.folder, node)


class Save(SaveFolder):
    """A save in progress; see `CheckpointDirectory.saving`."""

    def discard(self) -> None:
        """Removes the folder: there is nothing to save."""
        remove_folder(self.folder, Trust.GROUP)

    def finish(self, content: Manifest) -> None:
        """Makes the folder a checkpoint.

        Args:
          content: The manifest. Its `name` and `files` are this save's.
        """
        path = self.folder / manifest.NAME
        path.write_bytes(content.encode())
        sync_file(path)
        fault_points.reach("manifest_written")
        sync_folder(self.folder)
        fault_points.reach("folder_synced")
        os.rename(self.folder, self.path)
        fault_points.reach("renamed")
        sync_folder(self.path.parent)
        fault_points.reach("directory_synced")


class CheckpointDirectory:
    """The checkpoints in a directory.

    The first save makes the directory.

    Attributes:
      is_remote: Whether this is a `StoreDirectory`, whose checkpoints are copied to this machine to be read.
      node: The number of this machine in the job. It matters if the directory is remote.
    """

    is_remote = False
    node = 0

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Makes and reads nothing."""
        self._path = Path(os.path.abspath(path))

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    @property
    def name(self) -> str:
        """The path, or the URL, for messages."""
        return str(self.path)

    def shown(self, path: Path) -> str:
        """Returns the path or URL of a checkpoint's folder, for messages and callers of the library."""
        return str(path)

    def has(self, path: Path) -> bool:
        """Whether a checkpoint's folder is there."""
        return path.exists()

    def look(self, name: str) -> StoredCheckpoint:
        """Reads the manifest of a checkpoint and compares the sizes of files, as `stored_checkpoint.look` does."""
        return self._reader(checksums=False).read(self.path / name)

    def still_has(self, name: str) -> Manifest:
        """Returns the manifest of a checkpoint of this run, if all files are still there. Raises as `look`."""
        return self.look(name).manifest

    def _reader(self, progress: Progress | None = None, *, checksums: bool = True) -> CheckpointReader:
        return CheckpointReader(progress, checksums=checksums)

    def checked(self, name: str) -> StoredCheckpoint:
        """Reads all files of a checkpoint; a remote one is copied to this machine, until `done_reading`.

        Args:
          name: The name of its folder.

        Raises:
          NotFoundError, DamagedFileError, UnsupportedError: As `stored_checkpoint.check`.
        """
        return self._reader().read(self.path / name)

    def done_reading(self) -> None:
        """Notes that no process of this machine reads a checkpoint any more."""

    def joined(self, folder: str, name: str) -> SaveFolder:
        """Returns the folder of another process's save, by the names of its `folder` and `path`."""
        return SaveFolder(self.path / folder, self.path / name)

    @classmethod
    def read(cls, path: Path) -> StoredCheckpoint:
        """Reads all files of a checkpoint, or of the newest whole one in a directory.

        Args:
          path: The folder of the checkpoint, or the directory.

        Raises:
          NotFoundError: The directory has no whole checkpoint.
          DamagedFileError: The checkpoint is damaged.
        """
        if cls.names(path):
            return stored_checkpoint.check(path)
        checkpoint, _ = cls(path).newest()
        if checkpoint is None:
            raise NotFoundError(f"{path} has no checkpoint that is whole")
        return checkpoint

    def find(self) -> list[CheckpointFolder]:
        """Lists the folders that are named as checkpoints, the newest first. Reads none of them."""
        folders = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                match = FOLDER_NAME.fullmatch(entry.name)
                if match is not None:
                    folders.append(CheckpointFolder(int(match[1]), int(match[2] or 1), self.path / entry.name))
        return sorted(folders, reverse=True)

    def newest(self, progress: Progress | None = None) -> tuple[StoredCheckpoint | None, list[Path]]:
        """Finds the newest checkpoint that is whole. Reads all of its files.

        A warning names each newer checkpoint that is damaged or incomplete, with the reason.

        Args:
          progress: Called while files are read.

        Returns:
          The checkpoint, or None if there is none; and the folders that were passed over.

        Raises:
          UnsupportedError: The newest whole checkpoint is of a later version of the format.
          OSError: A checkpoint could not be read, for a reason that does not say whether it is whole.
        """
        passed_over: list[Path] = []
        checkpoints = self._whole(1, passed_over, progress)
        return (checkpoints[0] if checkpoints else None), passed_over

    def newest_here(self, progress: Progress | None = None) -> tuple[StoredCheckpoint | None, list[Path]]:
        """Finds the checkpoint that `newest` does. A remote one is copied to this machine, until `done_reading`."""
        return self.newest(progress)

    def newest_to_read_once(self, progress: Progress | None = None) -> tuple[StoredCheckpoint | None, list[Path], bool]:
        """Finds the newest checkpoint, for a caller that detects damaged rows itself when it reads them.

        If there is an older checkpoint to go back to, the files with rows are not read here.

        Returns:
          The results of `newest`, and whether all files were read.
        """
        folders = self.find()
        if any(_seems_whole(folder.path) for folder in folders[1:]):
            with contextlib.suppress(DamagedFileError, NotFoundError, OSError):  # `newest` meets it again
                checkpoint = CheckpointReader(progress, rows=False).read(folders[0].path)
                table_parts = [part for stored in checkpoint.parts for part in stored.manifest.all_parts]
                if all(part.rows_checksum is not None for part in table_parts):
                    return checkpoint, [], False
        return *self.newest(progress), True

    def whole(self, n: int) -> list[StoredCheckpoint]:
        """Finds the n newest checkpoints that are whole, or fewer, the newest first. Otherwise as `newest_here`."""
        return self._whole(n, [])

    def _whole(
        self,
        n: int,
        passed_over: list[Path],
        progress: Progress | None = None,
        reader: CheckpointReader | None = None,
    ) -> list[StoredCheckpoint]:
        checkpoints: list[StoredCheckpoint] = []
        reader = reader or self._reader(progress)
        for folder in self.find():
            if len(checkpoints) == n:
                break
            try:
                checkpoints.append(reader.read(folder.path))
            except Exception as error:
                if not is_damage(error):
                    raise
                warnings.warn(f"checkpoint {self.shown(folder.path)} is passed over: {error}", stacklevel=3)
                passed_over.append(folder.path)
        return checkpoints

    @staticmethod
    def names(path: Path) -> bool:
        """Whether a path is named as a checkpoint is."""
        return FOLDER_NAME.fullmatch(Path(os.path.abspath(path)).name) is not None

    @contextlib.contextmanager
    def saving(self, step: int, writer: str) -> Iterator[Save]:
        """Surrounds a save. The block writes files, and `Save.finish` makes them a checkpoint; else they are removed.

        What killed saves have left is removed first.

        Args:
          step: The step that the checkpoint is named after.
          writer: Who saves, for the error that others get.

        Raises:
          WriterLockedError: Another process is saving to the directory.
          OSError: From the file system.
        """
        self._make()
        with claimed(str(self.path / "checkpoints"), writer):
            fault_points.reach("claimed")
            self._remove_leftovers()
            fault_points.reach("leftovers_removed")
            attempt = max((folder.attempt for folder in self.find() if folder.step == step), default=0) + 1
            name = f"step-{step:012d}" + (f"-{attempt}" if attempt > 1 else "")
            save_folder = self.path / f"{_SAVING}{name}-{secrets.token_hex(4)}"
            save_folder.mkdir(0o755)
            try:
                fault_points.reach("folder_made")
                yield Save(save_folder, self.path / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._remove_aside(save_folder)
                raise

    def prune(self, saved: Path, keep: int, passed_over: Sequence[Path] = ()) -> None:
        """Removes old checkpoints. Call it within `saving`.

        The checkpoint `saved` is kept, and so are the `keep` - 1 newest ones before it that have a whole manifest and
        all files, with all that they build on. If these share one base, and `keep` is above 1, the newest checkpoint
        before that base is kept as well: damage to one file then does not lose all of them.

        Args:
          saved: The checkpoint that was saved last.
          keep: How many checkpoints to keep, at least 1.
          passed_over: Damaged checkpoints. They are removed, also if they are of later steps.
        """
        folders = self.find()
        last = next((folder for folder in folders if folder.path == saved), None)
        if last is None:  # somebody has removed it
            return
        reader = self._reader(checksums=False)
        needed: set[Path] = set()
        bases: set[Path] = set()
        n_kept = 0
        for folder in folders:
            is_enough = n_kept >= keep and (keep == 1 or len(bases) > 1)
            if folder > last or is_enough or folder.path in passed_over:
                continue
            try:
                parts = [part.path for part in reader.read(folder.path).parts]
            except (TableError, OSError):
                if folder.path == saved:
                    raise
                continue
            if n_kept >= keep and parts[0] in bases:
                continue
            n_kept += 1
            bases.add(parts[0])
            needed.update(parts)
        # The newest first: an increment goes before what it builds on.
        for folder in folders:
            if folder.path not in needed and (folder < last or folder.path in passed_over):
                self.remove(folder.path)

    def others(self, kept: Path) -> list[str]:
        """Returns the names of all folders of checkpoints but one, and of what saves and removals have left."""
        names = [name for name in os.listdir(self.path) if name != kept.name]
        return sorted(name for name in names if FOLDER_NAME.fullmatch(name) or name.startswith((_SAVING, _REMOVING)))

    def _make(self) -> None:
        is_new = not self.path.is_dir()
        Folder.open(self.path, Trust.GROUP, make=True).close()
        if is_new:
            sync_folder(self.path.parent)

    def remove(self, path: Path) -> None:
        """Removes a checkpoint. Call it within `saving`. A warning names one that stays, as it is another user's."""
        try:
            self._remove_aside(path, lambda: fault_points.reach("set_aside"))
        except AccessError as error:
            warnings.warn(f"an old checkpoint stays: {error}", stacklevel=2)
            return
        fault_points.reach("removed")

    def _remove_aside(self, path: Path, then: Callable[[], None] | None = None) -> None:
        """Renames a folder and removes it. Another machine that is writing to the folder does not find it any more.

        Args:
          path: The folder.
          then: Called after the rename.

        Raises:
          AccessError: The folder belongs to another user. It stays.
        """
        with Folder.open(self.path, Trust.GROUP) as directory:
            owner, folder_owner = directory.own_uid(), directory.status(path.name).st_uid
            if owner != folder_owner:
                raise AccessError(f"{path} belongs to user {folder_owner}: it is not removed")
            aside = f"{_REMOVING}{path.name}-{secrets.token_hex(4)}"
            directory.rename(path.name, aside)
            if then is not None:
                then()
            directory.remove(aside, owner)

    def _remove_leftovers(self) -> None:
        with Folder.open(self.path, Trust.GROUP) as directory:
            owner = directory.own_uid()
            for name in directory.names():
                if name.startswith(PROBE):
                    with contextlib.suppress(OSError):
                        directory.unlink(name)
                    continue
                with contextlib.suppress(AccessError):  # another user's, who removes it
                    if name.startswith(_SAVING):
                        self._remove_aside(self.path / name)
                    elif name.startswith(_REMOVING):
                        directory.remove(name, owner)


def sees(folder: Path, longest_s: float = 5.0) -> bool:
    """Waits until a folder is there that another machine has just made, and returns whether it is.

    A network file system may take a moment to show it.

    Args:
      folder: The folder.
      longest_s: Seconds to wait at most.
    """
    until = time.monotonic() + longest_s
    while True:
        # A list of names is read again each time; whether one name is there may be cached.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if folder.name in os.listdir(folder.parent):
                return True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)


def _seems_whole(path: Path) -> bool:
    try:
        return bool(stored_checkpoint.look(path))
    except (TableError, OSError):
        return False
