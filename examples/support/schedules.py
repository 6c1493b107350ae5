"""The option `--schedule`, and what it makes."""

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
    parser.add_argument(
        "--schedule", choices=_NAMES, default=_NAMES[0], help="when gradients travel (default: %(default)s)"
    )
    parser.add_argument("--staleness", type=count, default=1, help="of --schedule delayed, in steps (default: 1)")
    parser.add_argument("--cycle", type=count, default=100, help="of --schedule delayed, in steps (default: 100)")


def make(options: argparse.Namespace) -> tsps.schedules.Schedule:
    """The schedule that the options name."""
    import tf_sparse_ps as tsps

    if options.schedule == "delayed":
        return tsps.schedules.DelayedGlobal(staleness=options.staleness, cycle=options.cycle)
    return tsps.schedules.TimedBuckets() if options.schedule == "timed-buckets" else tsps.schedules.Synchronous()
