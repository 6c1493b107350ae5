"""Orders training steps, and lookups in which ranks meet, in their graph: between data, and after earlier steps.

At the end of its data, a function ends with an error. It cancels its other operations that have begun, whether other
ranks wait in them or not, and it keeps what they have written. So no step may be running when data is taken.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_STEP_NUMBERS = "_tsps_step_numbers"  # attribute of a graph: the committed steps of the training steps in it
_TAKES_DATA = frozenset({"IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"})
_WITHOUT_DATA = (
    "a training step is in a tf.function that gets no data, and the function around it takes data from an iterator. If "
    "that data has an end, TensorFlow may cancel a step that has begun there, so that ranks hang. Give the inner "
    "function a tensor of the data"
)


@contextlib.contextmanager
def between_data() -> Iterator[None]:
    """In a graph: lets all operations within wait for the data of the graph, and takes more data only after them.

    The data are the arguments of the function, and what it takes from iterators.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None:
        yield
        return
    arguments = [tensor for tensor in _inputs(graph) if tensor.dtype != tf.resource]
    iterators = _iterators(graph)
    if not arguments and not iterators and _iterators(getattr(graph, "outer_graph", None)):
        warnings.warn(_WITHOUT_DATA, stacklevel=2)
    before = {operation.name for operation in graph.get_operations()} if iterators else set()
    with tf.control_dependencies([*arguments, *map(_use, iterators)]):
        yield
    if iterators:
        within = [operation for operation in graph.get_operations() if operation.name not in before]
        with tf.control_dependencies([operation for operation in within if operation.op_def.is_stateful]):
            for iterator in iterators:
                _use(iterator)


@contextlib.contextmanager
def after_earlier_steps() -> Iterator[Callable[[list[tf.Tensor]], None]]:
    """Orders a step after the earlier steps in the same graph. The step notes its number by the function returned.

    If a step is refused, no rank may have begun the collectives of the next step, because the other ranks would not
    begin them.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with tf.control_dependencies(getattr(graph, _STEP_NUMBERS, [])):
        yield lambda numbers: None if graph is None else setattr(graph, _STEP_NUMBERS, numbers)


def _iterators(graph: Any) -> list[tf.Tensor]:
    """Returns the iterators of a function: its arguments that are resources, and those that it has taken data from."""
    if graph is None:
        return []
    captured = {id(internal) for _, internal in getattr(graph, "captures", ())}
    found = [tensor for tensor in _inputs(graph) if tensor.dtype == tf.resource and id(tensor) not in captured]
    found += [operation.inputs[0] for operation in graph.get_operations() if operation.type in _TAKES_DATA]
    return list({id(tensor): tensor for tensor in found}.values())


def _inputs(graph: Any) -> list[tf.Tensor]:
    return getattr(graph, "inputs", [])


def _use(iterator: tf.Tensor) -> tf.Tensor:
    """Returns an op that does nothing. TensorFlow orders it between the other ops that use the iterator."""
    return tf.raw_ops.VarIsInitializedOp(resource=iterator)
