"""Opens a folder component by component, and refuses a path if another user could replace a component.

A path is safe if nobody but root and this user can change what it names. The check starts at `/`: each component must
belong to root or to this user, and others must not be able to write to it. A folder with the sticky bit, such as
`/tmp`, may be writable by others, because they cannot rename or remove the entries of this user in it. Because all
components pass, no other user can swap one afterwards. OpenSSH checks the path of `authorized_keys` in the same way.

A symbolic link is followed only if it belongs to root or to this user, in a folder that passed the check.
"""

from __future__ import annotations

import contextlib
import enum
import grp
import os
import pwd
import stat

from tf_sparse_ps.errors import AccessError

_MOST_LINKS = 40  # the kernel's limit


class Trust(enum.Enum):
    """Whom a path may depend on."""

    OWN = "own"
    """Only root and this user: for tables, which processes map and modify in place."""
    GROUP = "group"
    """Owners and groups of the folders too, but not everybody: for checkpoints, exports and logs, which teams share."""


def open_path(path: str, trust: Trust, *, make: bool = False) -> int:
    """Opens a folder.

    Args:
      path: The folder; relative to the working directory or absolute.
      trust: Whom the path may depend on.
      make: Whether to create missing folders, with mode 0755 less the umask.

    Returns:
      A descriptor of the folder, for `dir_fd` arguments and `os.fsync`. The caller closes it.

    Raises:
      AccessError: A component can be replaced by somebody else, or a component is not a folder.
      FileNotFoundError: The folder does not exist, and `make` is false.
      OSError: The file system reports an error.
    """
    missing = os.path.abspath(path).split("/")[::-1]  # components still to open, the next one last
    at, links = "/", 0
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        writable_by_all = _check(os.fstat(folder), at, trust, entry_of_writable=False)
        while missing:
            name = missing.pop()
            if name in ("", "."):
                continue
            component = _open_component(folder, name, make=make)
            facts = os.fstat(component)
            next_at = os.path.normpath(os.path.join(at, name))
            if stat.S_ISLNK(facts.st_mode):
                links += 1
                try:
                    _check_link(facts, next_at, trust, links, entry_of_writable=writable_by_all)
                    target = os.readlink("", dir_fd=component)
                finally:
                    os.close(component)
                missing += target.split("/")[::-1]
                if target.startswith("/"):
                    os.close(folder)
                    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                    at, writable_by_all = "/", False
                continue
            os.close(folder)
            folder, at = component, next_at
            writable_by_all = _check(facts, at, trust, entry_of_writable=writable_by_all)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


def _open_component(folder: int, name: str, *, make: bool) -> int:
    """Opens an entry itself; for a symbolic link, the link and not its target."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process created it meanwhile; the caller checks it
        os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _check(facts: os.stat_result, path: str, trust: Trust, *, entry_of_writable: bool) -> bool:
    """Checks one folder of a path.

    Args:
      facts: The status of the folder.
      path: The folder's path, for messages.
      trust: Whom the path may depend on.
      entry_of_writable: Whether everybody could have created the folder.

    Returns:
      Whether everybody can create entries in the folder.

    Raises:
      AccessError: The path is not a folder, or somebody else could replace an entry of it.
    """
    if not stat.S_ISDIR(facts.st_mode):
        raise AccessError(f"{path} is not a folder. Name another path")
    if facts.st_uid not in (0, os.geteuid()) and (trust is Trust.OWN or entry_of_writable):
        raise AccessError(
            f"{path} belongs to {_name_of(facts.st_uid)}, who can replace what is in it. Name a path whose folders all "
            f"belong to root or to {_name_of(os.geteuid())}"
        )
    if facts.st_mode & stat.S_ISVTX:
        return bool(facts.st_mode & (stat.S_IWOTH | stat.S_IWGRP))
    by_all = bool(facts.st_mode & stat.S_IWOTH)
    by_group = bool(facts.st_mode & stat.S_IWGRP) and trust is Trust.OWN and not _is_private_group(facts.st_gid)
    if by_all or by_group:
        writers, remedy = "everybody" if by_all else "its group", "o-w" if trust is Trust.GROUP else "go-w"
        raise AccessError(
            f"{path} can be written by {writers} (mode {stat.S_IMODE(facts.st_mode):04o}), who could replace what is "
            f"in it. Run `chmod {remedy} {path}`, or name another path"
        )
    return False


def _check_link(facts: os.stat_result, path: str, trust: Trust, links: int, *, entry_of_writable: bool) -> None:
    if facts.st_uid not in (0, os.geteuid()) and (trust is Trust.OWN or entry_of_writable):
        raise AccessError(
            f"{path} is a symbolic link of {_name_of(facts.st_uid)}, who can change its target. Name the path it "
            "stands for"
        )
    if links > _MOST_LINKS:
        raise AccessError(f"{path} is a symbolic link in a circle of links. Name another path")


def _is_private_group(gid: int) -> bool:
    """Whether this user is the only member of a group, as on systems that create a group for each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def _name_of(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
