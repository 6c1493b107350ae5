"""Lookup and step of a Keras layer under TensorFlow, for the peers that are such layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks import harness, steps
from benchmarks.peers import Calls, Work


def set_threads(threads: int) -> None:
    """Sets TensorFlow's numbers of threads. It must be called first."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def calls(layer: Any, optimizer: Any, work: Work, prepare: Callable[[Callable[[Any, Any], Any]], None]) -> Calls:
    """Returns a traced lookup, and a traced step: lookup, backward with given output gradients, update.

    Args:
        layer: A layer of ids, which is built.
        optimizer: An object with `apply_gradients`.
        work: The batches, which take turns.
        prepare: A function of the step, which inserts rows before anything is measured.
    """
    look, step = steps.lookup(layer), steps.train_step(layer, optimizer)
    prepare(step)
    next_ids = harness.Cycle([tf.constant(batch) for batch in work.ids])
    next_gradients = harness.Cycle([tf.constant(batch) for batch in work.gradients])
    return lambda: look(next_ids()), lambda: step(next_ids(), next_gradients())


def all_rows(work: Work) -> Callable[[Callable[[Any, Any], Any]], None]:
    """Returns a function that inserts all rows of a table."""
    return lambda step: steps.fill(step, work.rows, work.gradients[0].shape[-1])


def all_batches(work: Work) -> Callable[[Callable[[Any, Any], Any]], None]:
    """Returns a function that inserts the rows of the batches, in any number of tables."""

    def prepare(step: Callable[[Any, Any], Any]) -> None:
        for ids in work.ids:
            step(tf.constant(ids), tf.constant(work.gradients[0]))

    return prepare


def no_rows(_: Callable[[Any, Any], Any]) -> None:
    """Inserts nothing, for tables that have all rows from the beginning."""
