"""`CachedBinding`: a layer's table in this process, with rows on devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_sparse_ps.job.table_binding import TableBinding

if TYPE_CHECKING:
    from tf_sparse_ps import optimizers
    from tf_sparse_ps.cache.table_cache import TableCache


class CachedBinding(TableBinding):
    """A `TableBinding` of a table with a device cache.

    Attributes:
      cache: The rows on devices; None until `layers/cached.py` has attached it.
    """

    cache: TableCache | None = None

    def bind_optimizer(self, optimizer: optimizers.RowOptimizer, *, replace: bool = False, renew: bool = False) -> None:
        """See `TableBinding.bind_optimizer`. The cache writes its rows back before the slots change."""
        if self.cache is not None:
            self.cache.flush()
        super().bind_optimizer(optimizer, replace=replace, renew=renew)
        if self.cache is not None:
            self.cache.bind(optimizer)

    @contextlib.contextmanager
    def writing(self, what: int, *, rows: bool = False, whole: bool = False) -> Iterator[bool]:
        """See `TableBinding.writing`. The cache writes its rows back before the write and drops them after it."""
        with contextlib.ExitStack() as stack:
            if self.cache is not None:
                stack.enter_context(self.cache.host_writes(whole=whole))
            yield stack.enter_context(super().writing(what, rows=rows, whole=whole))


def cache_of(binding: TableBinding) -> TableCache | None:
    """Returns the device cache of a table, or None."""
    return binding.cache if isinstance(binding, CachedBinding) else None
