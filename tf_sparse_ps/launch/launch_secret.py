"""The secret that the launchers of a job share.

The launcher of a job on one machine draws a secret. The launchers of several machines need the same one: they take it
from the variable TFSPS_SECRET, or else from a file in the user's home folder, which clusters share between machines.
The first launcher creates the file.

Ranks get another secret, derived from it for the job.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from tf_sparse_ps.collectives import signed_requests
from tf_sparse_ps.errors import AccessError, LaunchError
from tf_sparse_ps.folders import Folder, Trust

_FOLDER, _FILE = ".tf_sparse_ps", "secret"
_LEAST_CHARACTERS = 16
_BYTES = 32
_WRITING_S = 5.0  # that another launcher may take between creating the file and writing it
_REMEDY = (
    f"Set {signed_requests.VARIABLE} to one random value on all machines, for example that of `openssl rand -hex 32`"
)


def of_launchers(*, several: bool) -> bytes:
    """Returns the secret of this job's launchers.

    Args:
      several: Whether there are launchers on other machines.

    Raises:
      LaunchError: The variable is too short, or the file cannot be read or created.
    """
    own = signed_requests.of_environment()
    if own:
        if len(own) < _LEAST_CHARACTERS:
            raise LaunchError(
                f"{signed_requests.VARIABLE} has {len(own)} characters, and needs at least {_LEAST_CHARACTERS}. "
                + _REMEDY,
                status=2,
            )
        return own
    if not several:
        return secrets.token_hex(_BYTES).encode()
    try:
        return _of_file(Path.home())
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        raise LaunchError(
            f"the launchers of several machines need a shared secret, and ~/{_FOLDER}/{_FILE} cannot be used: {error}. "
            f"{_REMEDY}",
            status=2,
        ) from None


def of_ranks(of_launchers: bytes, job: str) -> bytes:
    """Returns the secret of the ranks of a job.

    Args:
      of_launchers: The launchers' secret.
      job: The id of the job.
    """
    return signed_requests.derived(of_launchers, f"ranks of job {job}")


def _of_file(home: Path) -> bytes:
    with Folder.open(home, Trust.GROUP) as home_folder, home_folder.own(_FOLDER, make=True) as folder:
        with contextlib.suppress(FileExistsError):
            fresh = folder.open_file(_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fresh, "wb") as stream:
                stream.write(secrets.token_hex(_BYTES).encode())
        deadline = time.monotonic() + _WRITING_S
        while True:
            with os.fdopen(folder.open_file(_FILE, os.O_RDONLY), "rb") as stream:
                facts, secret = os.fstat(stream.fileno()), stream.read(4096).strip()
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                raise AccessError(f"{folder.path}/{_FILE} can be read by others. Run `chmod 600 {folder.path}/{_FILE}`")
            if len(secret) == 2 * _BYTES:
                return secret
            if time.monotonic() > deadline:
                raise AccessError(f"{folder.path}/{_FILE} has {len(secret)} characters, not {2 * _BYTES}: remove it")
            time.sleep(0.1)
