"""Turns of several processes that measure one after another: see `benchmarks.against`."""

from __future__ import annotations

from typing import IO, Protocol


class Turns(Protocol):
    """Waits for this process's turn. A suite calls it before each of its blocks."""

    def next(self) -> None:
        """Ends this process's turn, and returns when the next one begins."""


class Alone:
    """The turns of a process that measures alone."""

    def next(self) -> None:
        """Returns at once."""


class Baton:
    """Turns that another process controls.

    Args:
        out: The stream on which "ready" is written when a turn ends.
        back: The stream on which a line arrives when the next turn begins.
    """

    def __init__(self, out: IO[str], back: IO[str]) -> None:
        self._out, self._back = out, back

    def next(self) -> None:
        """See `Turns.next`.

        Raises:
            SystemExit: There is no other turn, because the controlling process has closed the stream.
        """
        print("ready", file=self._out, flush=True)
        if not self._back.readline():
            raise SystemExit("no more turns are given")
