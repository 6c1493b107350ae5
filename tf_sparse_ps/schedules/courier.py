"""Communication beside training: what a step hands over travels to the other ranks while the next steps compute.

A step puts a letter, a list of tensors, into one queue and takes what came of it out of another. Between them are
slots: each is a tf.function with operations of its own names, which takes a letter, communicates, and delivers, and a
thread that calls it again and again. With n slots n letters are under way at a time. The queues are TensorFlow's: a
step has no Python in it, and a wait holds none of TensorFlow's threads.

Letters are taken and delivered in the order in which they were put: for either, a token goes round among the slots.

Every rank takes part in every communication. Where it has no letter in time it may do so with a blank one (`Blanks`).
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import sys
import threading
import time
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
        self._letter, self._delivery = list(letter), list(delivery)
        self._carry, self._in_order, self._blanks = carry, in_order, blanks
        with tf.device("/CPU:0"):
            # More than can be outstanding: to put a letter, a closing one too, never waits.
            self._out = tf.queue.FIFOQueue(slots + 2, [one.dtype for one in letter])
            self._back = tf.queue.FIFOQueue(slots + 1, [one.dtype for one in delivery])
            slots = slots if blanks is None else 1
            self._slots = slots
            self._to_take = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(slots)]
            self._to_deliver = [tf.queue.FIFOQueue(1, [tf.bool]) for _ in range(slots)]
            self._to_take[0].enqueue([True])
            self._to_deliver[0].enqueue([True])
        self._failure = [tf.fill([size or 0 for size in one.shape], tf.cast(FAILED, one.dtype)) for one in delivery]
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(slot,), name=f"tsps-courier-{slot}", daemon=True)
            for slot in range(slots)
        ]

    def start(self) -> None:
        """Starts the threads, which call `carry` and `in_order` soon."""
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def put(self, letter: Sequence[tf.Tensor]) -> tf.Operation | None:
        """Hands a letter over. In a graph, or eagerly."""
        with tf.device("/CPU:0"):
            return self._out.enqueue(list(letter))

    def take(self) -> list[tf.Tensor]:
        """The next delivery, whose first tensor is a number above `FAILED`; waits for it. In a graph, or eagerly.

        Raises:
          tf.errors.InvalidArgumentError: When it runs: communication has failed.
        """
        with tf.device("/CPU:0"):
            delivery = _shaped(self._back.dequeue(), self._delivery)
            check = tf.debugging.assert_greater(delivery[0], tf.cast(FAILED, delivery[0].dtype), failures.BESIDE)
            with tf.control_dependencies([] if check is None else [check]):
                return [tf.identity(one) for one in delivery]

    def waiting(self) -> tf.Tensor:
        """How many deliveries can be taken without a wait, int32."""
        with tf.device("/CPU:0"):
            return tf.reshape(self._back.size(), [])

    def close(self) -> None:
        """Takes no more letters, and ends the threads when those under way have been delivered: others wait for them.

        After an uncaught error it does not wait.
        """
        self._closed = True
        for queue in (self._out, *self._to_take):
            queue.close(cancel_pending_enqueues=True)
        deadline = time.monotonic() + (_JOIN_S if getattr(sys, "last_value", None) is None else 0.0)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stop()

    def _stop(self) -> None:
        for queue in (self._out, self._back, *self._to_take, *self._to_deliver):
            queue.close(cancel_pending_enqueues=True)

    def _work(self, slot: int) -> None:
        try:
            if self._blanks is None:
                carry_own = self._function(lambda: self._carry_one(slot, self._next_letter))
                while not self._closed:
                    carry_own()
            else:
                self._work_with_blanks(self._blanks)
        except BaseException as error:
            if self._closed:
                return
            # The step that waits for the delivery fails; this says why.
            self._closed = True
            text = f"{type(error).__name__}: {error}"
            print(f"tf_sparse_ps: communication beside training failed: {text}", file=sys.stderr, flush=True)
            failures.failed_beside(error)
            # Not by closing the queue alone: Keras takes that error for the end of the data, and goes on.
            with contextlib.suppress(tf.errors.OpError):
                self._back.enqueue(self._failure)
            self._stop()

    def _work_with_blanks(self, blanks: Blanks) -> None:
        def carry(letter: Callable[[], list[tf.Tensor]]) -> Callable[[], tuple[tf.Tensor, tf.Tensor]]:
            return self._function(lambda: blanks.outcome(self._carry_one(0, letter)))

        carry_own, carry_blank = carry(self._next_letter), carry(lambda: blanks.make(False))
        carry_closing = carry(lambda: blanks.make(True))
        closing, idle = False, True
        while not self._closed:
            if closing:
                found = carry_closing()
            elif idle or self._comes_within(blanks.after_s):
                found = carry_own()
            else:
                found = carry_blank()
            closing, idle = (bool(one) for one in found)

    def _comes_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not int(self._out.size()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    @staticmethod
    def _function(body: Callable[[], Any]) -> Any:
        # Not the function itself: TensorFlow counts traces by code object, and would warn of retracing.
        return tf.function(functools.partial(body), autograph=False)

    def _next_letter(self) -> list[tf.Tensor]:
        return _shaped(self._out.dequeue(), self._letter)

    def _carry_one(self, slot: int, take: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
        following = (slot + 1) % self._slots
        with tf.device("/CPU:0"):
            with tf.control_dependencies([self._to_take[slot].dequeue()]):
                letter = take()
            # Whatever variables it reads, too, it reads when the letter is there.
            with tf.control_dependencies(letter):
                letter = self._in_order(letter)
            with tf.control_dependencies(letter):
                self._to_take[following].enqueue([True])
            delivery = self._carry(letter, slot)
            with tf.control_dependencies(delivery):
                turn = self._to_deliver[slot].dequeue()
            with tf.control_dependencies([turn]):
                delivered = self._back.enqueue(delivery)
            with tf.control_dependencies([delivered]):
                self._to_deliver[following].enqueue([True])
        return delivery


def _shaped(tensors: tf.Tensor | list[tf.Tensor], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    found = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    for tensor, spec in zip(found, specs, strict=True):
        if not tf.executing_eagerly():
            tensor.set_shape(spec.shape)
    return found
