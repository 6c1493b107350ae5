"""Communication beside training: what a step hands over travels to the other ranks while the next steps compute.

A step puts a letter, a list of tensors, into one queue and takes what came of it out of another. Between them are
slots: each is a tf.function with operations of its own names, which takes a letter, communicates, and delivers, and a
thread that calls it again and again. With n slots n letters are under way at a time. The queues are TensorFlow's: a
step has no Python in it, and a wait holds none of TensorFlow's threads.

Letters are taken and delivered in the order in which they were put: for either, a token goes round among the slots.

Every rank takes part in every communication. Where it has no letter in time it may do so with a blank one (`Blanks`).

A courier goes with whoever has it, the optimizer: its threads hold no more than queues and traced functions. When it is
garbage they carry what was put, since the other ranks have put theirs, and end.
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

from tf_sparse_ps.training import failures

# The number of a delivery that is none.
FAILED = -100
_JOIN_S = 30.0
_POLL_S = 0.001

Carry = Callable[[list[tf.Tensor], int], list[tf.Tensor]]
InOrder = Callable[[list[tf.Tensor]], list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Blanks:
    """How a rank takes part without a letter of its own, by one slot.

    Attributes:
      after_s: For so long after the last delivery a letter is waited for.
      make: A blank letter; `closing`: after a closing one, when none of this rank's own will come.
      outcome: Of a delivery: whether this rank is closing, and whether nobody had anything to send. After that the
        next letter is waited for however long it takes, so that ranks which rest send nothing.
    """

    after_s: float
    make: Callable[[bool], list[tf.Tensor]]
    outcome: Callable[[list[tf.Tensor]], tuple[tf.Tensor, tf.Tensor]]


class _Road:
    """What letters travel on; all that the threads of a courier hold.

    Attributes:
      out, back: Queues of letters and deliveries.
      slots: How many letters may be under way.
      closed: Threads end after what they are doing.
      ending: They end when `out` is empty.
    """

    def __init__(
        self, letter: Sequence[tf.TensorSpec], delivery: Sequence[tf.TensorSpec], slots: int, room: int
    ) -> None:
        """`room`: more letters than can be outstanding: to put one, a closing one too, never waits."""
        self.slots, self.closed, self.ending = slots, False, False
        self._letter, self._delivery = list(letter), list(delivery)
        with tf.device("/CPU:0"):
            self.out = tf.queue.FIFOQueue(room, [one.dtype for one in letter])
            self.back = tf.queue.FIFOQueue(room - 1, [one.dtype for one in delivery])
            self._to_take = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(slots)]
            self._to_deliver = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(slots)]
            self._to_take[0].enqueue([True])
            self._to_deliver[0].enqueue([True])
        self._failure = [tf.fill([size or 0 for size in one.shape], tf.cast(FAILED, one.dtype)) for one in delivery]

    def next_letter(self) -> list[tf.Tensor]:
        """Waits for it."""
        return _shaped(self.out.dequeue(), self._letter)

    def next_delivery(self) -> list[tf.Tensor]:
        """Waits for it."""
        return _shaped(self.back.dequeue(), self._delivery)

    def comes_within(self, seconds: float) -> bool:
        """Whether there is a letter."""
        deadline = time.monotonic() + seconds
        while not int(self.out.size()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def carry_one(
        self, slot: int, take: Callable[[], list[tf.Tensor]], in_order: InOrder, carry: Carry
    ) -> list[tf.Tensor]:
        """One letter's way by a slot, from `take` to the delivery, which is returned."""
        following = (slot + 1) % self.slots
        with tf.device("/CPU:0"):
            with tf.control_dependencies([self._to_take[slot].dequeue()]):
                letter = take()
            # Whatever variables it reads, too, it reads when the letter is there.
            with tf.control_dependencies(letter):
                letter = in_order(letter)
            with tf.control_dependencies(letter):
                self._to_take[following].enqueue([True])
            delivery = carry(letter, slot)
            with tf.control_dependencies(delivery):
                turn = self._to_deliver[slot].dequeue()
            with tf.control_dependencies([turn]):
                delivered = self.back.enqueue(delivery)
            with tf.control_dependencies([delivered]):
                self._to_deliver[following].enqueue([True])
        return delivery

    def fail(self, error: BaseException) -> None:
        """The step that waits for the delivery fails; this says why."""
        self.closed = True
        text = f"{type(error).__name__}: {error}"
        print(f"tf_sparse_ps: communication beside training failed: {text}", file=sys.stderr, flush=True)
        failures.failed_beside(error)
        # Not by closing the queue alone: Keras takes that error for the end of the data, and goes on.
        with contextlib.suppress(tf.errors.OpError):
            self.back.enqueue(self._failure)
        self.stop()

    def end(self) -> None:
        """Ends the threads when all that was put has been delivered."""
        self.ending = True
        self._close(self.out)

    def take_no_more(self) -> None:
        """Ends the slots that wait for a letter: there are none."""
        self._close(*self._to_take)

    def close(self) -> None:
        """Ends the threads when what is under way has been delivered."""
        self.closed = True
        self._close(self.out, *self._to_take, cancel=True)

    def stop(self) -> None:
        """Closes all queues."""
        self._close(self.out, self.back, *self._to_take, *self._to_deliver, cancel=True)

    @staticmethod
    def _close(*queues: Any, cancel: bool = False) -> None:
        for queue in queues:
            with contextlib.suppress(tf.errors.CancelledError):  # it is closed already
                queue.close(cancel_pending_enqueues=cancel)


