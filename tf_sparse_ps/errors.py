"""The package's exceptions: one family, importable without TensorFlow.

    Error(RuntimeError)
      TableError         a table, its files or its group
      CollectivesError   an operation between ranks
      RankError          another rank died, was stopped or did not respond
      LaunchError        the launcher cannot start a job
      NotSavedError      a checkpoint could not be written

A wrong argument raises `ValueError`, as everywhere in Python. If a table refuses it, the exception is an `Error` too.

Each subclass of `TableError` also derives from the built-in exception that a caller expects. For example, a key out of
range is an `IndexError` and a `ValueError`, and a full file system is an `OSError`. Two places translate the core's
status codes into these classes: `_table` (C++), and `from_tensorflow` for TensorFlow's errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Error(RuntimeError):
    """The base class of this package's exceptions."""


class TableError(Error):
    """The base class of errors of tables. It is also raised itself for a broken invariant, which is a bug."""


class InvalidArgumentError(TableError, ValueError):
    """The arguments can never work: shapes, types, a gradient that is not finite."""


class NotFoundError(TableError, FileNotFoundError):
    """A group, a table or a file does not exist."""


class TableExistsError(TableError, FileExistsError):
    """A group, a table or a file exists already and cannot be created."""


class StateError(TableError):
    """A valid request in the wrong state: this process is not the writer, or the uuid or the optimizer differs."""


class KeyRangeError(TableError, IndexError, ValueError):
    """A key is outside a bounded table."""


class NoSpaceError(TableError, OSError):
    """A limit is reached: space in the file system, memory of the cgroup, row numbers, or the address range."""


class DamagedFileError(TableError, OSError):
    """A file is truncated, damaged, of another kind, or written by a newer version."""


class AccessError(TableError, PermissionError):
    """A file belongs to another user, a path contains a symbolic link, or a folder cannot be written."""


class UnavailableError(TableError):
    """The writer died, or the table changes too fast to be read."""


class WaitTimeoutError(TableError, TimeoutError):
    """A wait timed out."""


class WriterLockedError(TableError, BlockingIOError):
    """Another writer has the group or path: another process, this process's TensorFlow ops, or a save in progress."""


class UnsupportedError(TableError, ValueError):
    """The request cannot work with shared tables. The message gives the reason."""


class CollectivesError(Error):
    """A collective failed, because a rank died or has shut down. Training cannot continue."""


class WrongSecretError(CollectivesError, ConnectionError):
    """The key-value store belongs to a job with another secret."""


class RankError(Error):
    """The base class of errors that other processes cause in a training step."""


class RankDied(RankError):
    """A rank of this node died. The message names the rank, its process id and its step."""


class LeaderDied(RankDied):
    """The process that writes this node's tables died."""


class RankStopped(RankError):
    """A rank of this node has been stopped (SIGSTOP, a debugger) for longer than the others wait."""


class ExchangeFailed(RankError):
    """The ranks of this node could not merge their gradients. The message names the reason or the missing rank."""


class RankLost(RankError):
    """A rank of any node has ended or does not respond. The message is the report that all ranks received."""


class NotSavedError(Error, OSError):
    """A checkpoint could not be written. All ranks raise it. Earlier checkpoints are kept; training can continue."""


class PartNotSavedError(NotSavedError):
    """Another node has not written its part of a checkpoint. That node's leader reports why."""


class LaunchError(Error):
    """`tf-sparse-ps run` cannot start the job.

    Attributes:
      status: The launcher's exit status: 2 if an argument of any launcher of the job is wrong.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        """Takes the message for the user, and the exit status."""
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

# The classes of tf.errors are looked up by name, so that this module does not import TensorFlow.
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
    """Turns a `tf.errors.OpError` that is raised inside into the class of this module for the same status code.

    Args:
      what: The operation in progress, which starts the message: "writing table <path>".
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
