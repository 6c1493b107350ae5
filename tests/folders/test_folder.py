"""`Folder` opens only paths that nobody else can redirect, and removes only files of this user."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tf_sparse_ps.errors import AccessError, DamagedFileError
from tf_sparse_ps.folders import PROBE, Folder, Trust, open_regular, read_regular, sync_file, sync_folder

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


@pytest.fixture
def base() -> Iterator[Path]:
    """An empty folder whose path belongs to root and this user."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def opened(path: Path, trust: Trust = Trust.OWN, *, make: bool = False) -> str:
    with Folder.open(path, trust, make=make) as folder:
        assert os.path.samestat(os.fstat(folder.descriptor), os.stat(path))
        return folder.path


def made(path: Path, mode: int, owner: int | None = None) -> Path:
    path.mkdir()
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def test_missing_folders_are_made_on_request_and_not_writable_by_others(base: Path) -> None:
    path = base / "a" / "b"
    with pytest.raises(FileNotFoundError):
        opened(path)
    umask_before = os.umask(0)
    try:
        opened(path, make=True)
    finally:
        os.umask(umask_before)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (base / "a", path)] == [0o755, 0o755]
    assert opened(path, make=True) == str(path)


def test_relative_paths_and_dots(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(base / "a")
    assert opened(Path("./../a/b")) == str(base / "a" / "b")
    assert opened(Path("/")) == "/"


def test_own_links_are_followed(base: Path) -> None:
    (base / "target" / "a").mkdir(parents=True)
    (base / "absolute").symlink_to(base / "target")
    (base / "target" / "relative").symlink_to("../absolute/a")
    assert opened(base / "absolute" / "relative") == str(base / "absolute" / "relative")
    (base / "circle").symlink_to("circle")
    with pytest.raises(AccessError, match="circle"):
        opened(base / "circle")


@pytest.mark.parametrize("trust", Trust)
def test_a_folder_that_everybody_can_write_is_refused_unless_it_is_sticky(base: Path, trust: Trust) -> None:
    made(base / "open", 0o777)
    made(base / "open" / "a", 0o755)
    with pytest.raises(AccessError, match=rf"{base}/open can be written by everybody \(mode 0777\).* `chmod g?o-w"):
        opened(base / "open" / "a", trust)
    (base / "open").chmod(0o1777)
    opened(base / "open" / "a", trust)


def test_a_folder_that_a_group_can_write_may_hold_checkpoints_and_no_tables(base: Path) -> None:
    path = made(base / "team", 0o775)
    if os.geteuid() == 0:
        os.chown(path, 0, 12345)
    opened(path, Trust.GROUP)
    if os.geteuid() == 0:
        with pytest.raises(AccessError, match=r"can be written by its group \(mode 0775\)"):
            opened(path)


@as_root
def test_a_folder_of_another_user_is_refused(base: Path) -> None:
    made(base / "theirs", 0o755, NOBODY)
    made(base / "theirs" / "mine", 0o700)
    for path in (base / "theirs", base / "theirs" / "mine"):
        with pytest.raises(AccessError, match=rf"{base}/theirs belongs to user nobody, who can replace what is in it"):
            opened(path)
        opened(path, Trust.GROUP)
    # Another user may have made this folder first, because everybody can make folders there.
    made(base / "tmp", 0o1777)
    made(base / "tmp" / "checkpoints", 0o755, NOBODY)
    with pytest.raises(AccessError, match=r"tmp/checkpoints belongs to user nobody"):
        opened(base / "tmp" / "checkpoints", Trust.GROUP)


@as_root
def test_a_link_of_another_user_is_refused(base: Path) -> None:
    (base / "target").mkdir()
    made(base / "tmp", 0o1777)
    (base / "tmp" / "link").symlink_to(base / "target")
    opened(base / "tmp" / "link")
    os.chown(base / "tmp" / "link", NOBODY, NOBODY, follow_symlinks=False)
    for trust in Trust:
        with pytest.raises(AccessError, match="tmp/link is a symbolic link of user nobody"):
            opened(base / "tmp" / "link", trust)


def test_a_file_is_not_a_folder(base: Path) -> None:
    (base / "file").touch()
    with pytest.raises(AccessError, match="file is not a folder"):
        opened(base / "file")


def test_an_own_folder_is_private(base: Path) -> None:
    with Folder.open(base, Trust.OWN) as folder:
        with folder.own("new", make=True) as new:
            assert stat.S_IMODE(os.fstat(new.descriptor).st_mode) == 0o700
        made(base / "writable", 0o770)
        (base / "link").symlink_to("new")
        (base / "file").touch()
        for name, said in (("writable", "chmod go-w"), ("link", "symbolic link"), ("file", "is a file, not a folder")):
            with pytest.raises(AccessError, match=said):
                folder.own(name, make=True)
        if os.geteuid() == 0:
            made(base / "theirs", 0o700, NOBODY)
            with pytest.raises(AccessError, match="belongs to user 65534"):
                folder.own("theirs")


def test_what_is_removed_is_inside_of_the_folder(base: Path) -> None:
    outside = made(base / "outside", 0o755)
    (outside / "kept").touch()
    tree = made(base / "tree", 0o755)
    made(tree / "locked", 0o700)
    (tree / "locked" / "file").touch()
    (tree / "locked").chmod(0o500)
    (tree / "link").symlink_to(outside)
    os.mkfifo(tree / "fifo")
    with Folder.open(base, Trust.OWN) as folder:
        folder.remove("tree")
        assert folder.names() == ["outside"]
        assert (outside / "kept").exists()
        (base / "link").symlink_to(outside)
        with pytest.raises(AccessError, match="symbolic link"):
            folder.remove("link")
        with pytest.raises(FileNotFoundError):
            folder.remove("tree")
    assert (outside / "kept").exists()


@as_root
def test_a_folder_of_another_user_is_not_removed(base: Path) -> None:
    made(base / "tree", 0o755)
    made(base / "tree" / "theirs", 0o777, NOBODY)
    (base / "tree" / "theirs" / "file").touch()
    with Folder.open(base, Trust.OWN) as folder, pytest.raises(AccessError, match="theirs belongs to user 65534"):
        folder.remove("tree")
    assert (base / "tree" / "theirs" / "file").exists()


def test_only_regular_files_are_opened_and_nothing_blocks(base: Path) -> None:
    (base / "file").write_bytes(b"content")
    with read_regular(base / "file") as stream:
        assert stream.read() == b"content"
    os.mkfifo(base / "fifo")
    (base / "link").symlink_to("file")
    (base / "folder").mkdir()
    kinds = {"fifo": "a FIFO", "link": "a symbolic link", "folder": "a folder"}
    for name, kind in kinds.items():
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT):
            with pytest.raises(AccessError, match=f"{name} is {kind}.*, not a regular file"):
                open_regular(base / name, flags)
    with pytest.raises(DamagedFileError, match="fifo is a FIFO"), read_regular(base / "fifo", error=DamagedFileError):
        pass
    with Folder.open(base, Trust.OWN) as folder:
        os.close(folder.open_file("file", os.O_RDONLY))
        with pytest.raises(AccessError, match="fifo is a FIFO"):
            folder.open_file("fifo", os.O_RDONLY)


