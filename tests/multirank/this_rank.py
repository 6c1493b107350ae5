"""Which rank a test's program is, whatever connects the ranks: the option `--collectives` of pytest."""

from __future__ import annotations

import os

import tf_sparse_ps as tsps
from tf_sparse_ps.collectives import Collectives

VARIABLE = "TSPS_TEST_COLLECTIVES"
HOROVOD, TENSORFLOW = "horovod", "tensorflow"


def init() -> Collectives:
    """Meets the other ranks."""
    ranks = tsps.init()
    assert ranks.kind == os.environ.get(VARIABLE, HOROVOD), ranks.kind
    return ranks


def rank() -> int:
    """This process among all."""
    return tsps.collectives.current().rank


def local_rank() -> int:
    """This process among those of its node."""
    return tsps.collectives.current().local_rank


def size() -> int:
    """The number of ranks."""
    return tsps.collectives.current().size
