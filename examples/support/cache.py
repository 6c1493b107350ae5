"""The options `--cache` and `--cache-policy`, and the device caches that they define."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from support import arguments

if TYPE_CHECKING:
    import tf_sparse_ps as tsps

# A step moves few rows of a table with at most this many ids, so a cache would cost more than it saves.
_FEW = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `check` and `make` read."""
    add = parser.add_argument
    add(
        "--cache",
        type=arguments.positive,
        metavar="ROWS",
        help="number of rows of each table to keep on the device, which is the first GPU, or else the CPU; tables with "
        f"fewer ids get a smaller cache, and tables with at most {_FEW} ids get none (default: no caches)",
    )
    add(
        "--cache-policy",
        choices=("admission", "lru"),
        help="which rows enter the cache of --cache: frequent rows, or all rows of each batch (default: admission)",
    )


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with an error message if options exclude each other. `options.batch` must be set."""
    if options.cache is None:
        if options.cache_policy is not None:
            parser.error("--cache-policy needs --cache")
        return
    if options.ranks > 1:
        parser.error("--cache trains in one process, because ranks would have different rows. Use --ranks 1")
    if options.storage == "tiered":
        parser.error("--cache keeps rows of tables in memory only")
    if options.placement == "sharded":
        parser.error("--cache keeps rows of replicated tables only")
    if options.schedule == "delayed":
        parser.error("--cache cannot be used with --schedule delayed, which trains rows of the host only")
    if options.cache_policy == "lru" and options.cache < options.batch:
        parser.error(f"--cache-policy lru needs space for all ids of a batch. Use --cache {options.batch} or more")


def make(options: argparse.Namespace, ids: Mapping[str, int | None]) -> dict[str, tsps.DeviceCache]:
    """Makes the caches that the options define.

    Args:
        options: the options, checked.
        ids: the number of distinct ids of each feature. None: it is unknown.

    Returns:
        The cache of each feature, by name. Features without a cache are missing.
    """
    import tf_sparse_ps as tsps

    if options.cache is None:
        return {}
    return {
        name: tsps.DeviceCache(
            rows=options.cache if count is None else min(options.cache, count),
            policy=options.cache_policy or "admission",
        )
        for name, count in ids.items()
        if count is None or count > _FEW
    }
