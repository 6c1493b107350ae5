"""Returns which rank a test's program is, for all libraries that connect ranks: pytest's option `--collectives`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from launch import HOROVOD, VARIABLE

import tf_sparse_ps as tsps
from tf_sparse_ps.collectives import Collectives, cluster_config


def init() -> Collectives:
    """Connects the ranks."""
    ranks = tsps.init()
    assert ranks.kind == os.environ.get(VARIABLE, HOROVOD), ranks.kind
    return ranks


def outcomes_of(ways: Iterable[Callable[[], object]]) -> dict[str, str]:
    """Calls each function; returns the errors, by the function's name."""
    outcomes = {}
    for way in ways:
        try:
            way()
            outcomes[way.__name__] = "no error"
        except Exception as error:
            outcomes[way.__name__] = f"{type(error).__name__}: {error}"
    return outcomes


def rank() -> int:
    """Returns the number of this process among all ranks."""
    return tsps.collectives.current().rank


def local_rank() -> int:
    """Returns the number of this process among those of its node."""
    return tsps.collectives.current().local_rank


def size() -> int:
    """Returns the number of ranks."""
    return tsps.collectives.current().size


def number() -> int:
    """Returns `rank` before `init`. TensorFlow's threads must be configured before its first operation."""
    config = cluster_config.find()
    return int(os.environ["HOROVOD_RANK"]) if config is None else config.rank
