"""Why a job ended before its time, and how that is told."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Cause:
    """What made a launcher end its ranks first.

    Attributes:
      node: Its node.
      rank: Of the rank that failed; None: none did.
      status: The rank's, as `subprocess.Popen.returncode` has it; else the launcher's exit status.
      text: What happened, where no rank failed.
    """

    node: int
    rank: int | None
    status: int
    text: str = ""

    @classmethod
    def of(cls, text: str) -> Cause:
        """The inverse of `dump`."""
        return cls(**json.loads(text))

    @classmethod
    def interrupted(cls, node: int, number: int) -> Cause:
        """The launcher of a node got a signal."""
        return cls(node, None, 128 + number, f"the launcher of node {node} got {signal.Signals(number).name}")

    def dump(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class NodeEnd:
    """How the ranks of a node have ended.

    Attributes:
      statuses: By rank, as `subprocess.Popen.returncode` has them.
      own: Ranks that ended without being told to.
      lines: The last lines of those that failed, by rank.
    """

    statuses: Mapping[int, int]
    own: Sequence[int]
    lines: Mapping[int, Sequence[str]]

    @classmethod
    def of(cls, text: str) -> NodeEnd:
        """The inverse of `dump`."""
        found = json.loads(text)
        return cls(
            {int(rank): status for rank, status in found["statuses"].items()},
            found["own"],
            {int(rank): lines for rank, lines in found["lines"].items()},
        )

    def dump(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
      status: The launchers' exit status.
      rank: That failed first; None: none did.
      text: What happened, in words; empty if all is well.
      lines: The last lines of that rank.
    """

    status: int = 0
    rank: int | None = None
    text: str = ""
    lines: Sequence[str] = ()

    @classmethod
    def of(cls, text: str) -> Outcome:
        """The inverse of `dump`."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))

    def told(self, *, shown: bool) -> str:
        """For the user.

        Args:
          shown: That rank's lines are in the terminal already.
        """
        if self.rank is None:
            return self.text
        if shown:
            return f"{self.text}: see what it wrote above"
        if not self.lines:
            return f"{self.text}; it wrote nothing to stderr"
        return "\n".join([f"{self.text} (its last lines):", *self.lines])


def decide(cause: Cause | None, ends: Mapping[int, NodeEnd], exit_report: str) -> Outcome:
    """What became of a job whose ranks have all ended.

    Args:
      cause: Why they were ended; None: they were not.
      ends: By node; a node that is lost has none.
      exit_report: What a rank has said of its own end; it names the rank in the beginning.
    """
    if cause is None:
        return Outcome()
    if cause.rank is None:
        return Outcome(cause.status, None, cause.text)
    node, rank, status = cause.node, cause.rank, cause.status
    # Others may be faster to end than the one that made them end, and that knows why.
    match = re.match(r"rank (\d+)\b", exit_report)
    named = None if match is None else int(match[1])
    for k, end in ends.items():
        if named is not None and named in end.own and end.statuses[named] != 0:
            node, rank, status = k, named, end.statuses[named]
    lines = list(ends[node].lines.get(rank, ())) if node in ends else []
    where = f" (node {node})" if len(ends) > 1 or node > 0 else ""
    text = f"rank {rank}{where} failed first, {how(status)}"
    if exit_report and not any(exit_report in line for line in lines) and named != rank:
        text += f", for this reason: {exit_report}"
    return Outcome(exit_status(status), rank, text, lines)


def how(status: int) -> str:
    """A process's end in words."""
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-status}"


def exit_status(status: int) -> int:
    """As shells number it."""
    return status if status >= 0 else 128 - status