class Courier:
    """Carries letters, in order, with several under way."""

    def __init__(
        self,
        letter: Sequence[tf.TensorSpec],
        delivery: Sequence[tf.TensorSpec],
        slots: int,
        in_order: InOrder,
        carry: Carry,
        blanks: Blanks | None = None,
    ) -> None:
        """Makes the queues. Eager.

        Args:
          letter, delivery: Types and shapes; an unknown dimension may differ between letters.
          slots: How many may be under way.
          in_order: Done to one letter after another, while a slot is traced. Returns what `carry` gets.
          carry: Communicates: called with that and the slot's number, by which its operations are named. Returns the
            delivery. Letters may overtake each other in it.
          blanks: How to take part without a letter; None: every letter is waited for.
        """
        self._road = road = _Road(letter, delivery, slots if blanks is None else 1, slots + 2)
        trace = _tracing_of(road, in_order, carry, blanks)
        # Each tracing in a list: a thread keeps its arguments to its end.
        self._threads = [
            threading.Thread(target=_work, args=(road, slot, [trace]), name=f"tsps-courier-{slot}", daemon=True)
            for slot in range(road.slots)
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
        weakref.finalize(self, _thread.start_new_thread, self._road.end, ()).atexit = False  # type: ignore[misc]

    def put(self, letter: Sequence[tf.Tensor]) -> tf.Operation | None:
        """Hands a letter over. In a graph, or eagerly."""
        with tf.device("/CPU:0"):
            return self._road.out.enqueue(list(letter))

    def take(self) -> list[tf.Tensor]:
        """The next delivery, whose first tensor is a number above `FAILED`; waits for it. In a graph, or eagerly.

        Raises:
          tf.errors.InvalidArgumentError: When it runs: communication has failed.
        """
        with tf.device("/CPU:0"):
            delivery = self._road.next_delivery()
            check = tf.debugging.assert_greater(delivery[0], tf.cast(FAILED, delivery[0].dtype), failures.BESIDE)
            with tf.control_dependencies([] if check is None else [check]):
                return [tf.identity(one) for one in delivery]

    def waiting(self) -> tf.Tensor:
        """How many deliveries can be taken without a wait, int32."""
        with tf.device("/CPU:0"):
            return tf.reshape(self._road.back.size(), [])

    def close(self) -> None:
        """Takes no more letters, and ends the threads when those under way have been delivered: others wait for them.

        After an uncaught error it does not wait.
        """
        self._road.close()
        deadline = time.monotonic() + (_JOIN_S if getattr(sys, "last_value", None) is None else 0.0)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._road.stop()


_started: weakref.WeakSet[Courier] = weakref.WeakSet()


def _close_at_exit() -> None:
    for courier in list(_started):
        courier.close()


# Makes, in a slot's thread, what the thread does from then on.
_Trace = Callable[[int], Callable[[], None]]


def _tracing_of(road: _Road, in_order: InOrder, carry: Carry, blanks: Blanks | None) -> _Trace:
    def trace(slot: int) -> Callable[[], None]:
        def way_of(letter: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
            return road.carry_one(slot, letter, in_order, carry)

        if blanks is None:
            carry_own = _traced(lambda: way_of(road.next_letter))
            return functools.partial(_carry_letters, road, carry_own)

        def traced(letter: Callable[[], list[tf.Tensor]]) -> Callable[[], Any]:
            return _traced(lambda: blanks.outcome(way_of(letter)))

        own, blank, closing = (
            traced(letter) for letter in (road.next_letter, lambda: blanks.make(False), lambda: blanks.make(True))
        )
        return functools.partial(_carry_with_blanks, road, blanks.after_s, own, blank, closing)

    return trace


def _traced(body: Callable[[], Any]) -> Callable[[], Any]:
    # Not the function itself: TensorFlow counts traces by code object, and would warn of retracing.
    return tf.function(functools.partial(body), autograph=False).get_concrete_function()


def _work(road: _Road, slot: int, trace: list[_Trace]) -> None:
    try:
        trace.pop()(slot)()
    except BaseException as error:
        if isinstance(error, tf.errors.OutOfRangeError) and road.ending:
            road.take_no_more()
        elif not road.closed:
            road.fail(error)


def _carry_letters(road: _Road, carry_own: Callable[[], Any]) -> None:
    while not road.closed:
        carry_own()


def _carry_with_blanks(
    road: _Road,
    after_s: float,
    carry_own: Callable[[], Any],
    carry_blank: Callable[[], Any],
    carry_closing: Callable[[], Any],
) -> None:
    closing, idle = False, True
    while not road.closed:
        if closing:
            found = carry_closing()
        elif idle or road.comes_within(after_s):
            found = carry_own()
        elif road.ending:
            found = (True, False)  # no letter of this rank's will close the cycle
        else:
            found = carry_blank()
        closing, idle = (bool(one) for one in found)


def _shaped(tensors: tf.Tensor | list[tf.Tensor], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    found = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    for tensor, spec in zip(found, specs, strict=True):
        if not tf.executing_eagerly():
            tensor.set_shape(spec.shape)
    return found