def test_the_owner_of_new_files_is_found_also_where_every_file_has_a_name(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[list[str]] = []
    with Folder.open(base, Trust.OWN) as folder:
        real_open, real_fstat = os.open, os.fstat

        def fstat(descriptor: int) -> os.stat_result:
            names.append(folder.names())
            return real_fstat(descriptor)

        monkeypatch.setattr(os, "fstat", fstat)
        assert folder.own_uid() == os.geteuid()
        assert names == [[]], "a process that is killed here must leave no files"

        def open_named(path: str, flags: int, *arguments: int, **keywords: int) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "no files without a name, as on NFS")
            return real_open(path, flags, *arguments, **keywords)

        monkeypatch.setattr(os, "open", open_named)
        assert folder.own_uid() == os.geteuid()
        assert [name.startswith(PROBE) for name in names[-1]] == [True]
        assert folder.names() == []


def test_folders_are_synced_also_where_that_is_not_possible(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "file").write_text("bytes")
    (base / "link").symlink_to("file")
    (base / "linked").symlink_to(".")
    sync_file(base / "file")
    sync_folder(base)
    sync_folder(base / "linked")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        sync_file(base / "link")
    with pytest.raises(NotADirectoryError):
        sync_folder(base / "file")

    def cannot(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", cannot)
    sync_folder(base)
    with pytest.raises(OSError, match="Invalid argument"):
        sync_file(base / "file")
