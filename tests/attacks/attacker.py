"""Another local user: runs functions in processes that have given up root's rights."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator

USER = 65534
_FAILED = 99


def _drop_rights() -> None:
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    os.umask(0)


def _fork(attack: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 0
        try:
            _drop_rights()
            attack()
        except BaseException:
            traceback.print_exc()
            status = _FAILED
        os._exit(status)
    return pid


def attack(function: Callable[[], object]) -> bool:
    """Runs a function as the other user, and waits until it ends.

    Returns:
      Whether it ended without an exception.
    """
    _, status = os.waitpid(_fork(function), 0)
    return os.waitstatus_to_exitcode(status) == 0


@contextlib.contextmanager
def attacking(function: Callable[[], object]) -> Iterator[None]:
    """Runs a function as the other user during the block, and kills it at the end."""
    pid = _fork(function)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
