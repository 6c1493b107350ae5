"""tf.distribute strategies and wrappers of other libraries that a program trains with."""

from __future__ import annotations

import sys
from typing import Any


def active_strategy() -> Any:
    """Returns the tf.distribute strategy in whose scope or replica this function is called, or None.

    Raises:
      ValueError: Tables cannot be trained under a strategy of this kind.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "distribute") or not tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    known = (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)
    if not isinstance(strategy, known):
        raise ValueError(
            "tables can be trained under tf.distribute's MultiWorkerMirroredStrategy and MirroredStrategy, where all "
            f"replicas make each step together and tables are on their own machine. Received: {type(strategy).__name__}"
        )
    return strategy


def foreign_wrapper(obj: Any) -> str | None:
    """Names the class of another library that wraps this optimizer or tape for several ranks; None if there is none.

    Horovod makes a subclass of the wrapped object's class and copies its own methods into it. Neither the class nor its
    name shows this, but the modules of the methods do.
    """
    for cls in type(obj).__mro__:
        for name in ("gradient", "_compute_gradients", "_allreduce", "apply_gradients", "get_gradients"):
            if getattr(cls.__dict__.get(name), "__module__", "").startswith("horovod."):
                return f"horovod's wrapper of {cls.__name__}"
    return None
