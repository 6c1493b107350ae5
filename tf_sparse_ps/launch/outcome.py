"""`Outcome`: how a job ended, which rank failed first, and the launcher's message about it."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from collections.abc import Mapping, Sequence

from tf_sparse_ps.collectives import exit_report as exit_reports

_SIGNALS = 128  # shells report 128 + N for a process that signal N has ended


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why the first launcher ended its ranks.

    Attributes:
      node: The number of this launcher's node.
      rank: The rank that failed; None: no rank failed.
      status: The failed rank's status in the form of `subprocess.Popen.returncode`; otherwise the launcher's exit
        status.
      text: A message, if no rank failed.
    """

    node: int
    rank: int | None
    status: int
    text: str = ""

    @classmethod
    def of(cls, text: str) -> Cause:
        """Returns the object that `dump` has turned into a text."""
        return cls(**json.loads(text))

    @classmethod
    def interrupted(cls, node: int, number: int) -> Cause:
        """Returns the cause for a launcher that got a signal.

        Args:
          node: The number of the launcher's node.
          number: The number of the signal.
        """
        return cls(node, None, _SIGNALS + number, f"the launcher of node {node} got {signal.Signals(number).name}")

    @property
    def is_signal(self) -> bool:
        """Whether a launcher got a signal."""
        return self.rank is None and self.status > _SIGNALS

    def dump(self) -> str:
        """Returns this object as a text, for the key-value store."""
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class NodeEnd:
    """How the ranks of a node have ended.

    Attributes:
      statuses: The status of each rank, in the form of `subprocess.Popen.returncode`.
      own: The ranks that failed before the launcher ended them, in the order in which they ended.
      lines: The last lines of these ranks, by rank.
    """

    statuses: Mapping[int, int]
    own: Sequence[int]
    lines: Mapping[int, Sequence[str]]

    @classmethod
    def of(cls, text: str) -> NodeEnd:
        """Returns the object that `dump` has turned into a text."""
        fields = json.loads(text)
        return cls(
            {int(rank): status for rank, status in fields["statuses"].items()},
            fields["own"],
            {int(rank): lines for rank, lines in fields["lines"].items()},
        )

    def dump(self) -> str:
        """Returns this object as a text, for the key-value store."""
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job has ended.

    Attributes:
      status: The exit status of the launchers.
      rank: The rank that failed first; None: no rank failed.
      text: The description of the end; empty if all ranks ended without an error.
      lines: The last lines of the rank that failed first.
    """

    status: int = 0
    rank: int | None = None
    text: str = ""
    lines: Sequence[str] = ()

    @classmethod
    def of(cls, text: str) -> Outcome:
        """Returns the object that `dump` has turned into a text."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """Returns this object as a text, for the key-value store."""
        return json.dumps(dataclasses.asdict(self))

    def told(self, *, shown: bool) -> str:
        """Returns the message for the user.

        Args:
          shown: Whether the terminal already shows the lines of the rank that failed first.
        """
        if self.rank is None:
            return self.text
        if shown:
            return f"{self.text}: see what it wrote above"
        if not self.lines:
            return f"{self.text}; it wrote nothing to stderr"
        return "\n".join([f"{self.text} (its last lines):", *self.lines])


def decide(cause: Cause | None, ends: Mapping[int, NodeEnd], exit_report: str) -> Outcome:
    """Returns the outcome of a job whose ranks have all ended.

    Args:
      cause: Why the launchers ended the ranks; None: they did not.
      ends: The ends by node, without the nodes that are lost.
      exit_report: The exit report of a rank, which begins with the number of the rank; "": no rank has reported.
    """
    if cause is None:
        return Outcome()
    if cause.rank is None:
        return Outcome(cause.status, None, cause.text)
    if reason := exit_reports.preempted_by(exit_report, cause.status):
        return Outcome(cause.status, None, f"the job ended with status {cause.status} because {reason}")
    node, rank, status = cause.node, cause.rank, cause.status
    # Other ranks may have ended before the rank that caused their end. That rank has written the exit report.
    match = re.match(r"rank (\d+)\b", exit_report)
    reporter = None if match is None else int(match[1])
    for k, end in ends.items():
        if reporter is not None and reporter in end.own and end.statuses[reporter] != 0:
            node, rank, status = k, reporter, end.statuses[reporter]
    lines = list(ends[node].lines.get(rank, ())) if node in ends else []
    where = f" (node {node})" if len(ends) > 1 or node > 0 else ""
    text = f"rank {rank}{where} failed first, {how(status)}"
    if exit_report and not any(exit_report in line for line in lines) and reporter != rank:
        text += f", for this reason: {exit_report}"
    return Outcome(exit_status(status), rank, text, lines)


def how(status: int) -> str:
    """Describes a process's end.

    Args:
      status: The status in the form of `subprocess.Popen.returncode`.
    """
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-status}"


def exit_status(status: int) -> int:
    """Returns the exit status that shells report for a status in the form of `subprocess.Popen.returncode`."""
    return status if status >= 0 else _SIGNALS - status
