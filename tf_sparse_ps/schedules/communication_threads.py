"""Communication beside training: what a step hands over travels to the other ranks while the next steps compute.

A step puts a message, a list of tensors, into one queue and takes its result out of another. Between them are channels:
each is a tf.function with operations of its own names, which takes a message, communicates, and returns the result, and
a thread that calls it again and again. With n channels n messages are under way at a time. The queues are
TensorFlow's: a step has no Python in it, and a wait holds none of TensorFlow's threads.

Messages are taken, and results returned, in the order in which the messages were put: for either, a token goes round
among the channels.

Every rank takes part in every communication. Where it has no message in time it may do so with an empty one
(`EmptyMessages`).

The threads belong to the optimizer's schedule, and hold no more than queues and traced functions. When it is garbage
they carry what was put, since the other ranks have put theirs, and end.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import dataclasses
import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import failures

# The number of a result that is none.
FAILED = -100
_JOIN_S = 30.0
_POLL_S = 0.001

Carry = Callable[[list[tf.Tensor], int], list[tf.Tensor]]
InOrder = Callable[[list[tf.Tensor]], list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class EmptyMessages:
    """How a rank takes part without a message of its own, by one channel.

    Attributes:
      after_s: For so long after the last result a message is waited for.
      make: An empty message; `closing`: after a closing one, when none of this rank's own will come.
      outcome: Of a result: whether this rank is closing, and whether nobody had anything to send. After that the
        next message is waited for however long it takes, so that ranks which rest send nothing.
    """

    after_s: float
    make: Callable[[bool], list[tf.Tensor]]
    outcome: Callable[[list[tf.Tensor]], tuple[tf.Tensor, tf.Tensor]]


class _Queues:
    """What messages travel on; all that the threads hold.

    Attributes:
      out, back: Queues of messages and results.
      channels: How many messages may be under way.
      closed: Threads end after what they are doing.
      ending: They end when `out` is empty.
    """

    def __init__(
        self, message: Sequence[tf.TensorSpec], result: Sequence[tf.TensorSpec], channels: int, room: int
    ) -> None:
        """`room`: more messages than can be outstanding: to put one, a closing one too, never waits."""
        self.channels, self.closed, self.ending = channels, False, False
        self._message, self._result = list(message), list(result)
        with tf.device("/CPU:0"):
            self.out = tf.queue.FIFOQueue(room, [one.dtype for one in message])
            self.back = tf.queue.FIFOQueue(room - 1, [one.dtype for one in result])
            self._to_take = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(channels)]
            self._to_return = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(channels)]
            self._to_take[0].enqueue([True])
            self._to_return[0].enqueue([True])
        self._failure = [tf.fill([size or 0 for size in one.shape], tf.cast(FAILED, one.dtype)) for one in result]

    def next_message(self) -> list[tf.Tensor]:
        """Waits for it."""
        return _shaped(self.out.dequeue(), self._message)

    def next_result(self) -> list[tf.Tensor]:
        """Waits for it."""
        return _shaped(self.back.dequeue(), self._result)

    def comes_within(self, seconds: float) -> bool:
        """Whether there is a message."""
        deadline = time.monotonic() + seconds
        while not int(self.out.size()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def carry_one(
        self, channel: int, take: Callable[[], list[tf.Tensor]], in_order: InOrder, carry: Carry
    ) -> list[tf.Tensor]:
        """One message's way by a channel, from `take` to the result, which is returned."""
        following = (channel + 1) % self.channels
        with tf.device("/CPU:0"):
            with tf.control_dependencies([self._to_take[channel].dequeue()]):
                message = take()
            # Whatever variables it reads, too, it reads when the message is there.
            with tf.control_dependencies(message):
                message = in_order(message)
            with tf.control_dependencies(message):
                self._to_take[following].enqueue([True])
            result = carry(message, channel)
            with tf.control_dependencies(result):
                turn = self._to_return[channel].dequeue()
            with tf.control_dependencies([turn]):
                returned = self.back.enqueue(result)
            with tf.control_dependencies([returned]):
                self._to_return[following].enqueue([True])
        return result

    def fail(self, error: BaseException) -> None:
        """The step that waits for the result fails; this says why."""
        self.closed = True
        text = f"{type(error).__name__}: {error}"
        print(f"tf_sparse_ps: communication beside training failed: {text}", file=sys.stderr, flush=True)
        failures.failed_beside(error)
        # Not by closing the queue alone: Keras takes that error for the end of the data, and goes on.
        with contextlib.suppress(tf.errors.OpError):
            self.back.enqueue(self._failure)
        self.stop()

    def end(self) -> None:
        """Ends the threads when all that was put has been returned."""
        self.ending = True
        self._close(self.out)

    def take_no_more(self) -> None:
        """Ends the channels that wait for a message: there are none."""
        self._close(*self._to_take)

    def close(self) -> None:
        """Ends the threads when what is under way has been returned."""
        self.closed = True
        self._close(self.out, *self._to_take, cancel=True)

    def stop(self) -> None:
        """Closes all queues."""
        self._close(self.out, self.back, *self._to_take, *self._to_return, cancel=True)

    @staticmethod
    def _close(*queues: Any, cancel: bool = False) -> None:
        for queue in queues:
            with contextlib.suppress(tf.errors.CancelledError):  # it is closed already
                queue.close(cancel_pending_enqueues=cancel)


