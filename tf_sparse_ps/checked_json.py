"""JSON files that contain a checksum of their content, so that damage is found."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps.errors import DamagedFileError

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def check_file_name(name: str) -> None:
    """Raises ValueError unless a file that a manifest lists may have this name. It leads into no other folder."""
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(f"a file's name is {name!r}")


def encode(content: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a file: a JSON object of `content` and `checksum`, the CRC-32 of the content's text."""
    text = json.dumps(content, sort_keys=True, indent=1, allow_nan=False)
    return (json.dumps({"checksum": f"{zlib.crc32(text.encode()):08x}"})[:-1] + f', "content": {text}}}\n').encode()


def decode(data: bytes, where: str) -> dict[str, Any]:
    """Returns the content of a file.

    Args:
      data: The bytes of the file.
      where: The file, for messages.

    Raises:
      DamagedFileError: The bytes are not what `encode` makes of their content.
    """
    try:
        content = json.loads(data)["content"]
        is_whole = encode(content) == data
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFileError(f"{where} is damaged: it is not a manifest ({error})") from None
    if not is_whole:
        raise DamagedFileError(f"{where} is damaged: its content does not have its checksum")
    return dict(content)
