"""The package's exceptions: one family, importable without TensorFlow.

    Error(RuntimeError)
      TableError         a table, its files or its group
      CollectivesError   an operation between ranks
      RankError          another rank died, stopped or did not come
      LaunchError        the launcher cannot start a job
      NotSavedError      a checkpoint could not be written

A wrong argument is a `ValueError`, as everywhere in Python; those that a table refuses are an `Error` too.

The classes below `TableError` derive also from the built-in exception that a caller would expect: a key out of range is
an `IndexError` and a `ValueError`, a full file system an `OSError`. The core's status codes become these classes in
`_table` (C++) and, for TensorFlow's errors, in `from_tensorflow`; nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Error(RuntimeError):
    """Base of this package's exceptions."""


class TableError(Error):
    """Base of the errors of tables; also raised for a broken invariant, which is a bug."""


class InvalidArgumentError(TableError, ValueError):
    """The arguments can never work: shapes, types, a gradient that is not finite."""


class NotFoundError(TableError, FileNotFoundError):
    """There is no such group, table or file."""


class TableExistsError(TableError, FileExistsError):
    """Something to be created is there already."""


class StateError(TableError):
    """A valid request in the wrong state: not the writer, another uuid, another optimizer."""


class KeyRangeError(TableError, IndexError, ValueError):
    """A key is outside a bounded table."""


class NoSpaceError(TableError, OSError):
    """No room: file system, cgroup, row numbers, or address range."""


class DamagedFileError(TableError, OSError):
    """A file is truncated, foreign, newer or damaged."""


class AccessError(TableError, PermissionError):
    """Another user's file, a symbolic link in the way, or a folder that cannot be written."""


class UnavailableError(TableError):
    """The writer died, or the table changes too fast to be read."""


class WaitTimeoutError(TableError, TimeoutError):
    """A wait ran out of time."""


class WriterLockedError(TableError, BlockingIOError):
    """Another process, or this process's TensorFlow ops, is the group's writer; or somebody is saving to the path."""


class UnsupportedError(TableError, ValueError):
    """Something that cannot work with shared tables, refused with the reason."""


class CollectivesError(Error):
    """A collective failed: a rank is gone or has shut down. Training cannot go on."""


class WrongSecretError(CollectivesError, ConnectionError):
    """The key-value store belongs to a job with another secret."""


class RankError(Error):
    """Base of what a training step can fail with because of another process."""


class RankDied(RankError):
    """A rank of this node is gone; the message names it, its process id and its step."""


class LeaderDied(RankDied):
    """The process that writes this node's tables is gone."""


class RankStopped(RankError):
    """A rank of this node has been stopped (SIGSTOP, a debugger) for longer than the others wait."""


class ExchangeFailed(RankError):
    """The ranks of this node could not merge their gradients; the message names the rank that did not come, or why."""


class RankLost(RankError):
    """A rank of any node has ended, or did not come; the message is what it or others have told all ranks."""


class NotSavedError(Error, OSError):
    """A checkpoint could not be written, on all ranks. Those before it are there, and training can go on."""


class PartNotSavedError(NotSavedError):
    """Another node has not written its part of a checkpoint. That node's leader knows why."""


class LaunchError(Error):
    """`tf-sparse-ps run` cannot start the job.

    Attributes:
      status: The launcher's exit status: 2 for a mistake in the arguments, of this launcher or another.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        """What is wrong, for the user."""
        super().__init__(text)
        self.status = status


BY_CODE: dict[str, type[TableError]] = {
    "invalid_argument": InvalidArgumentError,
    "not_found": NotFoundError,
    "already_exists": TableExistsError,
    "failed_precondition": StateError,
    "out_of_range": KeyRangeError,
    "resource_exhausted": NoSpaceError,
    "data_loss": DamagedFileError,
    "permission_denied": AccessError,
    "unavailable": UnavailableError,
    "deadline_exceeded": WaitTimeoutError,
    "aborted": WriterLockedError,
    "internal": TableError,
}

# tf.errors classes by name, so that this module needs no TensorFlow.
_BY_TENSORFLOW_CLASS: dict[str, type[TableError]] = {
    "InvalidArgumentError": InvalidArgumentError,
    "NotFoundError": NotFoundError,
    "AlreadyExistsError": TableExistsError,
    "FailedPreconditionError": StateError,
    "OutOfRangeError": KeyRangeError,
    "ResourceExhaustedError": NoSpaceError,
    "DataLossError": DamagedFileError,
    "PermissionDeniedError": AccessError,
    "UnavailableError": UnavailableError,
    "DeadlineExceededError": WaitTimeoutError,
    "AbortedError": WriterLockedError,
    "InternalError": TableError,
}


@contextlib.contextmanager
def from_tensorflow(what: str) -> Iterator[None]:
    """Turns a `tf.errors.OpError` raised inside into the class above that it came from.

    Args:
      what: What was being done; starts the message.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TableError):
            raise
        for cls in type(error).__mro__:
            if cls.__module__.startswith("tensorflow.") and cls.__name__ in _BY_TENSORFLOW_CLASS:
                message = getattr(error, "message", str(error))
                raise _BY_TENSORFLOW_CLASS[cls.__name__](f"{what}: {message}") from error
        raise
