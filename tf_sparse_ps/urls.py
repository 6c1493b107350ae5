"""URLs of directories, which fsspec opens: s3, gs, abfs, hdfs, file and others."""

from __future__ import annotations

import os
from typing import Any

from tf_sparse_ps.errors import UnsupportedError


def is_url(name: str | os.PathLike[str]) -> bool:
    """Whether a name is a URL, and not a path."""
    return "://" in os.fspath(name)


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
