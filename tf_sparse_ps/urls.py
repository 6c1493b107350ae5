"""URLs of directories, which fsspec opens: s3, gs, abfs, hdfs, file and others."""

from __future__ import annotations

import os
from typing import Any

from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError


def is_url(name: str | os.PathLike[str]) -> bool:
    """Whether a name is a URL, and not a path."""
    return "://" in os.fspath(name)


def local_path(path: str | os.PathLike[str], name: str = "path") -> str:
    """Returns the absolute form of an argument that must be a path on this machine.

    Args:
      path: The argument.
      name: Its name, for the message.

    Raises:
      InvalidArgumentError: It is a URL.
    """
    if is_url(path):
        raise InvalidArgumentError(
            f"`{name}` must be a path. Received: the URL {os.fspath(path)!r}. URLs are for checkpoints, and for "
            "versions that `tf-sparse-ps follow` copies. Otherwise write to this machine, and copy the files"
        )
    return os.path.abspath(path)


def file_system(url: str) -> tuple[Any, str]:
    """Returns the file system of a URL, an object of fsspec, and the path in it.

    Raises:
      UnsupportedError: fsspec, or the package of the protocol, is not installed.
    """
    try:
        import fsspec  # type: ignore[import-untyped]  # only URLs need it

        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        protocol = url.partition("://")[0]
        raise UnsupportedError(
            f"{url} cannot be opened: {error}. Install fsspec and its package for {protocol}, such as s3fs for s3"
        ) from error
    return files, str(root).rstrip("/")
