"""`StoreDirectory`: the checkpoints behind a URL of fsspec. Needs no TensorFlow.

    <url>/step-000000000040/t0000-user.tfsps, variables.npz, ..., manifest.json
    <url>/saving.json          who is saving

A store has no rename, so files are uploaded to the folder with the checkpoint's name. The manifest comes last, by one
put: a folder without it is no checkpoint, and the next save removes it. Removal begins with the manifest.

A save writes `saving.json` first, with a random id. If another save has replaced it, the process that was slower sends
nothing more. So what a killed job's last machine still sends does not mix with the checkpoints of the job that was
started again.

Files are written to a staging folder of this machine, and removed there when they are uploaded. A restore copies a
checkpoint to the staging folder, and removes it when all ranks have read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_sparse_ps.checkpoints import fault_points, manifest, stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory, CheckpointFolder, Save, SaveFolder
from tf_sparse_ps.checkpoints.manifest import FileEntry, Manifest
from tf_sparse_ps.checkpoints.node_part import NodePart, report_name
from tf_sparse_ps.checkpoints.store import Listing, Store
from tf_sparse_ps.checkpoints.stored_checkpoint import FOLDER_NAME, CheckpointReader, Progress, StoredCheckpoint
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, WriterLockedError
from tf_sparse_ps.folders import Folder, Trust
from tf_sparse_ps.table.path_claim import claimed

CLAIM = "saving.json"
_SAVING = re.compile(r"\.saving-.*")
_SEEN_S = 5.0
_OWN_EVERY_S, _OWN_S = 5.0, 1.0  # how often an upload asks whether another save has begun; when a file is complete


class StorePart(SaveFolder):
    """A part of a checkpoint: written to `folder`, on this machine, and uploaded from there."""

    def __init__(self, directory: StoreDirectory, folder: Path, path: Path) -> None:
        super().__init__(folder, path)
        self._directory, self._store = directory, directory.store
        self._id = folder.name.rpartition("-")[2]
        self._to_send: list[str] = []
        self._sent_bytes = 0
        self._own_at = float("-inf")  # when this was seen to be the last save that has begun

    @property
    def shown(self) -> str:
        return f"{self._store.url}/{self.name}"

    @property
    def progress(self) -> str:
        return f"to be uploaded: {self._sent_bytes / 1e6:.0f} MB sent"

    def add(self, name: str, crc32: str | None = None) -> None:
        super().add(name, crc32)
        self._to_send.append(name)

    def is_seen(self) -> bool:
        until = time.monotonic() + _SEEN_S
        while not self.is_own():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def staged(self) -> contextlib.AbstractContextManager[object]:
        return self._directory.staging(self.folder, f"the part of {self.shown}")

    def is_own(self) -> bool:
        """Whether the save to which this part belongs is the last one that has begun."""
        try:
            return bool(json.loads(self._store.read(CLAIM))["id"] == self._id)
        except NotFoundError:
            return False
        except (ValueError, KeyError, TypeError):
            return False

    def upload(self, may_continue: Callable[[], None] = lambda: None) -> None:
        """Uploads the files that were added, and removes them here."""

        def may_continue_as_own() -> None:
            may_continue()
            self.must_be_own(_OWN_EVERY_S)

        while self._to_send:
            may_continue()
            self.must_be_own()
            name = self._to_send[0]
            file = self.folder / name
            self._store.send(file, f"{self.name}/{name}", may_continue_as_own, lambda: self.must_be_own(_OWN_S))
            self._sent_bytes += file.stat().st_size
            self._to_send.pop(0)
            file.unlink()
            fault_points.reach("file_sent")

    def must_be_own(self, longest_s: float = 0.0) -> None:
        """Raises WriterLockedError if another save has begun.

        Args:
          longest_s: For so many seconds, the last answer of the store is believed.
        """
        now = time.monotonic()
        if now - self._own_at < longest_s:
            return
        if not self.is_own():
            raise WriterLockedError(
                f"{self._store.url} is being written by another job, whose save began later. Give each job a URL of "
                "its own, and end one of the two"
            )
        self._own_at = now

    def size(self) -> int:
        """Returns the bytes that the store has of this checkpoint, whoever sends them."""
        with contextlib.suppress(OSError):
            return sum(self._store.list().get(self.name, {}).values())
        return 0

    def report(self, part: NodePart, node: int) -> None:
        self.must_be_own()
        self._store.put(f"{self.name}/{report_name(node)}", part.encode())
        fault_points.reach(fault_points.PART_REPORTED)

    def has_report(self, node: int) -> bool:
        return self._store.size(f"{self.name}/{report_name(node)}") is not None

    def take_report(self, node: int) -> NodePart:
        path = f"{self.name}/{report_name(node)}"
        part = NodePart.decode(self._store.read(path), f"{self._store.url}/{path}")
        for entry in part.files:
            if (size := self._store.size(f"{self.name}/{entry.name}")) != entry.size:
                raise DamagedFileError(f"{self.shown}/{entry.name} has {size} bytes, and {entry.size} on node {node}")
        self._store.remove(path)
        return part


class StoreSave(StorePart, Save):
    """A save to a store; see `StoreDirectory.saving`."""

    def staged(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()  # `saving` has made the folder

    def discard(self) -> None:
        """Sends nothing: there is nothing to save."""

    def finish(self, content: Manifest) -> None:
        """Uploads what is not uploaded yet, and then the manifest, by one put."""
        self.upload()
        there = self._store.list().get(self.name, {})
        for entry in content.files:
            if there.get(entry.name) != entry.size:
                raise DamagedFileError(
                    f"{self.shown}/{entry.name} has {there.get(entry.name)} bytes, and {entry.size} were uploaded: "
                    "something else removes or writes files there. Give each job a URL of its own"
                )
        self.must_be_own()
        fault_points.reach("all_sent")
        self._store.put(f"{self.name}/{manifest.NAME}", content.encode())
        fault_points.reach("manifest_sent")


class StoreDirectory(CheckpointDirectory):
    """The checkpoints behind a URL.

    Paths of checkpoints are those of their copies in the staging folder, whether there is a copy or not.
    """

    is_remote = True

    def __init__(self, url: str, staging: str | os.PathLike[str] | None = None) -> None:
        """Lists the URL. Makes nothing.

        Args:
          url: The URL.
          staging: A folder of this machine, in which the staging folder is made. None: that for temporary files.

        Raises:
          UnsupportedError, OSError: As `Store`.
        """
        self.store = Store(url)
        self._staging = Path(os.path.abspath(tempfile.gettempdir() if staging is None else staging))
        self._save: StoreSave | None = None  # the one in progress
        self._copied = contextlib.ExitStack()  # removes what was copied to this machine
        self._digest = hashlib.sha256(f"{os.geteuid()} {self.store.url}".encode()).hexdigest()[:12]

    @property
    def path(self) -> Path:
        """The staging folder of this machine."""
        return self._staging / f"tf_sparse_ps-checkpoints-{self._digest}-{self.node:05d}"

    @property
    def name(self) -> str:
        """The URL."""
        return self.store.url

    def shown(self, path: Path) -> str:
        return f"{self.name}/{path.name}"

    def has(self, path: Path) -> bool:
        return self.store.size(f"{path.name}/{manifest.NAME}") is not None

    def find(self) -> list[CheckpointFolder]:
        """Lists the checkpoints, the newest first. Folders without a manifest are none."""
        return self._folders(self.store.list())

    def _folders(self, listing: Listing) -> list[CheckpointFolder]:
        path = self.path
        folders = []
        for name, files in listing.items():
            match = FOLDER_NAME.fullmatch(name)
            if match is not None and manifest.NAME in files:
                folders.append(CheckpointFolder(int(match[1]), int(match[2] or 1), path / name))
        return sorted(folders, reverse=True)

    def still_has(self, name: str) -> Manifest:
        """Reads one manifest: training waits for it."""
        listing = self.store.list()
        content = StoreReader(self, listing=listing).look(self.path / name).manifest
        for link in content.chain:
            if manifest.NAME not in listing.get(link.name, {}):
                raise NotFoundError(f"{self.name}/{link.name}/{manifest.NAME} is missing: the checkpoint is incomplete")
        return content

    def _reader(self, progress: Progress | None = None, *, checksums: bool = True) -> CheckpointReader:
        return StoreReader(self, progress, checksums=checksums)

    # --- reading ---

    def newest_here(self, progress: Progress | None = None) -> tuple[StoredCheckpoint | None, list[Path]]:
        passed_over: list[Path] = []
        with self._copying():
            found = self._whole(1, passed_over, reader=StoreReader(self, progress, copy=True))
        if not found:
            self.done_reading()
        return (found[0] if found else None), passed_over

    def newest_to_read_once(self, progress: Progress | None = None) -> tuple[StoredCheckpoint | None, list[Path], bool]:
        return *self.newest_here(progress), True

    def whole(self, n: int) -> list[StoredCheckpoint]:
        with self._copying():
            return self._whole(n, [], reader=StoreReader(self, copy=True))

    def checked(self, name: str) -> StoredCheckpoint:
        with self._copying():
            return StoreReader(self, copy=True).read(self.path / name)

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        self.done_reading()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._claimed("reading", "a restore", FOLDER_NAME))
            yield
            self._copied = stack.pop_all()

    def done_reading(self) -> None:
        self._copied.close()

    # --- saving ---

    def joined(self, folder: str, name: str) -> SaveFolder:
        return StorePart(self, self.path / folder, self.path / name)

    @contextlib.contextmanager
    def saving(self, step: int, writer: str) -> Iterator[Save]:
        """Surrounds a save, as `CheckpointDirectory.saving` does.

        Raises:
          WriterLockedError: Another process of this machine uses the staging folder.
          OSError: From the store or the file system of the staging folder.
        """
        with self._claimed("saving", writer, _SAVING):
            own_id = secrets.token_hex(8)
            who = f"{writer} (process {os.getpid()} on {socket.gethostname()})"
            self.store.put(CLAIM, json.dumps({"id": own_id, "writer": who}).encode())
            fault_points.reach("store_claimed")
            listing = self.store.list()
            folders = self._folders(listing)
            claim = StorePart(self, self.path / f".saving--{own_id}", self.path)
            for name in listing:
                if FOLDER_NAME.fullmatch(name) and manifest.NAME not in listing[name]:
                    claim.must_be_own()  # otherwise the files may be those of the other save
                    self.store.remove_folder(name)
            fault_points.reach("store_leftovers_removed")
            attempt = max((folder.attempt for folder in folders if folder.step == step), default=0) + 1
            name = f"step-{step:012d}" + (f"-{attempt}" if attempt > 1 else "")
            save = StoreSave(self, self.path / f".saving-{name}-{own_id}", self.path / name)
            save.folder.mkdir(0o700)
            self._save = save
            try:
                fault_points.reach("folder_made")
                yield save
            except BaseException:
                with contextlib.suppress(OSError):
                    if save.is_own() and not self.has(save.path):
                        self.store.remove_folder(name)
                raise
            finally:
                self._save = None
                with contextlib.suppress(OSError):
                    if save.is_own():
                        self.store.remove(CLAIM)

    def remove(self, path: Path) -> None:
        """Removes a checkpoint. Call it within `saving`.

        Raises:
          WriterLockedError: Another save has begun. It may build on the checkpoint.
          OSError: From the store.
        """
        assert self._save is not None
        self._save.must_be_own()
        self.store.remove(f"{path.name}/{manifest.NAME}")
        fault_points.reach("set_aside")
        self.store.remove_folder(path.name)
        fault_points.reach("removed")

    def others(self, kept: Path) -> list[str]:
        return sorted(name for name in self.store.list() if FOLDER_NAME.fullmatch(name) and name != kept.name)

    # --- the staging folder ---

    @contextlib.contextmanager
    def staging(self, folder: Path, writer: str) -> Iterator[None]:
        """Surrounds the writing of a node's part: makes its folder, and removes it."""
        with self._claimed("saving", writer, _SAVING):
            folder.mkdir(0o700)
            yield

    @contextlib.contextmanager
    def _claimed(self, use: str, writer: str, names: re.Pattern[str]) -> Iterator[None]:
        """Makes the staging folder. One process of the machine at a time has a use of it.

        Args:
          use: "saving" or "reading".
          writer: Who uses it, for the error that others get.
          names: The names of folders of this use, which are removed before and after: a killed process leaves them.
        """
        path = self.path
        with Folder.open(path.parent, Trust.GROUP, make=True) as parent, parent.own(path.name, make=True):
            pass
        try:
            with claimed(str(path / use), writer):
                _remove_folders(path, names)
                try:
                    yield
                finally:
                    _remove_folders(path, names)
        finally:
            with contextlib.suppress(OSError):  # it is in use
                path.rmdir()


