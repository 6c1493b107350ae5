"""`DeviceStore`: the rows of one table that are on one device. docs/device-cache.md describes the method.

The host decides which rows these are (`cc/core/cache/slot_directory.h`). This module has the variables, one for the
embedding and one for each slot of the optimizer, and moves rows into and out of them. It reads and writes rows in
place, by their positions, and never reads a whole variable.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops, _table
from tf_sparse_ps._compat import _keras, _tensorflow
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.cache import copier, row_constraints, row_rounding, row_rules
from tf_sparse_ps.cache.link import Link
from tf_sparse_ps.errors import UnsupportedError

if TYPE_CHECKING:
    from tf_sparse_ps.config.device_cache import DeviceCache
    from tf_sparse_ps.config.table_config import TableConfig
    from tf_sparse_ps.optimizers import RowOptimizer

_HOST = "/CPU:0"
_FLUSHES = 8  # how often a flush is repeated for rows that another thread has trained meanwhile
# The link of caches that this process makes. Measurements put a slow one here.
link = Link()
# Numbers of caches whose stores are garbage, and their processes. Garbage is collected in any thread and between any
# two instructions, also while a graph is traced, so a finalizer only appends; the next new cache removes these.
_gone: collections.deque[tuple[int, int]] = collections.deque()


def resolve_device(name: str | None) -> str:
    """Returns the full name of a device of this process.

    Args:
      name: TensorFlow's name, full or short ("GPU:0"). None: the first GPU, or the CPU if there is none.

    Raises:
      ValueError: There is no device of this name.
    """
    with tf.init_scope():
        devices = [device.name for device in tf.config.list_logical_devices()]
    if name is None:
        return next((device for device in devices if ":GPU:" in device), "/device:CPU:0")
    for device in devices:
        if _short(device) == _short(name):
            return device
    raise ValueError(f"DeviceCache(device={name!r}): there is no such device. TensorFlow has: {', '.join(devices)}")


def _short(device: str) -> str:
    return device.rsplit("/", 1)[-1].removeprefix("device:").upper()


def refuse_determinism(device: str, table: str) -> None:
    """Raises UnsupportedError if ops on a device must be deterministic, and would copy the variables they write to."""
    if ":GPU:" in device and _tensorflow.is_deterministic():
        raise UnsupportedError(
            f"table {table!r}: with tf.config.experimental.enable_op_determinism() TensorFlow copies a whole variable "
            f"on {device} to write some of its rows, in every step. Train without it, or without a cache (cache=...)"
        )


@dataclasses.dataclass(frozen=True)
class StepPart:
    """A step's changes to a table with rows on a device.

    Attributes:
      keys: int64[u], the step's keys.
      plan: The host's plan of the rows that move.
      gradients: float32[u, dim], the gradients of all keys.
      left_keys, left_gradients: int64[l] and float32[l, dim], for rows that stay on the host.
      victims: The rows that leave the device: float32[v, width] for each plane.
      not_finite: int64[0 or 1], a key whose gradient is not finite.
    """

    keys: tf.Tensor
    plan: _ops.Plan
    gradients: tf.Tensor
    left_keys: tf.Tensor
    left_gradients: tf.Tensor
    victims: list[tf.Tensor]
    not_finite: tf.Tensor


class DeviceStore:
    """The rows of one table that are on one device. With several devices, each has the rows of its keys.

    Attributes:
      options: The options of the cache.
      device: TensorFlow's full name of the device.
      number: The number of the cache for the ops, an int64 scalar.
    """

    def __init__(
        self, path: str, path_tensor: tf.Tensor, uuid: str, config: TableConfig, options: DeviceCache, device: str
    ) -> None:
        """Makes a cache whose slots are all free.

        Args:
          path, path_tensor, uuid, config: The attributes of the table's `TableBinding`.
          options: The options of the cache.
          device: The device's name, from `resolve_device`.

        Raises:
          UnsupportedError: TensorFlow would copy whole variables on this device.
        """
        refuse_determinism(device, config.name)
        self.options = options
        self.device = device
        self._path, self._path_tensor, self._uuid, self._config = path, path_tensor, uuid, config
        self._kind: str | None = None
        self._given_up = False  # while others write the rows that a failed step has lost
        with eager_ops(f"making the cache of table {path}") as _ops_, tf.device(_HOST):
            _remove_gone(_ops_)
            self.number = _ops_.cache_create(options.rows, options.policy, path)
            self._carrier = tf.zeros([0, config.dim])
        self._area = copier.area_of(int(self.number))
        self._link = link
        self._copier: copier.Copier | None = None
        self._constraint = config.resolved_constraint()
        self._planes = [self._variable(config.dim, "rows", config.dtype)]
        finalizer = weakref.finalize(self, _gone.append, (int(self.number), os.getpid()))
        finalizer.atexit = False  # type: ignore[misc]  # the end of the process frees everything

    def _variable(self, width: int, name: str, dtype: str = "float32") -> tf.Variable:
        with tf.init_scope(), tf.device(self.device):
            zeros = tf.zeros([self.options.rows, width], dtype)
            return _keras.ResourceVariable(
                initial_value=zeros, trainable=False, name=f"tsps_cache_{self._config.name}_{name}"
            )

    def bind(self, rule: RowOptimizer) -> None:
        """Makes variables for the slots of the rule that trains the table. No row may be newer here than on the host.

        Raises:
          UnsupportedError: The rule has no form for devices, or TensorFlow would copy whole variables on this device.
        """
        refuse_determinism(self.device, self._config.name)
        if self._kind == rule.kind:
            return
        if rule.kind not in row_rules.RULES:
            raise UnsupportedError(
                f"table {self._config.name!r}: the rule {rule.kind!r} cannot train rows on a device (cache=...). Rules "
                f"that can: {', '.join(row_rules.RULES)}"
            )
        self.clear()
        widths = _table.slot_widths(rule.kind, self._config.dim)
        self._planes[1:] = [self._variable(width, name) for width, name in zip(widths, rule.slots, strict=True)]
        self._kind = rule.kind

    # --- looking up ---

    def take(
        self, ids: Sequence[tf.Tensor], path: tf.Tensor, after: tf.Tensor, to: str
    ) -> tuple[_ops.Unique, tf.Tensor]:
        """Returns the unique keys of one call's ids, and their rows on the device `to`. See `TableCache.take`."""
        with tf.control_dependencies([after]):
            taken, attempt, rows = self._read(ids, 1, path, to)

        def again(attempt: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
            return list(self._read([taken.keys], attempt, path, to)[1:])

        # Steps of this thread come after the lookup. Those of other threads may move its rows while it reads them.
        if tf.executing_eagerly():  # tf.while_loop without a turn takes 0.1 ms there
            while int(attempt) > 0:
                attempt, rows = again(attempt, rows)
        else:
            _, rows = tf.while_loop(lambda attempt, _: attempt > 0, again, [attempt, rows])
        return _ops.Unique(taken.inverses, [taken.keys]), rows

    def _read(
        self, ids: Sequence[tf.Tensor], attempt: tf.Tensor | int, path: tf.Tensor, to: str
    ) -> tuple[_ops.Taken, tf.Tensor, tf.Tensor]:
        """Returns the places of the rows of one call's ids, the number of the next attempt, and these rows on `to`."""
        with tf.device(_HOST):
            taken = _ops.cache_take(self.number, ids)
            (from_host,) = _ops.read_rows([taken.absent], [path], [self._uuid], [self._carrier], [0], in_step=True)
            from_host = self._link.down(self._stored(from_host))
            if to != self.device:
                _ops.cache_exchanged(self.number, tf.size(taken.slots) + tf.size(taken.positions), 0)
        with tf.device(self.device):
            here = [_gather(self._planes[0], taken.slots), self._copied(taken)]
        with tf.device(_HOST), tf.control_dependencies(here):
            attempt = _ops.cache_check_taken(self.number, taken.ticket, attempt)
        with tf.device(to):
            rows = tf.gather(tf.concat([*here, from_host], 0), taken.order)
            return taken, attempt, tf.cast(rows, tf.float32)

    def _copied(self, taken: _ops.Taken) -> tf.Tensor:
        """Returns the rows that were copied ahead, [c, dim], in the type in which they are stored."""
        dim, dtype = self._config.dim, self._config.dtype

        def take() -> tf.Tensor:
            with tf.device(self.device):
                rows = tf.gather(copier.unstage(self._area, taken.copy, dtype), taken.positions)
                return tf.ensure_shape(rows, [None, dim])

        return tf.cond(taken.copy > 0, take, lambda: tf.zeros([0, dim], dtype))

    def look_ahead(self) -> None:
        """Starts to copy rows that a dataset announces (`_ops.cache_stage`) to the device ahead of their lookups."""
        if self._copier is None:
            with tf.init_scope():
                self._copier = copier.Copier(
                    self.number,
                    self._area,
                    self._path_tensor,
                    self._uuid,
                    self._config.name,
                    self._config.dtype,
                    self.device,
                    self._link,
                )

    def _stored(self, rows: tf.Tensor) -> tf.Tensor:
        """Casts rows that an op has read on the host to the type in which they are stored, there and here."""
        return tf.cast(rows, self._config.dtype)

    # --- a step ---

    def merge(self, keys: tf.Tensor, gradients: tf.Tensor, device: str) -> tuple[tf.Tensor, tf.Tensor]:
        """See `TableCache.merge`."""
        with tf.device(_HOST):
            unique = _ops.unique([keys], [0], 1)
        with tf.device(device):
            sums = tf.math.unsorted_segment_sum(gradients, unique.inverses[0], tf.shape(unique.keys[0])[0])
            sums.set_shape([None, self._config.dim])
        return unique.keys[0], sums

    def plan(self, keys: tf.Tensor, gradients: tf.Tensor) -> StepPart:
        """Decides which rows a step moves, and reads the rows that leave the device.

        Args:
          keys: int64[u], unique.
          gradients: float32[u, dim].
        """
        with tf.device(_HOST):
            plan = _ops.cache_plan(self.number, self._path_tensor, self._uuid, keys, len(self._planes))
            left_keys = tf.gather(keys, plan.left)
        with tf.device(self.device):
            gradients = tf.identity(gradients)
            victims = [self._link.up(_gather(plane, plan.victims)) for plane in self._planes]
            left_gradients = self._link.up(tf.gather(gradients, plan.left))
            n = tf.shape(gradients)[0]
            finite = tf.reduce_all(tf.math.is_finite(gradients), axis=1)
            first = tf.reduce_min(tf.concat([tf.where(finite, n, tf.range(n)), [n]], 0))
        with tf.device(_HOST):
            not_finite = keys[first : first + 1]
            victims[0] = tf.cast(victims[0], tf.float32)
        return StepPart(keys, plan, gradients, left_keys, left_gradients, victims, not_finite)

    def move(self, part: StepPart, hyper: tf.Tensor, step: tf.Tensor) -> list[tf.Operation]:
        """Does the planned changes on the device, once the step is made: rows enter, and the rows here are trained.

        Args:
          part: What `plan` returned.
          hyper: float32[n], the hyperparameters of the table's rule and of its constraint.
          step: The number of the step, int64.

        Returns:
          The operation that ends the move, in a graph; nothing eagerly. Nobody uses the rows before that.
        """
        assert self._kind is not None  # it is bound
        plan = part.plan
        with tf.device(_HOST):
            coming = [self._stored(plan.rows[0]), *plan.rows[1:]]
            draws = self._draws(part, step)
        with tf.device(self.device):
            entered = [
                _put(plane, plan.entering, self._link.down(rows))
                for plane, rows in zip(self._planes, coming, strict=True)
            ]
            with tf.control_dependencies([operation for operation in entered if operation is not None]):
                rows = [_gather(plane, plan.slots) for plane in self._planes]
            hyper = tf.identity(hyper)
            rows[0] = tf.cast(rows[0], tf.float32)
            trained = row_rules.RULES[self._kind](hyper, tf.gather(part.gradients, plan.held), rows)
            if self._constraint is not None:
                trained[0] = row_constraints.apply(self._constraint.kind, hyper[-4:], trained[0])
            trained[0] = row_rounding.to(self._config.dtype, trained[0], draws)
            written = [_put(plane, plan.slots, new) for plane, new in zip(self._planes, trained, strict=True)]
        with tf.control_dependencies([operation for operation in written if operation is not None]), tf.device(_HOST):
            moved = _ops.cache_moved(self.number, plan.plan)
        return [] if moved is None else [moved]

    def _draws(self, part: StepPart, step: tf.Tensor) -> tf.Tensor | None:
        """Returns the random bits for rounding the trained rows, int64[h]; None if they are not rounded at random."""
        if self._config.dtype == "float32" or self._config.rounding != "stochastic":
            return None
        keys = tf.gather(part.keys, part.plan.held)
        return _ops.cache_draws(self._path_tensor, self._uuid, keys, step)

    def flush_after(self, step: tf.Tensor) -> None:
        """Flushes every `flush_every` steps, if the options have it. `step`: the number of the step made, int64."""
        every = self.options.flush_every
        if every is None:
            return

        def flush() -> tf.Tensor:
            return self._flush()

        with tf.device(_HOST):
            tf.cond(tf.equal(tf.math.floormod(step, every), 0), flush, lambda: tf.constant(0, tf.int64))

    # --- the host's rows ---

    def flush(self) -> None:
        """Writes all rows that are newer here to the host, in one commit. Eager. Does nothing if there are none."""
        if self._given_up:
            return
        with eager_ops(f"flushing the cache of table {self._path}"):
            for _ in range(_FLUSHES):
                if not self.counters()["newer"] or not self._flush():
                    return

    def _flush(self) -> tf.Tensor:
        """Returns the number of rows left, int64, because a step of another thread has trained or moved them."""
        with tf.device(_HOST):
            newer = _ops.cache_newer(self.number)
        with tf.device(self.device):
            rows, *others = (self._link.up(_gather(plane, newer.slots)) for plane in self._planes)
        with tf.device(_HOST):
            rows = tf.cast(rows, tf.float32)
            return _ops.cache_flush(self.number, self._path_tensor, self._uuid, newer, rows, others)[1]

    @property
    def failed(self) -> bool:
        """Whether a step was made on the host and not here: rows are lost, and the rows here must not be used."""
        return bool(self.counters()["moving"])

    @contextlib.contextmanager
    def host_writes(self, *, whole: bool) -> Iterator[None]:
        """Surrounds a write to the table by others. Flushes all newer rows before it, and clears the cache after it.

        Args:
          whole: Whether the write replaces all rows. It then also restores rows that a failed step has lost.
        """
        self._given_up = whole and self.failed
        try:
            self.flush()
            try:
                yield
            except BaseException:
                if not self._given_up:
                    self.clear()
                raise
            self.clear()
        finally:
            self._given_up = False

    def clear(self) -> None:
        """Frees all slots: from now on the host's rows count."""
        with eager_ops(f"clearing the cache of table {self._path}") as _ops_:
            _ops_.cache_clear(self.number)

    def counters(self) -> dict[str, int]:
        """Returns `CACHE_COUNTERS`, by name. Eager."""
        with tf.init_scope(), tf.device(_HOST):
            values = _ops.cache_counters(self.number).numpy().tolist()
        return dict(zip(_ops.CACHE_COUNTERS, values, strict=True))

    def statistics(self) -> dict[str, float]:
        """Returns the `CACHE_COUNTERS` since the cache was made, and figures that follow from them.

        - `hit_rate`: the share of the steps' keys that had slots.
        - `bytes_down`: bytes from the host to the device, for lookups, copied ahead or not, and for rows that entered.
        - `bytes_up`: bytes from the device to the host, for gradients of rows that stayed there, and for rows that left
          or were flushed.
        - `bytes_between`: bytes between devices, for rows that others looked up, and for gradients that came back.
        """
        counters = self.counters()
        del counters["moving"]
        row, gradient = (size * self._config.dim for size in (self._planes[0].dtype.size, 4))
        all_planes = sum(plane.dtype.size * int(plane.shape[1]) for plane in self._planes)
        left = counters["keys"] - counters["hits"] - counters["entered"]
        looked_up = counters["missed"] + counters["copied_ahead"]
        return {
            **{name: float(value) for name, value in counters.items()},
            "hit_rate": counters["hits"] / counters["keys"] if counters["keys"] else 0.0,
            "bytes_down": float(looked_up * row + counters["entered"] * all_planes),
            "bytes_between": float(counters["pulled"] * row + counters["pushed"] * gradient),
            "bytes_up": float(left * gradient + (counters["written"] + counters["flushed"]) * all_planes),
        }


def gather(carrier: tf.Tensor, rows: tf.Tensor, unique: _ops.Unique, device: str) -> list[tf.Tensor]:
    """Gathers the rows of N features' ids on a device. Their gradient arrives at the carrier, summed per key.

    Args:
      carrier: float32[0, dim], the carrier of the table.
      rows: float32[u, dim], the rows of the unique keys.
      unique: The unique keys of these features alone, and the positions of their ids in them.
      device: TensorFlow's name of the device.

    Returns:
      N of float32[*ids.shape, dim].
    """
    (keys,) = unique.keys

    @tf.custom_gradient
    def gathered(carrier: tf.Tensor, rows: tf.Tensor) -> Any:
        def grad(*upstream: tf.Tensor) -> Sequence[Any]:
            _ops.refuse_constructs()
            with tf.device(device):
                flat = _joined([tf.reshape(gradient, [-1, carrier.shape[1]]) for gradient in upstream])
                positions = _joined([tf.reshape(inverse, [-1]) for inverse in unique.inverses])
                sums = tf.math.unsorted_segment_sum(flat, positions, tf.shape(keys)[0])
            return tf.IndexedSlices(sums, keys), None

        return [tf.gather(rows, inverse) for inverse in unique.inverses], grad

    with tf.device(device):
        features: list[tf.Tensor] = gathered(carrier, tf.stop_gradient(rows))
        return features


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _gather(plane: tf.Variable, slots: tf.Tensor) -> tf.Tensor:
    rows = tf.raw_ops.ResourceGather(resource=plane.handle, indices=slots, dtype=plane.dtype)
    rows.set_shape([None, plane.shape[1]])
    return rows


def _put(plane: tf.Variable, slots: tf.Tensor, rows: tf.Tensor) -> tf.Operation | None:
    return tf.raw_ops.ResourceScatterUpdate(resource=plane.handle, indices=slots, updates=rows)


def _remove_gone(ops: Any) -> None:
    while _gone:
        number, pid = _gone.popleft()
        if pid == os.getpid():  # a parent process removes its own
            ops.cache_remove(number)
