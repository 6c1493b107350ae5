"""Private names of TensorFlow that tables need: of variables and graphs, of what is saved with them, of Python's stack.

docs/private-names.md lists them; tests/compat has a test of each.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.framework import config

_ASKED_BY_TENSORFLOW = "tensorflow.python.distribute.distribute_utils"
_AUTOGRAPH = "tensorflow.python.autograph"
_OF_DATASETS = "Dataset_"  # what tf.data calls the graphs of the functions that it is given


def become(variable: tf.Variable, cls: type) -> None:
    """Makes a variable one of a subclass: TensorFlow's factories make no variables of other classes than their own."""
    variable.__class__ = cls


def on_optimizer_key(variable: tf.Variable, refuse: Callable[[], Any]) -> None:
    """Has `refuse` called when an optimizer asks a variable for its key, which all do in `build`, before anything else.

    Under a strategy TensorFlow asks, too, at every read of a variable; it is let through.
    """

    def container() -> None:
        if sys._getframe(1).f_globals.get("__name__") != _ASKED_BY_TENSORFLOW:
            refuse()

    variable._distributed_container = container


def join_strategy(variable: tf.Variable) -> None:
    """Has a variable belong to the strategy in whose scope this is called; Keras 2 asks when a model is compiled."""
    if tf.distribute.has_strategy():
        variable._distribute_strategy = tf.distribute.get_strategy()


def is_recording() -> bool:
    """Whether a gradient tape records what this thread does, or traces."""
    return bool(record.could_possibly_record())


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(config.is_op_determinism_enabled())


def datasets_in(dataset: Any) -> Iterator[Any]:
    """A tf.data.Dataset, and those that it is made from, as far as they tell."""
    if isinstance(dataset, tf.data.Dataset):
        yield dataset
        for one in getattr(dataset, "_inputs", list)():
            yield from datasets_in(one)


def traced_for_dataset() -> bool:
    """Whether a function of a tf.data.Dataset is being traced, at any depth."""
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith(_OF_DATASETS):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def track(holder: Any, child: Any, name: str) -> None:
    """Has TensorFlow save `child` with `holder`, if that is an object that TensorFlow saves."""
    if hasattr(holder, "_track_trackable"):
        holder._track_trackable(child, name, overwrite=True)


def saved_with(saved: Any) -> list[Any]:
    """All objects that TensorFlow saves with one that it is given, or with what a `TrackableSaver` is for."""
    view = getattr(saved, "_graph_view", None)
    root = saved if view is None else view.root
    return list(tf.train.TrackableView(root).descendants())


def called_by(package: str, *through: str) -> bool:
    """Whether the caller's caller is in a package or module, seen through modules whose names begin with `through`.

    AutoGraph's are seen through, too.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith((__name__, _AUTOGRAPH, *through)):
        frame = frame.f_back
    return frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(f"{package}.")


class ChoosesChildren:
    """Mixin, in front of a class that TensorFlow saves, which chooses what is saved with it."""

    def saved_children(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """Of what is tracked, that which is saved.

        Args:
          children: By name.
          save_type: "checkpoint" or "savedmodel".
        """
        return children

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        return self.saved_children(super()._trackable_children(save_type, **kwargs), save_type)  # type: ignore[misc]


class ReadInPython:
    """Mixin, in front of a variable's class: eager operations read the variable by its `value()`, as graphs do.

    TensorFlow's eager calls look at the private `_handle` of a variable in C++. Where that is an eager tensor they read
    the variable without asking it.
    """

    @property
    def handle(self) -> Any:
        """The variable's handle."""
        return self.__dict__["_handle"]

    @property
    def _handle(self) -> Any:
        return _NoEagerTensor(self.__dict__["_handle"])

    @_handle.setter
    def _handle(self, value: Any) -> None:
        self.__dict__["_handle"] = value


class _NoEagerTensor:
    """Stands for an eager tensor, and is none."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


class ExportedAsset(tf.saved_model.Asset):
    """An asset whose file is made when a SavedModel is written."""

    def export(self) -> str:
        """Makes the file, which TensorFlow copies at the end of the save; returns its path. Eager."""
        raise NotImplementedError

    def _export_to_saved_model_graph(self, tensor_map: Any, **kwargs: Any) -> Any:
        with context.eager_mode():  # TensorFlow is building the SavedModel's graph
            path = self.export()
        # TensorFlow reads there which file to copy.
        self.asset_path.numpy = lambda: np.array(path.encode(), dtype=object)
        return super()._export_to_saved_model_graph(tensor_map=tensor_map, **kwargs)

    def exported(self) -> None:
        """The save is over: the path is the asset's own again."""
        del self.asset_path.numpy


def has_begun() -> bool:
    """Whether this process has run operations: from then on TensorFlow cannot be told of other processes."""
    return context.context()._context_handle is not None


def connects_processes() -> bool:
    """Whether a strategy of several workers has been made in this process, or something else has connected it."""
    return bool(context.context()._collective_leader)


def abort_collectives(code: int, message: str) -> None:
    """Ends all operations of the collective runtime in this process with an error, and those to come.

    Args:
      code: One of `tf.errors`.
      message: The error's.
    """
    context.context().abort_collective_ops(code, message)


def watch_loops(dataset: Any, begin: Callable[[], Callable[[], None]]) -> None:
    """Calls a function for each element that a Python loop takes from a dataset, which stays one of TensorFlow's.

    Python looks for special methods in an object's class, so the dataset gets another class.

    Args:
      dataset: A `tf.data.Dataset`.
      begin: Called where a loop begins; returns what is called for each of its elements. Not in a function that is
        traced, which takes more elements than it is traced for.
    """
    kind: Any = type(dataset)
    dataset.tsps_begin = begin
    dataset.__class__ = _watched_dataset(kind)


@functools.cache
def _watched_dataset(base: Any) -> Any:
    def begin(self: Any) -> Any:
        iterator = base.__iter__(self)
        if tf.executing_eagerly():
            kind: Any = type(iterator)
            iterator.tsps_taken = self.tsps_begin()
            iterator.__class__ = _watched_iterator(kind)
        return iterator

    return type(base.__name__, (base,), {"__iter__": begin})


@functools.cache
def _watched_iterator(base: Any) -> Any:
    def take(self: Any) -> Any:
        element = base.__next__(self)
        if tf.executing_eagerly():
            self.tsps_taken()
        return element

    return type(base.__name__, (base,), {"__next__": take})
