"""The thread that copies rows of coming batches to a device, while the batches before them train.

The thread decides nothing: `cc/core/cache/staging_queue.h` says which rows to copy, and which copies still count when
they are taken. A copy waits on the device, under its number, until a lookup takes it.
"""

from __future__ import annotations

import atexit
import logging
import threading
import warnings

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.cache.link import Link

_END_S = 10
_ASTRAY, _CLOSED = 1, 2
_running: set[Copier] = set()


class Copier:
    """The copying thread of one cache. It runs until the cache is removed, or the process ends."""

    def __init__(
        self, number: tf.Tensor, area: str, path: tf.Tensor, uuid: str, table: str, dtype: str, device: str, link: Link
    ) -> None:
        """Starts the thread.

        Args:
          number: The number of the cache, an int64 scalar.
          area: The name of the waiting copies on the device (`area_of`).
          path: The path of the table, a string scalar.
          uuid: The table's uuid.
          table: The table's name.
          dtype: The type of its rows, by name.
          device: TensorFlow's name of the device.
          link: The way to the device.
        """
        self._number, self._area, self._path, self._uuid, self._table = number, area, path, uuid, table
        self._dtype, self._device, self._link = dtype, device, link
        self._thread = threading.Thread(target=self._run, name=f"tsps-copier-{table}", daemon=True)
        if not _running:
            atexit.unregister(_end)
            atexit.register(_end)
        _running.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._copy()
        except Exception:
            text = "rows of table %s are no longer copied ahead: lookups read them when they need them"
            logging.getLogger(__name__).exception(text, self._table)
            _ops.cache_close(self._number)
        finally:
            _running.discard(self)

    def _copy(self) -> None:
        copied = 0
        while True:
            with tf.device("/CPU:0"):
                work = _ops.cache_next_copy(self._number, self._path, self._uuid, copied)
                state, copied = int(work.state), int(work.copy)
            if state == _CLOSED:
                return
            if state == _ASTRAY:
                warnings.warn(
                    f"table {self._table!r}: most of what tsps.lookahead announced was not looked up next. Was the "
                    "dataset made for another model, or shuffled or cached after tsps.lookahead? Such rows are copied "
                    "when a lookup needs them, which takes longer",
                    stacklevel=1,
                )
            with tf.device(self._device):
                for number in work.removed.numpy().tolist():
                    unstage(self._area, tf.constant(number, tf.int64), self._dtype)
            if copied:
                with tf.device("/CPU:0"):
                    rows = self._link.down(tf.cast(work.rows, self._dtype))
                stage(self._area, work.copy, rows, self._device)

    def end(self) -> None:
        """Ends the thread, at the end of the process."""
        _ops.cache_close(self._number)
        self._thread.join(_END_S)


def area_of(number: int) -> str:
    """Returns the name under which copies of the cache with this number wait on its device."""
    return f"tsps_copies_{number}"


def stage(area: str, copy: tf.Tensor, rows: tf.Tensor, device: str) -> None:
    """Copies rows, [n, dim], to a device, where they wait for `unstage` under the number `copy`, an int64 scalar."""
    with tf.device(device):
        tf.raw_ops.MapStage(key=copy, indices=[0], values=[rows], dtypes=[rows.dtype], shared_name=area)


def unstage(area: str, copy: tf.Tensor, dtype: str) -> tf.Tensor:
    """Returns the rows of a waiting copy, [n, dim], on the current device. Blocks if there is no such copy."""
    return tf.raw_ops.MapUnstage(key=copy, indices=[0], dtypes=[tf.as_dtype(dtype)], shared_name=area)[0]


def _end() -> None:
    for copier in list(_running):
        copier.end()
