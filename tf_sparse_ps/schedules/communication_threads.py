"""Threads that communicate with the other ranks while the next steps compute.

A step puts a message, a list of tensors, into one queue and takes its result out of another. Between the queues are
channels. Each channel is a tf.function with operations of its own names, which takes a message, communicates and
returns the result, and a thread that calls it again and again. With n channels, n messages are under way at a time. The
queues are TensorFlow's: a step has no Python in it, and a wait holds none of TensorFlow's threads.

The channels take messages, and return results, in the order in which the messages were put. For either, a token goes
from channel to channel.

Every rank takes part in every communication. A rank whose message is late may take part with an empty one
(`EmptyMessages`).

The threads belong to the state of the optimizer's schedule, and hold nothing but queues and traced functions. When that
state is garbage, the threads carry the messages that were put, since the other ranks have put theirs, and end.
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
from tf_sparse_ps._compat import _tensorflow

# The number in a result that stands for a failure.
FAILED = -100
_JOIN_S = 30.0
_POLL_S = 0.001

Carry = Callable[[list[tf.Tensor], int], list[tf.Tensor]]
InOrder = Callable[[list[tf.Tensor]], list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class EmptyMessages:
    """How a rank takes part in communications without a message of its own. There is then one channel.

    Attributes:
      after_s: Seconds that a rank waits for its next message after the last result.
      make: Makes an empty message. `make(True)` makes a closing one, for a rank that has closed and sends no more.
      outcome: Returns for a result whether this rank is closing, and whether no rank had anything to send. In the
        latter case the wait for the next message has no limit, so that ranks that rest send nothing.
    """

    after_s: float
    make: Callable[[bool], list[tf.Tensor]]
    outcome: Callable[[list[tf.Tensor]], tuple[tf.Tensor, tf.Tensor]]


class _Queues:
    """The queues between steps and channels: all that the threads hold.

    Attributes:
      out, back: The queues of messages and of results.
      channels: The number of messages that may be under way.
      closed: The threads end after what they are doing.
      ending: The threads end when `out` is empty.
    """

    def __init__(
        self, message: Sequence[tf.TensorSpec], result: Sequence[tf.TensorSpec], channels: int, capacity: int
    ) -> None:
        """Makes the queues. `capacity` exceeds the number of outstanding messages, so that putting one never waits."""
        self.channels, self.closed, self.ending = channels, False, False
        self._message, self._result = list(message), list(result)
        with tf.device("/CPU:0"):
            self.out = tf.queue.FIFOQueue(capacity, [spec.dtype for spec in message])
            self.back = tf.queue.FIFOQueue(capacity - 1, [spec.dtype for spec in result])
            self._to_take = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(channels)]
            self._to_return = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(channels)]
            self._to_take[0].enqueue([True])
            self._to_return[0].enqueue([True])
        self._failure = [tf.fill([size or 0 for size in spec.shape], tf.cast(FAILED, spec.dtype)) for spec in result]

    def next_message(self) -> list[tf.Tensor]:
        """Waits for the next message and returns it."""
        return _shaped(self.out.dequeue(), self._message)

    def next_result(self) -> list[tf.Tensor]:
        """Waits for the next result and returns it."""
        return _shaped(self.back.dequeue(), self._result)

    def comes_within(self, seconds: float) -> bool:
        """Waits for a message for at most so many seconds. Returns whether there is one."""
        deadline = time.monotonic() + seconds
        while not int(self.out.size()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def carry_one(
        self, channel: int, take: Callable[[], list[tf.Tensor]], in_order: InOrder, carry: Carry
    ) -> list[tf.Tensor]:
        """Passes the message that `take` returns through a channel. Returns the result, which is in `back`, too."""
        following = (channel + 1) % self.channels
        with tf.device("/CPU:0"):
            with tf.control_dependencies([self._to_take[channel].dequeue()]):
                message = take()
            # `in_order` reads variables, if it reads any, when the message is there.
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
        """Prints the error, and makes the step that waits for the result fail."""
        self.closed = True
        text = f"{type(error).__name__}: {error}"
        print(f"tf_sparse_ps: communication in the background failed: {text}", file=sys.stderr, flush=True)
        failures.failed_beside(error)
        # Closing the queue alone is not enough: Keras takes that error for the end of the data, and continues.
        with contextlib.suppress(tf.errors.OpError):
            self.back.enqueue(self._failure)
        self.stop()

    def end(self) -> None:
        """Ends the threads when the results of all messages are there."""
        self.ending = True
        self._close(self.out)

    def take_no_more(self) -> None:
        """Ends the channels that wait for their turn to take a message: no message will come."""
        self._close(*self._to_take)

    def close(self) -> None:
        """Ends the threads when the results of the messages under way are there."""
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
    """Threads that carry messages in order, several at a time."""

    def __init__(
        self,
        message: Sequence[tf.TensorSpec],
        result: Sequence[tf.TensorSpec],
        channels: int,
        in_order: InOrder,
        carry: Carry,
        empty_messages: EmptyMessages | None = None,
    ) -> None:
        """Makes the queues and the threads. Eager.

        Args:
          message, result: Types and shapes of the tensors. An unknown dimension may differ between messages.
          channels: The number of messages that may be under way.
          in_order: Processes one message after another. It is called while a channel is traced, and returns the message
            for `carry`.
          carry: Communicates, and returns the result. It is called with that message and the number of the channel,
            which must be in the names of its operations. Messages may overtake each other in it.
          empty_messages: How this rank takes part without a message. None: it waits for every message.
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
        """Starts the threads, which call `in_order` and `carry` soon."""
        _tensorflow.let_threads_fail_together()  # closing a queue fails in all threads that wait for it
        for thread in self._threads:
            thread.start()
        if not _started:
            atexit.unregister(_close_at_exit)  # so that it runs before functions that were registered since
            atexit.register(_close_at_exit)
        _started.add(self)
        # In a thread, not where garbage is collected: closing a queue is an operation of TensorFlow's.
        weakref.finalize(self, _thread.start_new_thread, self._queues.end, ()).atexit = False  # type: ignore[misc]

    def put(self, message: Sequence[tf.Tensor]) -> tf.Operation | None:
        """Hands a message over. Returns the operation in a graph, and None eagerly."""
        with tf.device("/CPU:0"):
            return self._queues.out.enqueue(list(message))

    def take(self) -> list[tf.Tensor]:
        """Waits for the next result and returns it. Its first tensor is a number above `FAILED`.

        Raises:
          tf.errors.InvalidArgumentError: When it runs: communication has failed.
        """
        with tf.device("/CPU:0"):
            result = self._queues.next_result()
            check = tf.debugging.assert_greater(result[0], tf.cast(FAILED, result[0].dtype), failures.BESIDE)
            with tf.control_dependencies([] if check is None else [check]):
                return [tf.identity(tensor) for tensor in result]

    def waiting(self) -> tf.Tensor:
        """Returns the number of results that can be taken without a wait, int32 scalar."""
        with tf.device("/CPU:0"):
            return tf.reshape(self._queues.back.size(), [])

    def close(self) -> None:
        """Takes no more messages, waits for the results of those under way, and ends the threads.

        The other ranks wait for these messages. After an uncaught error this process does not wait.
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


# Called in a channel's thread, with the channel's number. Returns what the thread does from then on.
_Trace = Callable[[int], Callable[[], None]]


def _tracing_of(queues: _Queues, in_order: InOrder, carry: Carry, empty_messages: EmptyMessages | None) -> _Trace:
    def trace(channel: int) -> Callable[[], None]:
        def pass_on(take: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
            return queues.carry_one(channel, take, in_order, carry)

        if empty_messages is None:
            carry_next = _traced(lambda: pass_on(queues.next_message))
            return functools.partial(_carry_messages, queues, carry_next)

        def traced(take: Callable[[], list[tf.Tensor]]) -> Callable[[], Any]:
            return _traced(lambda: empty_messages.outcome(pass_on(take)))

        carry_next, carry_empty, carry_closing = (
            traced(take)
            for take in (queues.next_message, lambda: empty_messages.make(False), lambda: empty_messages.make(True))
        )
        return functools.partial(
            _carry_with_empty, queues, empty_messages.after_s, carry_next, carry_empty, carry_closing
        )

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


def _carry_messages(queues: _Queues, carry_next: Callable[[], Any]) -> None:
    while not queues.closed:
        carry_next()


def _carry_with_empty(
    queues: _Queues,
    after_s: float,
    carry_next: Callable[[], Any],
    carry_empty: Callable[[], Any],
    carry_closing: Callable[[], Any],
) -> None:
    closing, idle = False, True
    while not queues.closed:
        if closing:
            outcome = carry_closing()
        elif idle or queues.comes_within(after_s):
            outcome = carry_next()
        elif queues.ending:
            outcome = (True, False)  # no message of this rank's will close the cycle
        else:
            outcome = carry_empty()
        closing, idle = (bool(flag) for flag in outcome)


def _shaped(tensors: tf.Tensor | list[tf.Tensor], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    dequeued = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    for tensor, spec in zip(dequeued, specs, strict=True):
        if not tf.executing_eagerly():
            tensor.set_shape(spec.shape)
    return dequeued
