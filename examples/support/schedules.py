"""The options `--schedule`, `--staleness` and `--cycle`, and the schedule that they define."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from support import arguments

if TYPE_CHECKING:
    import tf_sparse_ps as tsps

_NAMES = ("synchronous", "timed-buckets", "delayed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `make` reads."""
    count = arguments.positive
    add = parser.add_argument
    add("--schedule", choices=_NAMES, default=_NAMES[0], help="when gradients are exchanged (default: %(default)s)")
    add("--staleness", type=count, default=1, help="staleness of --schedule delayed, in steps (default: 1)")
    add("--cycle", type=count, default=100, help="cycle of --schedule delayed, in steps (default: 100)")


def make(options: argparse.Namespace) -> tsps.schedules.Schedule:
    """Makes the schedule that the options define."""
    import tf_sparse_ps as tsps

    if options.schedule == "delayed":
        return tsps.schedules.DelayedGlobal(staleness=options.staleness, cycle=options.cycle)
    return tsps.schedules.TimedBuckets() if options.schedule == "timed-buckets" else tsps.schedules.Synchronous()