def _remove_folders(path: Path, names: re.Pattern[str]) -> None:
    for entry in os.scandir(path):
        if names.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)


class StoreReader(CheckpointReader):
    """Reads the checkpoints of a store, and copies them to the staging folder if that is wanted."""

    def __init__(
        self,
        directory: StoreDirectory,
        progress: Progress | None = None,
        *,
        checksums: bool = True,
        copy: bool = False,
        listing: Listing | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
          directory: The directory.
          progress: Called while files are read.
          checksums: Read the files and compare their checksums. Otherwise only their sizes are compared.
          copy: Also copy them.
          listing: The files of the store. None: they are listed.
        """
        super().__init__(progress, checksums=checksums)
        self._directory, self._copy = directory, copy
        self._listing = listing

    def look(self, path: Path) -> StoredCheckpoint:
        store, url = self._directory.store, self._directory.shown(path)
        if self._listing is None:
            self._listing = store.list()
        sizes = self._listing.get(path.name, {})
        try:
            manifest_bytes = store.read(f"{path.name}/{manifest.NAME}")
        except NotFoundError:
            raise NotFoundError(f"{url}/{manifest.NAME} is missing: the checkpoint is incomplete") from None
        content = stored_checkpoint.decode(manifest_bytes, f"{url}/{manifest.NAME}", path.name)
        for entry in content.files:
            if entry.name not in sizes:
                raise NotFoundError(f"{url}/{entry.name} is missing: the checkpoint is incomplete")
            if sizes[entry.name] != entry.size:
                raise DamagedFileError(
                    f"{url}/{entry.name} is damaged: it has {sizes[entry.name]} bytes, and had {entry.size}"
                )
        return StoredCheckpoint(path, content, manifest_bytes, url=url)

    def _check_files(self, path: Path) -> StoredCheckpoint:
        checkpoint = self.look(path)
        if self._copy:
            path.mkdir(0o700)
        try:
            for entry in checkpoint.manifest.files:
                self._check_file(path, entry)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        if self._copy:
            (path / manifest.NAME).write_bytes(checkpoint.manifest_bytes)
        return checkpoint

    def _check_file(self, path: Path, entry: FileEntry) -> None:
        progress = self._progress

        def tell(n: int) -> None:
            if progress is not None:
                progress(entry.name, n)

        target = path / entry.name if self._copy else None
        for _ in range(2):  # an error of the transfer is not damage
            crc32 = self._directory.store.fetch(f"{path.name}/{entry.name}", target, tell)
            if crc32 == entry.crc32:
                break
        else:
            url = self._directory.shown(path)
            raise DamagedFileError(f"{url}/{entry.name} is damaged: its checksum is {crc32}, and was {entry.crc32}")
