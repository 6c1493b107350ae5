"""Private names of TensorFlow for variables, graphs, datasets and SavedModels; and reads of Python's stack.

docs/private-names.md lists the names; tests/compat has a test of each.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, core, record
from tensorflow.python.framework import config

_ASKED_BY_TENSORFLOW = "tensorflow.python.distribute.distribute_utils"
_AUTOGRAPH = "tensorflow.python.autograph"
_OF_DATASETS = "Dataset_"  # the prefix of tf.data's names for the graphs of a user's functions


def become(variable: tf.Variable, cls: type) -> None:
    """Changes the class of a variable to a subclass, because TensorFlow's factories only make their own classes."""
    variable.__class__ = cls


def on_optimizer_key(variable: tf.Variable, refuse: Callable[[], Any]) -> None:
    """Has `refuse` called when an optimizer asks a variable for its key, as all optimizers do first in `build`.

    Under a strategy, TensorFlow also asks for the key at every read of a variable, which is allowed.
    """

    def container() -> None:
        if sys._getframe(1).f_globals.get("__name__") != _ASKED_BY_TENSORFLOW:
            refuse()

    variable._distributed_container = container


def join_strategy(variable: tf.Variable) -> None:
    """Makes a variable belong to the strategy in whose scope this is called. Keras 2 checks that in `compile`."""
    if tf.distribute.has_strategy():
        variable._distribute_strategy = tf.distribute.get_strategy()


def is_recording() -> bool:
    """Whether a gradient tape may record the operations of this thread, eager or traced."""
    return bool(record.could_possibly_record())


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(config.is_op_determinism_enabled())


def datasets_in(dataset: Any) -> Iterator[Any]:
    """Yields a tf.data.Dataset and the datasets that it is made from, as far as TensorFlow records them."""
    if isinstance(dataset, tf.data.Dataset):
        yield dataset
        for source in getattr(dataset, "_inputs", list)():
            yield from datasets_in(source)


def traced_for_dataset() -> bool:
    """Whether a function of a tf.data.Dataset is being traced, at any depth."""
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith(_OF_DATASETS):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def track(holder: Any, child: Any, name: str) -> None:
    """Has TensorFlow save `child` together with `holder`, if TensorFlow can save `holder`."""
    if hasattr(holder, "_track_trackable"):
        holder._track_trackable(child, name, overwrite=True)


def saved_with(saved: Any) -> list[Any]:
    """Returns all objects that TensorFlow saves with an object, or with the root object of a `TrackableSaver`."""
    view = getattr(saved, "_graph_view", None)
    root = saved if view is None else view.root
    return list(tf.train.TrackableView(root).descendants())


def resource_of(variable: tf.Variable) -> int:
    """Returns a number that identifies the memory of a variable, also if several objects have it."""
    return id(variable.handle)


def variables_by_key(root: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields the variables of a SavedModel with their keys in its checkpoint.

    Args:
      root: The object that was saved.
      prefix: The prefix of the checkpoint's files.
    """
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_checkpoint(prefix).get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
    objects, pending = {0: root}, [0]
    cache: dict[Any, Any] = {}  # layers of Keras 2 need it
    while pending:
        number = pending.pop()
        node, saved = graph.nodes[number], objects[number]
        for attribute in node.attributes:
            if hasattr(saved, "handle") or hasattr(saved, "value"):
                yield attribute.checkpoint_key, saved
        children = tf.train.TrackableView.children(saved, save_type="savedmodel", cache=cache)
        for child in node.children:
            if child.node_id not in objects and child.local_name in children:
                objects[child.node_id] = children[child.local_name]
                pending.append(child.node_id)


def called_by(package: str, *through: str) -> bool:
    """Whether the call comes from a package or module.

    Args:
      package: The name of the package or module.
      through: Prefixes of module names. Calls within these modules, and within AutoGraph, are skipped on the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith((__name__, _AUTOGRAPH, *through)):
        frame = frame.f_back
    return frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(f"{package}.")


class ChoosesChildren:
    """A mixin, in front of a class that TensorFlow saves, which chooses the objects that are saved with it."""

    def saved_children(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """Returns the tracked objects to save.

        Args:
          children: All tracked objects, by name.
          save_type: "checkpoint" or "savedmodel".
        """
        return children

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        return self.saved_children(super()._trackable_children(save_type, **kwargs), save_type)  # type: ignore[misc]


class ReadInPython:
    """A mixin, in front of a variable's class, so that eager operations read the variable by `value()`, as graphs do.

    TensorFlow's eager calls read the private `_handle` of a variable in C++. If the handle is an eager tensor, they
    read the variable directly and do not call `value()`.
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
    """A proxy of an eager tensor, which is not an instance of its class."""

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
        # TensorFlow calls `numpy` to get the path of the file to copy.
        self.asset_path.numpy = lambda: np.array(path.encode(), dtype=object)
        return super()._export_to_saved_model_graph(tensor_map=tensor_map, **kwargs)

    def exported(self) -> None:
        """Restores the asset's own path after a save."""
        del self.asset_path.numpy


def has_begun() -> bool:
    """Whether this process has run operations. After that, TensorFlow cannot be connected to other processes."""
    return context.context()._context_handle is not None


def connects_processes() -> bool:
    """Whether a strategy of several workers, or other code, has connected this process with others."""
    return bool(context.context()._collective_leader)


def set_heartbeat_timeout(cluster: tf.train.ClusterSpec, seconds: float) -> None:
    """Sets after how long without a heartbeat of a process TensorFlow ends the operations of the others.

    This is called before a strategy connects the processes, which would otherwise make the same settings with the
    default of 10 s.

    Args:
      cluster: The jobs "chief" and "worker", or one of them.
      seconds: The time.
    """
    jobs = [job for job in ("chief", "worker") if job in cluster.jobs]
    tasks = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    for job in jobs:
        tasks.add(name=job, num_tasks=cluster.num_tasks(job))
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0]}/replica:0/task:0",
        heartbeat_timeout_in_ms=int(1000 * seconds),
        coordinated_jobs=list(tasks),
    )


def abort_collectives(code: int, message: str) -> None:
    """Ends all current and later operations of the collective runtime in this process with an error.

    Args:
      code: The code of the error, from `tf.errors`.
      message: The message of the error.
    """
    context.context().abort_collective_ops(code, message)


@functools.cache
def let_threads_fail_together() -> None:
    """Lets operations of several threads fail at the same time, which can stop the process forever without this.

    TensorFlow holds a lock while it makes the exception. In a constructor in Python, the thread can lose the GIL to a
    thread whose operation has failed, too. That one waits for the lock and keeps the GIL (TensorFlow 2.15 and 2.21).
    """
    fields = ("message", "code", "payloads")

    class FailedOperation(core._NotOkStatusException):
        __init__ = Exception.__init__  # in C

        def __getattr__(self, name: str) -> Any:
            if name not in fields:
                raise AttributeError(name)
            return self.args[fields.index(name)]

    pywrap_tfe.TFE_Py_RegisterExceptionClass(FailedOperation)


def watch_loops(dataset: Any, begin: Callable[[], Callable[[], None]]) -> None:
    """Has a function called for each element that a Python loop takes from a dataset.

    Python looks up special methods in an object's class, so the dataset gets a subclass of its class.

    Args:
      dataset: A `tf.data.Dataset`.
      begin: A function that is called when a loop begins, and returns the function to call for each element. It is not
        called while TensorFlow traces the loop, because a traced loop takes more elements than it is traced for.
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
