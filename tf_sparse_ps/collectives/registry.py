"""Chooses the collectives of this process: `init` connects the ranks, `resolve` and `current` find the collectives.

A process has at most one `Collectives` object of each kind. Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import Any

from tf_sparse_ps.collectives import cluster_config, horovod_setup, launchers
from tf_sparse_ps.collectives.interface import Collectives
from tf_sparse_ps.collectives.strategies import active_strategy

_KINDS = ("auto", "horovod", "tensorflow", "tf.distribute", "local")
_lock = threading.Lock()
_instances: dict[str, Collectives] = {}
_listeners: list[Callable[[Collectives], None]] = []
_local_chosen = threading.Event()  # the program has asked for "local"


def init(collectives: str = "auto") -> Collectives:
    """Connects this process with the other ranks of its job, and returns its collectives.

    If horovodrun or another launcher that Horovod knows has started the process, Horovod connects the ranks. In this
    case the call replaces `hvd.init()`, which also works if tf_sparse_ps was imported before it. If TF_CONFIG names
    several workers, TensorFlow's own collectives connect them. Call this function at the top of the program, because
    TensorFlow connects processes only before its first operation.

    Args:
      collectives: "auto"; "horovod" or "tensorflow" to choose one of them; "local" if each process of the launcher is
        to train by itself, which "auto" refuses.

    Raises:
      ValueError, RuntimeError, UnsupportedError, RankLost: See `resolve`, and `tensorflow.make`.
    """
    horovod_setup.refuse_elastic()
    horovod_setup.set_environment()
    strategy = active_strategy()
    if collectives in ("auto", "tensorflow") and _names_workers(strategy, explicitly=collectives == "tensorflow"):
        return _instance("tensorflow", None)
    launch = launchers.find()
    if launchers.find_horovodrun() is not None or collectives == "horovod":
        horovod_setup.initialise()
    elif launch is not None and collectives == "auto" and _choose("auto", False, strategy) == "local":
        # If Horovod is missing, `resolve` raises an error that says so.
        with contextlib.suppress(ImportError):
            horovod_setup.initialise()
    return resolve(collectives)


def _names_workers(strategy: Any, *, explicitly: bool) -> bool:
    """Whether `init` lets TensorFlow connect the workers of TF_CONFIG. Horovod's launcher takes precedence.

    Raises:
      ValueError: The program asks for it, but Horovod or a strategy trains already; or TF_CONFIG cannot be read.
    """
    if explicitly:
        _refuse_beside_tensorflow(strategy)
        return True
    if horovod_setup.is_initialised() or strategy is not None or launchers.find_horovodrun() is not None:
        return False
    if "tensorflow" in _instances:
        return True
    if not os.environ.get(cluster_config.VARIABLE, "").strip():
        return False
    from tf_sparse_ps._compat import _tensorflow  # needs TensorFlow

    cluster = cluster_config.find()
    # A strategy, outside of whose scope this function is called, may have connected them already.
    return cluster is not None and cluster.size > 1 and not _tensorflow.connects_processes()


def _refuse_beside_tensorflow(strategy: Any) -> None:
    """Raises ValueError if Horovod or a strategy reduces gradients in this process, or the launcher expects it to."""
    other = ""
    if horovod_setup.is_initialised():
        other = "Horovod is initialised. Remove hvd.init()"
    elif launchers.find_horovodrun() is not None:
        other = "Horovod's launcher started this process. Start it with `tf-sparse-ps run --collectives tensorflow`"
    elif strategy is not None and strategy.num_replicas_in_sync > 1:
        other = "a tf.distribute strategy is active. Remove it, or choose 'tf.distribute'"
    if other:
        raise ValueError(
            f"collectives='tensorflow' cannot be used, because {other}. Otherwise gradients would be reduced twice"
        )


def current() -> Collectives:
    """Returns the collectives of this process: `resolve("auto")`."""
    return resolve("auto")


def resolve(kind: str = "auto") -> Collectives:
    """Returns the collectives of this process of a kind, always the same object.

    Args:
      kind: One of

        - "horovod".
        - "tensorflow": the workers of TF_CONFIG, which `init` connects.
        - "tf.distribute": the workers and replicas of the strategy in whose scope this function is called.
        - "local": this process alone.
        - "auto": Horovod if it is initialised; tf.distribute in the scope of a strategy with several replicas (after
          that also outside of it, if the strategy has several workers); "tensorflow" if `init` has connected workers;
          else local.

    Raises:
      ValueError: The kind is unknown; "local" in a process that is one of several ranks; "tf.distribute" outside of a
        strategy's scope; another kind within the scope of a strategy of several replicas; a strategy that is not
        supported.
      RuntimeError: Horovod's launcher has started this process, and `hvd.init()` was not called yet. Or a launcher has
        started several processes, the job has another number of ranks, and "local" was not chosen.
      UnsupportedError: `horovodrun` has started the process in its elastic mode.
    """
    horovod_setup.refuse_elastic()
    if kind not in _KINDS:
        raise ValueError(f"collectives must be one of {', '.join(_KINDS)}. Received: {kind!r}")
    initialised = horovod_setup.is_initialised()
    if not initialised and (kind == "horovod" or launchers.find_horovodrun() is not None):
        raise RuntimeError(
            "Horovod is not initialised. Call tsps.init(), or horovod.tensorflow's hvd.init(), before the first layer, "
            "table or optimizer of tf_sparse_ps is used. Received: "
            f"collectives={kind!r}, HOROVOD_RANK={os.environ.get('HOROVOD_RANK')}, "
            f"HOROVOD_SIZE={os.environ.get('HOROVOD_SIZE')}"
        )
    strategy = active_strategy()
    if kind == "tensorflow":
        _refuse_beside_tensorflow(strategy)
    chosen_kind = _choose(kind, initialised, strategy)
    collectives = _instance(chosen_kind, strategy)
    if chosen_kind == "tf.distribute" and strategy is not None:
        collectives.check_strategy(strategy)  # type: ignore[attr-defined]
    if kind == "local":
        if initialised and (ranks := _instance("horovod", None)).size > 1:
            raise ValueError(
                f"collectives='local' is for one process. Received: a process that is rank {ranks.rank} of "
                f"{ranks.size}. The ranks would train separately without a warning. Use 'auto' or 'horovod'."
            )
        if (workers := _instances.get("tensorflow")) is not None and workers.size > 1:
            raise ValueError(
                f"collectives='local' is for one process. Received: a process that is rank {workers.rank} of "
                f"{workers.size} by TF_CONFIG. The ranks would train separately without a warning. Use 'auto' or "
                "'tensorflow'."
            )
        _local_chosen.set()
    elif not _local_chosen.is_set():
        _check_launch(collectives, initialised)
    return collectives


def when_connected(listener: Callable[[Collectives], None]) -> None:
    """Calls `listener` with each collectives object of several ranks that this process has or will have.

    The listener must not run a collective, because ranks call it at different times, or never.
    """
    with _lock:
        _listeners.append(listener)
        connected = [collectives for collectives in _instances.values() if collectives.size > 1]
    for collectives in connected:
        listener(collectives)


def _instance(kind: str, strategy: Any) -> Collectives:
    # Imports come before the lock: the first import of TensorFlow imports modules that call `when_connected`.
    make = _maker(kind) if kind not in _instances else None
    with _lock:
        is_new = kind not in _instances
        if make is not None and is_new:
            _instances[kind] = make(strategy)
        collectives, listeners = _instances[kind], tuple(_listeners)
    if is_new and collectives.size > 1:
        for listener in listeners:
            listener(collectives)
    return collectives


def _check_launch(collectives: Collectives, initialised: bool) -> None:
    """Raises RuntimeError if a launcher has started another number of processes than there are ranks."""
    launch = launchers.find()
    # The cluster of a tf.distribute strategy determines its number of workers. An evaluator is alone in it.
    if launch is None or collectives.size == launch.size or collectives.in_cluster:
        return
    if initialised:
        reason = (
            f"hvd.size() is {collectives.size}: this Horovod does not know that launcher. Start the ranks with "
            "`horovodrun --gloo`, or use a Horovod that was built with MPI and that MPI's launcher."
        )
    elif importlib.util.find_spec("horovod") is None:
        reason = (
            "Horovod, which would connect them, is not installed. Start them with `tf-sparse-ps run`, which does not "
            "need it."
        )
    elif horovod_setup.import_errors:
        reason = (
            f"Horovod, which would connect them, cannot be imported: {horovod_setup.import_errors[0]}. Build it again "
            "for the TensorFlow that is installed (tools/horovod/build.sh), or start them with `tf-sparse-ps run`."
        )
    else:
        reason = "Horovod is not initialised. Call tsps.init(), or hvd.init(), before anything else of tf_sparse_ps."
    raise RuntimeError(
        f"{launch}, but {reason} The processes would train separately without a warning. If that is what you want, "
        "call tsps.init(collectives='local') first. Received: collectives of "
        f"{collectives.size} rank{'s' * (collectives.size > 1)}"
    )


def _choose(kind: str, horovod: bool, strategy: Any) -> str:
    """Returns the kind that `resolve` uses.

    Args:
      kind: The argument of `resolve`.
      horovod: Whether Horovod is initialised.
      strategy: The active tf.distribute strategy, or None.
    """
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    distributed = _instances.get("tf.distribute")
    workers = 1 if distributed is None else distributed.size
    if horovod and (kind == "tf.distribute" or replicas > 1 or workers > 1):
        raise ValueError(
            "Horovod is initialised, and a tf.distribute strategy is in use: gradients would be reduced twice. Remove "
            f"hvd.init() or the strategy. Received: collectives={kind!r}, a strategy of {replicas} replicas"
        )
    if kind == "local" and max(replicas, workers) > 1:
        raise ValueError(
            f"collectives='local' is for one process without replicas. Received: a strategy of {replicas} replicas, "
            f"{workers} workers. They would train separately without a warning. Use 'auto' or 'tf.distribute'."
        )
    if kind == "tf.distribute" and strategy is None and distributed is None:
        raise ValueError(
            "collectives='tf.distribute' must be chosen in the scope of a strategy: `with strategy.scope():`, or in a "
            "function that strategy.run() runs. No strategy is active"
        )
    if kind in ("local", "tensorflow"):
        return kind
    if horovod:
        return "horovod"
    if kind == "tf.distribute" or max(replicas, workers) > 1:
        return "tf.distribute"
    return "tensorflow" if "tensorflow" in _instances else "local"


def _maker(kind: str) -> Callable[[Any], Collectives]:
    """Imports what a kind needs, and returns a function that makes the collectives, given the strategy."""
    if kind == "horovod":
        from tf_sparse_ps.collectives.horovod import HorovodCollectives  # Horovod is optional

        return lambda _: HorovodCollectives()
    if kind == "tensorflow":
        from tf_sparse_ps.collectives import tensorflow  # needs TensorFlow

        return lambda _: tensorflow.make()
    if kind == "tf.distribute":
        from tf_sparse_ps.collectives import tf_distribute  # needs TensorFlow

        return tf_distribute.make
    from tf_sparse_ps.collectives.local import LocalCollectives  # needs TensorFlow

    return lambda _: LocalCollectives()
