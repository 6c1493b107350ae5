"""The secret that the launchers of a job share.

The launcher of a job on one machine draws a random secret. The launchers of several machines need the same secret. They
take it from the variable TFSPS_SECRET, or else from a file in the user's home folder, which the machines of a cluster
often share. The first launcher creates the file.

The ranks get another secret, which is derived from the launchers' secret and the id of the job.
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
_WRITING_S = 5.0  # the time that another launcher may take between creating the file and writing it
_REMEDY = f"Set {signed_requests.VARIABLE} to one random value on all machines, for example from `openssl rand -hex 32`"


def of_launchers(*, several: bool) -> bytes:
    """Returns the secret of this job's launchers.

    Args:
      several: Whether the job has launchers on other machines.

    Raises:
      LaunchError: The variable is too short, or the file cannot be read or created.
    """
    secret = signed_requests.of_environment()
    if secret:
        if len(secret) < _LEAST_CHARACTERS:
            raise LaunchError(
                f"{signed_requests.VARIABLE} has {len(secret)} characters, but it needs at least {_LEAST_CHARACTERS}. "
                + _REMEDY,
                status=2,
            )
        return secret
    if not several:
        return secrets.token_hex(_BYTES).encode()
    try:
        return _of_file(Path.home())
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        raise LaunchError(
            f"the launchers of several machines need a shared secret, but ~/{_FOLDER}/{_FILE} cannot be used: {error}. "
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
            new_file = folder.open_file(_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(new_file, "wb") as stream:
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
                raise AccessError(
                    f"{folder.path}/{_FILE} has {len(secret)} characters, but it needs {2 * _BYTES}. Delete the file"
                )
            time.sleep(0.1)
