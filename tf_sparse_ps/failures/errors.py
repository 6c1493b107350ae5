"""What a training step can fail with because of another process."""

from __future__ import annotations


class RankDied(RuntimeError):
    """A rank of this node is gone; the message names it, its process id and its step."""


class LeaderDied(RankDied):
    """The process that writes this node's tables is gone."""


class RankStopped(RuntimeError):
    """A rank of this node has been stopped (SIGSTOP, a debugger) for longer than the others wait."""


class ExchangeFailed(RuntimeError):
    """The ranks of this node could not merge their gradients; the message names the rank that did not come, or why."""


class RankLost(RuntimeError):
    """A rank of any node has ended, or did not come; the message is what it or others have told all ranks."""
