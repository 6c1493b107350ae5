"""`Output`: shows the output of the ranks, writes their logs, and keeps their last lines.

Rank 0's stderr goes through the launcher, which removes TensorFlow's start-up lines. Without a log, its stdout is the
launcher's own. If stdout and stderr are the same file, as in a terminal, both go through the launcher in one stream, so
that their order is kept. If the launcher writes to a terminal, this stream is a terminal to the rank, too, because many
programs draw no progress bar, or another one, into a pipe.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import os
import pty
import selectors
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_sparse_ps.errors import LaunchError
from tf_sparse_ps.folders import Folder, Trust, open_regular
from tf_sparse_ps.launch.start_up_lines import StartUpFilter, is_start_up

KEPT_LINES = 40
_LONGEST_LINE = 2000  # bytes of a line that are kept
_LONGEST_REST = 1 << 16  # bytes of a line without an end
_PART = 1 << 16


class Lines:
    """Splits bytes into lines, without TensorFlow's start-up lines.

    If a line was overwritten after a \\r, only its last version is passed on, as a terminal finally shows it.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        """Sets the function that gets each line, without its end."""
        self._take, self._rest = take, b""

    def __call__(self, part: bytes) -> None:
        """Takes the next bytes."""
        *lines, rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._pass(line)
        # Text that a \r overwrites is dropped immediately, so that a progress bar does not accumulate.
        start = rest.rstrip(b"\r").rfind(b"\r") + 1
        self._rest = rest[start:]
        if len(self._rest) > _LONGEST_REST:
            self.end()

    def end(self) -> None:
        """Handles the end of the bytes."""
        if self._rest:
            self._pass(self._rest)
            self._rest = b""

    def _pass(self, line: bytes) -> None:
        visible = line.rstrip(b"\r").rpartition(b"\r")[2]
        if not is_start_up(visible):
            self._take(visible)


def say(text: str, *, after_ranks: bool = False) -> None:
    """Prints a message of the launcher to standard error.

    Args:
      text: One or more lines.
      after_ranks: Whether the message starts a new line, because a rank may have left a progress bar.
    """
    begin = "\r\n" if after_ranks and sys.stderr.isatty() else ""
    print(f"{begin}tf-sparse-ps: {text}", file=sys.stderr, flush=True)


class Output:
    """The output of all ranks of this node."""

    def __init__(self, *, log_dir: Path | None, all_ranks: bool) -> None:
        """Makes the folder of the logs.

        Args:
          log_dir: The folder for a log of each rank; None: no logs are written.
          all_ranks: Whether the output of all ranks is shown, each line with its rank.

        Raises:
          LaunchError: The folder cannot be made.
        """
        self._log_dir, self._all_ranks = log_dir, all_ranks
        self._selector = selectors.DefaultSelector()
        self._tails: dict[int, collections.deque[str]] = {}
        self._writers: list[int] = []
        self._logs: list[int] = []
        self._terminals: list[tuple[int, int]] = []
        self._thread: threading.Thread | None = None
        if log_dir is not None:
            try:
                Folder.open(log_dir, Trust.GROUP, make=True).close()
            except OSError as error:
                raise LaunchError(
                    f"--log-dir: cannot make {log_dir}: {error.strerror or error}. Choose another folder", status=2
                ) from None

    @property
    def buffered(self) -> bool:
        """Whether the output goes into a pipe or file, where Python programs would buffer lines."""
        return self._all_ranks or self._log_dir is not None

    def shown(self, rank: int) -> bool:
        """Returns whether the terminal shows a rank's stderr."""
        return rank == 0 or self._all_ranks

    def last_lines(self, rank: int) -> list[str]:
        """Returns the last lines of a rank's stderr, and of its stdout if both are the same file."""
        return list(self._tails.get(rank, ()))

    def streams(self, rank: int) -> tuple[int, int, int]:
        """Returns stdin, stdout and stderr for a rank, as arguments of `subprocess.Popen`.

        Raises:
          LaunchError: The log cannot be written.
        """
        first = rank == 0
        stdin = sys.__stdin__.fileno() if first and sys.__stdin__ is not None else subprocess.DEVNULL
        log = self._log(rank)
        if first and not self._all_ranks and os.path.sameopenfile(1, 2):
            both = self._stream(rank, 2, log)
            return stdin, both, both
        return stdin, 1 if first and not self.buffered else self._stream(rank, 1, log), self._stream(rank, 2, log)

    def resize(self) -> None:
        """Gives the ranks' terminals the new size of the launcher's terminal."""
        for like, descriptor in self._terminals:
            _copy_size(like, descriptor)

    def start(self) -> None:
        """Starts to read the output. It is called after the last rank was started."""
        for writer in self._writers:
            os.close(writer)
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Waits for the end of the output, at most `timeout_s`, because a child of a rank may keep it open."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _log(self, rank: int) -> int | None:
        if self._log_dir is None:
            return None
        path = self._log_dir / f"rank-{rank}.log"
        try:
            self._logs.append(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644))
        except OSError as error:
            raise LaunchError(
                f"--log-dir: cannot write {path}: {error.strerror or error}. Choose another folder", status=2
            ) from None
        return self._logs[-1]

    def _stream(self, rank: int, number: int, log: int | None) -> int:
        """Returns the descriptor that a rank writes its stdout (1) or stderr (2) to."""
        sinks: list[Any] = []
        if log is not None:
            sinks.append(_Sink(log))
        if self._all_ranks:
            prefix, shown = b"[%d] " % rank, _Sink(number)
            sinks.append(Lines(lambda line: shown(prefix + line + b"\n")))
        elif rank == 0:
            sinks.append(StartUpFilter(_Sink(number)) if number == 2 else _Sink(number))
        if number == 2:
            tail = self._tails.setdefault(rank, collections.deque(maxlen=KEPT_LINES))
            sinks.append(Lines(lambda line: tail.append(line[:_LONGEST_LINE].decode(errors="replace"))))
        if not sinks:
            return subprocess.DEVNULL
        if rank == 0 and not self._all_ranks and os.isatty(number):
            reader, writer = _terminal(number)
            self._terminals.append((number, reader))
        else:
            reader, writer = os.pipe()
        self._selector.register(reader, selectors.EVENT_READ, sinks)
        self._writers.append(writer)
        return writer

    def _read(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select():
                part = b""
                with contextlib.suppress(OSError):  # a terminal whose last writer has ended
                    part = os.read(key.fd, _PART)
                for sink in key.data:
                    if part:
                        sink(part)
                    else:
                        sink.end()
                if not part:
                    self._selector.unregister(key.fd)
                    self._terminals = [(like, reader) for like, reader in self._terminals if reader != key.fd]
                    os.close(key.fd)


class _Sink:
    """Writes bytes to a descriptor until writing fails, because its reader has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def end(self) -> None:
        """Handles the end of the bytes."""

    def __call__(self, part: bytes) -> None:
        while part and self._descriptor is not None:
            try:
                part = part[os.write(self._descriptor, part) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                os.set_blocking(self._descriptor, True)
            except OSError as error:
                if error.errno != errno.EINTR:
                    self._descriptor = None


def _terminal(like: int) -> tuple[int, int]:
    """Makes a terminal with the size of another one, which passes bytes on unchanged.

    Returns:
      The descriptor that the launcher reads from, and the one that the rank writes to.
    """
    reader, writer = pty.openpty()
    settings = termios.tcgetattr(writer)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(writer, termios.TCSANOW, settings)
    _copy_size(like, reader)
    return reader, writer


def _copy_size(like: int, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
