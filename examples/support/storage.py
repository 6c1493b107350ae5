"""The options `--storage`, `--storage-folder`, `--storage-memory` and `--placement`, and what they define."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    import tf_sparse_ps as tsps

_MEMORY = "48MiB"  # 4.5 MiB of this are buffers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `make` reads."""
    add = parser.add_argument
    add("--storage", choices=("memory", "tiered"), default="memory", help="where tables are (default: %(default)s)")
    add("--storage-folder", help="tiered: folder on a local disk (default: a temporary folder)")
    add("--storage-memory", default=_MEMORY, help="tiered: memory of each table, such as 4GiB (default: %(default)s)")
    add(
        "--placement",
        choices=("replicated", "sharded"),
        default="replicated",
        help="on several machines: each has all rows, or each has a part of the rows (default: %(default)s)",
    )


def placement(options: argparse.Namespace) -> tsps.Sharded | str:
    """Returns the placement that the options define."""
    import tf_sparse_ps as tsps

    return tsps.Sharded() if options.placement == "sharded" else "replicated"


@contextlib.contextmanager
def make(options: argparse.Namespace, ranks: Any) -> Iterator[tsps.Tiered | str]:
    """Yields the storage that the options define, the same on all ranks.

    Raises:
        ValueError: `--storage-memory` is not a size.
    """
    import tf_sparse_ps as tsps

    if options.storage == "memory":
        yield "memory"
        return
    with contextlib.ExitStack() as stack:
        folder = options.storage_folder
        if folder is None and ranks.rank == 0:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="train-", ignore_cleanup_errors=True))
        folder = ranks.broadcast_object(folder, 0, "storage.folder")
        yield tsps.Tiered(folder, memory=options.storage_memory)
        ranks.barrier("storage.end")  # after this, no rank uses the folder


def ahead(dataset: tf.data.Dataset, model: Any, options: argparse.Namespace) -> tf.data.Dataset:
    """Returns the dataset. If tables are on disk or have a cache, it reads the rows of its next batches ahead."""
    import tf_sparse_ps as tsps

    in_memory = options.storage == "memory" and options.cache is None
    return dataset.prefetch(2) if in_memory else tsps.lookahead(dataset, model)
