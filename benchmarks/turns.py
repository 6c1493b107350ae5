"""Whose turn it is to work, where several processes measure one after another: see `benchmarks.against`."""

from __future__ import annotations

from typing import IO, Protocol


class Turns(Protocol):
    """What a suite asks before each of its blocks."""

    def next(self) -> None:
        """Ends this process's turn, and returns when the next one begins."""


class Alone:
    """No other process measures."""

    def next(self) -> None:
        """Returns at once."""


class Baton:
    """Turns that another process gives.

    Args:
        out: where "ready" is written when a turn ends.
        back: where a line comes when the next one begins.
    """

    def __init__(self, out: IO[str], back: IO[str]) -> None:
        self._out, self._back = out, back

    def next(self) -> None:
        """As `Turns.next`.

        Raises:
            SystemExit: there will be no other turn: who gives them is gone.
        """
        print("ready", file=self._out, flush=True)
        if not self._back.readline():
            raise SystemExit("no more turns are given")
