"""Orders a training step in its graph: after the data, and after earlier steps in the same graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_STEP_NUMBERS = "_tsps_step_numbers"  # attribute of a graph: the committed steps of the training steps in it
_TAKES_DATA = frozenset({"IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue"})


@contextlib.contextmanager
def after_data() -> Iterator[None]:
    """In a graph: makes all operations within wait for the data of the graph.

    At the end of the data, the function ends with an error. It cancels its other operations that have begun, whether
    other ranks wait in them or not, and it keeps what they have written. So a step must not begin without data.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with tf.control_dependencies([] if graph is None else _data_of(graph)):
        yield


@contextlib.contextmanager
def after_earlier_steps() -> Iterator[Callable[[list[tf.Tensor]], None]]:
    """Orders a step after the earlier steps in the same graph. The step notes its number by the function returned.

    If a step is refused, no rank may have begun the collectives of the next step, because the other ranks would not
    begin them.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with tf.control_dependencies(getattr(graph, _STEP_NUMBERS, [])):
        yield lambda numbers: None if graph is None else setattr(graph, _STEP_NUMBERS, numbers)


def _data_of(graph: tf.Graph) -> list[Any]:
    """Returns the tensors that a function gets as arguments, and the operations that take data from iterators."""
    arguments = [tensor for tensor in getattr(graph, "inputs", []) if tensor.dtype != tf.resource]
    return arguments + [operation for operation in graph.get_operations() if operation.type in _TAKES_DATA]
