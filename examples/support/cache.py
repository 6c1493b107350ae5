"""The options `--cache` and `--cache-policy`, and what they make."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from support import arguments

if TYPE_CHECKING:
    import tf_sparse_ps as tsps

_FEW = 1000  # distinct ids: a step moves few rows of such a table, and a cache costs more than that


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `check` and `make` read."""
    add = parser.add_argument
    add(
        "--cache",
        type=arguments.positive,
        metavar="ROWS",
        help="rows of each table that are kept on the device, the first GPU or else the CPU; a table that is known to "
        f"have fewer ids gets as many, one of at most {_FEW} ids has no cache (default: no caches)",
    )
    add(
        "--cache-policy",
        choices=("admission", "lru"),
        help="--cache: which rows enter: those that are used often, or all of every batch (default: admission)",
    )


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program, with the reason, where the options do not go together; `options.batch` is set."""
    if options.cache is None:
        if options.cache_policy is not None:
            parser.error("--cache-policy goes with --cache")
        return
    if options.ranks > 1:
        parser.error("--cache trains in one process: each of several ranks would have newer rows than the others")
    if options.storage == "tiered":
        parser.error("--cache keeps rows of tables in memory only")
    if options.placement == "sharded":
        parser.error("--cache keeps rows of replicated tables only")
    if options.schedule == "delayed":
        parser.error("--cache: --schedule delayed trains rows of the host only")
    if options.cache_policy == "lru" and options.cache < options.batch:
        parser.error(f"--cache-policy lru needs room for all ids of a batch: --cache of at least {options.batch}")


def make(options: argparse.Namespace, ids: Mapping[str, int | None]) -> dict[str, tsps.DeviceCache]:
    """The caches that the options name.

    Args:
        options: checked.
        ids: how many distinct ids each feature has, None: not known.

    Returns:
        by the names of the features; one whose table has no cache is missing.
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
