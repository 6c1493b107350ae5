"""`Preemption`: after SIGTERM or SIGINT on any rank, all ranks agree on the step at which `fit` ends."""

from __future__ import annotations

import signal
import threading
import time
import types
from typing import Any, NamedTuple, NoReturn

from tf_sparse_ps._compat import _keras_fit
from tf_sparse_ps.collectives import Collectives, exit_report
from tf_sparse_ps.collectives.key_values import EXIT_REPORT, KeyValueStore
from tf_sparse_ps.errors import UnsupportedError

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Ranks ask each other for signals as often as this. One question takes 1.1 ms over Horovod and 5.7 ms over TensorFlow,
# measured with two ranks on two busy cores.
ASK_S = 1.0
MOST_STEPS = 1000  # between two questions
# A rank may get one SIGINT twice, for example from a launcher and from the terminal, but not this far apart.
_SAME_S = 1.0


class Agreed(NamedTuple):
    """The signal for which all ranks end `fit`.

    Attributes:
      number: The number of the signal.
      rank: The first rank that has got it.
      ends_epoch: Whether the step is the last one of its epoch, on all ranks.
    """

    number: int
    rank: int
    ends_epoch: bool

    @property
    def name(self) -> str:
        """The name of the signal."""
        return signal.Signals(self.number).name

    @property
    def status(self) -> int:
        """The exit status, as shells report it for a process that the signal has ended."""
        return 128 + self.number

    def farewell(self, epoch: int, batch: int, failure: Exception | None, *, resumes: bool) -> str:
        """Returns the message at the end of a preempted `fit`: what was saved, and what is lost.

        Args:
          epoch, batch: The position of the job.
          failure: Why it could not be saved; None: it was saved.
          resumes: Whether a restart resumes in the middle of an epoch.
        """
        text = f"rank {self.rank} got {self.name}, so this job ends with status {self.status}"
        if failure is not None:
            return f"{text}. {failure}. The same command resumes from the checkpoint before"
        if batch and not resumes:
            return (
                f"{text}. The same command resumes at the beginning of epoch {epoch}: the {batch} steps of this epoch "
                "are lost. Give fit checkpoint.dataset(...) to lose none"
            )
        return f"{text}. It was saved, and the same command resumes at batch {batch} of epoch {epoch}"


class Preemption:
    """Handles signals during `fit`, and agrees with the other ranks on the step at which they end it.

    A collective in each step would cost more than a signal is worth. So the ranks agree each time on the step at which
    they ask next: about `ASK_S` later, by rank 0's duration of the last steps.
    """

    def __init__(self) -> None:
        """Handles no signal yet."""
        self._received: int | None = None
        self._received_at = 0.0
        self._previous: dict[int, Any] = {}
        self._ranks: Collectives | None = None

    @staticmethod
    def check_thread() -> None:
        """Raises UnsupportedError outside of the main thread, where Python cannot handle signals."""
        if threading.current_thread() is not threading.main_thread():
            raise UnsupportedError(
                "Checkpoint(on_preemption=True) handles signals, and Python allows that in the main thread only. This "
                f"fit runs in thread {threading.current_thread().name!r}. Call fit in the main thread, or leave "
                "on_preemption out"
            )

    def begin(self, ranks: Collectives, updates: int) -> None:
        """Handles signals from now on, until `end` or the end of `fit`. Every rank calls it.

        Args:
          ranks: The job's collectives.
          updates: The updates that the optimizer has made so far, the same on all ranks.
        """
        self._ranks = ranks
        self._asked_after, self._asked_at = updates, time.monotonic()
        self._steps, self._ask_after = 1, updates + 1
        for number in SIGNALS:
            previous = signal.getsignal(number)
            if previous != signal.SIG_IGN:  # ignored signals stay ignored, for example in the background of a shell
                # Python cannot restore a handler that was not set in Python.
                self._previous[number] = signal.SIG_DFL if previous is None else previous
                signal.signal(number, self._handle)
        _keras_fit.at_end(self.end)

    def end(self) -> None:
        """Restores the handlers from before `begin`. They then get a signal on which the ranks have not agreed."""
        while self._previous:
            number, handler = self._previous.popitem()
            if signal.getsignal(number) == self._handle:  # or the program has set another one
                signal.signal(number, handler)
        received, self._received = self._received, None
        if received is not None:
            signal.raise_signal(received)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received, self._received_at = number, now
        elif number == signal.SIGINT and now > self._received_at + _SAME_S:
            self._received = None
            signal.default_int_handler(number, frame)

    def agreed(self, updates: int, *, ends_epoch: bool, now: bool = False) -> Agreed | None:
        """Returns the signal that any rank has got, or None. Every rank calls it between the same two steps.

        Args:
          updates: The updates that the optimizer has made so far, the same on all ranks.
          ends_epoch: Whether this rank's last step was the last one of its epoch.
          now: Whether to ask in any case.
        """
        assert self._ranks is not None
        if self._ranks.size == 1:
            answers = [(self._received, ends_epoch, 1)]
        elif now or updates >= self._ask_after:
            answer = (self._received, ends_epoch, self._steps_until_next(updates))
            answers = self._ranks.allgather_object(answer, "tsps.checkpoint.preemption")
            self._steps = answers[0][2]
            self._ask_after = updates + self._steps
        else:
            return None
        number, rank = next(((number, rank) for rank, (number, *_) in enumerate(answers) if number), (None, 0))
        if number is None:
            return None
        return Agreed(number, rank, all(ends for _, ends, _ in answers))

    def _steps_until_next(self, updates: int) -> int:
        now = time.monotonic()
        seconds_per_step = (now - self._asked_at) / max(updates - self._asked_after, 1)
        self._asked_after, self._asked_at = updates, now
        return int(min(max(ASK_S / max(seconds_per_step, 1e-9), 1), 2 * self._steps, MOST_STEPS))

    def leave(self, agreed: Agreed) -> NoReturn:
        """Restores the handlers, calls the program's own handler on ranks that got a signal, and ends the program.

        Raises:
          SystemExit: With the status of the signal.
        """
        received, self._received = self._received, None
        handler = self._previous.get(received) if received is not None else None
        self.end()
        KeyValueStore.of_launcher().write_first(
            EXIT_REPORT, exit_report.preempted(agreed.rank, agreed.name, agreed.status)
        )
        if callable(handler) and handler is not signal.default_int_handler:
            handler(received, None)
        raise SystemExit(agreed.status)
