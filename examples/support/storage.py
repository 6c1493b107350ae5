"""The options `--storage`, `--storage-folder`, `--storage-memory` and `--placement`, and what they make."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    import tf_sparse_ps as tsps

_MEMORY = "48MiB"  # 12 MiB of it are buffers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `make` reads."""
    add = parser.add_argument
    add("--storage", choices=("memory", "tiered"), default="memory", help="where tables are (default: %(default)s)")
    add("--storage-folder", help="tiered: on a local disk (default: a temporary one, which is removed)")
    add("--storage-memory", default=_MEMORY, help="tiered: of each table, such as 4GiB (default: %(default)s)")
    add(
        "--placement",
        choices=("replicated", "sharded"),
        default="replicated",
        help="tables of several machines: whole on each, or each row on one (default: %(default)s)",
    )


def placement(options: argparse.Namespace) -> tsps.Sharded | str:
    """The placement that the options name."""
    import tf_sparse_ps as tsps

    return tsps.Sharded() if options.placement == "sharded" else "replicated"


@contextlib.contextmanager
def make(options: argparse.Namespace, ranks: Any) -> Iterator[tsps.Tiered | str]:
    """The storage that the options name, the same on all ranks.

    Raises:
        ValueError: `--storage-memory` is no size.
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
        ranks.barrier("storage.end")  # nobody uses it any more


def ahead(dataset: tf.data.Dataset, model: Any, options: argparse.Namespace) -> tf.data.Dataset:
    """The dataset, with the rows that its next batches need read, or copied to the device, ahead of them."""
    import tf_sparse_ps as tsps

    in_memory = options.storage == "memory" and options.cache is None
    return dataset.prefetch(2) if in_memory else tsps.lookahead(dataset, model)