class CommunicationThreads:
    """Carries messages, in order, with several under way."""

    def __init__(
        self,
        message: Sequence[tf.TensorSpec],
        result: Sequence[tf.TensorSpec],
        channels: int,
        in_order: InOrder,
        carry: Carry,
        empty_messages: EmptyMessages | None = None,
    ) -> None:
        """Makes the queues. Eager.

        Args:
          message, result: Types and shapes; an unknown dimension may differ between messages.
          channels: How many may be under way.
          in_order: Done to one message after another, while a channel is traced. Returns what `carry` gets.
          carry: Communicates: called with that and the channel's number, by which its operations are named. Returns the
            result. Messages may overtake each other in it.
          empty_messages: How to take part without a message; None: every message is waited for.
        """
        self._queues = queues = _Queues(message, result, channels if empty_messages is None else 1, channels + 2)
        trace = _tracing_of(queues, in_order, carry, empty_messages)
        # Each tracing in a list: a thread keeps its arguments to its end.
        self._threads = [
            threading.Thread(
                target=_work, args=(queues, channel, [trace]), name=f"tsps-communication-{channel}", daemon=True
            )
            for channel in range(queues.channels)
        ]

    def start(self) -> None:
        """Starts the threads, which call `carry` and `in_order` soon."""
        for thread in self._threads:
            thread.start()
        if not _started:
            atexit.unregister(_close_at_exit)  # before what was registered since is run
            atexit.register(_close_at_exit)
        _started.add(self)
        # Not where garbage is collected: closing a queue is an operation of TensorFlow's.
        weakref.finalize(self, _thread.start_new_thread, self._queues.end, ()).atexit = False  # type: ignore[misc]

    def put(self, message: Sequence[tf.Tensor]) -> tf.Operation | None:
        """Hands a message over. In a graph, or eagerly."""
        with tf.device("/CPU:0"):
            return self._queues.out.enqueue(list(message))

    def take(self) -> list[tf.Tensor]:
        """The next result, whose first tensor is a number above `FAILED`; waits for it. In a graph, or eagerly.

        Raises:
          tf.errors.InvalidArgumentError: When it runs: communication has failed.
        """
        with tf.device("/CPU:0"):
            result = self._queues.next_result()
            check = tf.debugging.assert_greater(result[0], tf.cast(FAILED, result[0].dtype), failures.BESIDE)
            with tf.control_dependencies([] if check is None else [check]):
                return [tf.identity(one) for one in result]

    def waiting(self) -> tf.Tensor:
        """How many results can be taken without a wait, int32."""
        with tf.device("/CPU:0"):
            return tf.reshape(self._queues.back.size(), [])

    def close(self) -> None:
        """Takes no more messages, and ends the threads when those under way have been returned: others wait for them.

        After an uncaught error it does not wait.
        """
        self._queues.close()
        deadline = time.monotonic() + (_JOIN_S if getattr(sys, "last_value", None) is None else 0.0)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._queues.stop()


_started: weakref.WeakSet[CommunicationThreads] = weakref.WeakSet()


def _close_at_exit() -> None:
    for threads in list(_started):
        threads.close()


# Makes, in a channel's thread, what the thread does from then on.
_Trace = Callable[[int], Callable[[], None]]


def _tracing_of(queues: _Queues, in_order: InOrder, carry: Carry, empty_messages: EmptyMessages | None) -> _Trace:
    def trace(channel: int) -> Callable[[], None]:
        def way_of(message: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
            return queues.carry_one(channel, message, in_order, carry)

        if empty_messages is None:
            carry_own = _traced(lambda: way_of(queues.next_message))
            return functools.partial(_carry_messages, queues, carry_own)

        def traced(message: Callable[[], list[tf.Tensor]]) -> Callable[[], Any]:
            return _traced(lambda: empty_messages.outcome(way_of(message)))

        own, empty, closing = (
            traced(message)
            for message in (queues.next_message, lambda: empty_messages.make(False), lambda: empty_messages.make(True))
        )
        return functools.partial(_carry_with_empty, queues, empty_messages.after_s, own, empty, closing)

    return trace


def _traced(body: Callable[[], Any]) -> Callable[[], Any]:
    # Not the function itself: TensorFlow counts traces by code object, and would warn of retracing.
    return tf.function(functools.partial(body), autograph=False).get_concrete_function()


def _work(queues: _Queues, channel: int, trace: list[_Trace]) -> None:
    try:
        trace.pop()(channel)()
    except BaseException as error:
        if isinstance(error, tf.errors.OutOfRangeError) and queues.ending:
            queues.take_no_more()
        elif not queues.closed:
            queues.fail(error)


def _carry_messages(queues: _Queues, carry_own: Callable[[], Any]) -> None:
    while not queues.closed:
        carry_own()


def _carry_with_empty(
    queues: _Queues,
    after_s: float,
    carry_own: Callable[[], Any],
    carry_empty: Callable[[], Any],
    carry_closing: Callable[[], Any],
) -> None:
    closing, idle = False, True
    while not queues.closed:
        if closing:
            found = carry_closing()
        elif idle or queues.comes_within(after_s):
            found = carry_own()
        elif queues.ending:
            found = (True, False)  # no message of this rank's will close the cycle
        else:
            found = carry_empty()
        closing, idle = (bool(one) for one in found)


def _shaped(tensors: tf.Tensor | list[tf.Tensor], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    found = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    for tensor, spec in zip(found, specs, strict=True):
        if not tf.executing_eagerly():
            tensor.set_shape(spec.shape)
    return found
