"""`DeviceStore`: the rows of one table that are on one device. docs/device-cache.md has the method.

The host decides which (`cc/core/cache/slot_directory.h`); here are the variables, one for the embedding and one for
each slot of the optimizer, and what moves rows into and out of them. Those that move are read and written in place, at
positions: a variable is never read whole.
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
_FLUSHES = 8  # how often a flush begins again, for rows that another thread has trained meanwhile
# Of this process's caches. Tests and measurements put a slow one here.
link = Link()
# Numbers of caches whose stores are gone, and their processes. Garbage is collected in any thread and between any two
# instructions, in graphs too, so all that is done there is to append; the next cache that is made removes them.
_gone: collections.deque[tuple[int, int]] = collections.deque()


def resolve_device(name: str | None) -> str:
    """The full name of a device of this process. None: its first GPU, or the CPU.

    Raises:
      ValueError: There is none of this name.
    """
    with tf.init_scope():
        found = [one.name for one in tf.config.list_logical_devices()]
    if name is None:
        return next((one for one in found if ":GPU:" in one), "/device:CPU:0")
    wanted = name.rsplit("/", 1)[-1].removeprefix("device:").upper()
    for one in found:
        if one.rsplit("/", 1)[-1].removeprefix("device:").upper() == wanted:
            return one
    raise ValueError(f"DeviceCache(device={name!r}): there is no such device. TensorFlow has: {', '.join(found)}")


def refuse_determinism(device: str, table: str) -> None:
    """Raises UnsupportedError if ops on a device are to be deterministic, and would copy what they write to."""
    if ":GPU:" in device and _tensorflow.is_deterministic():
        raise UnsupportedError(
            f"table {table!r}: with tf.config.experimental.enable_op_determinism() TensorFlow copies a whole variable "
            f"on {device} to write some of its rows, in every step. Train without it, or without a cache (cache=...)"
        )


@dataclasses.dataclass(frozen=True)
class StepPart:
    """What a step does to a table with rows on a device.

    Attributes:
      keys: int64[u], of the step.
      plan: Of the host.
      gradients: float32[u, dim], of all keys of the step.
      left_keys, left_gradients: Of rows that stay on the host.
      victims: Rows that leave the device: float32[v, width] for each plane.
      not_finite: int64[0 or 1]: a key whose gradient is not finite.
    """

    keys: tf.Tensor
    plan: _ops.Plan
    gradients: tf.Tensor
    left_keys: tf.Tensor
    left_gradients: tf.Tensor
    victims: list[tf.Tensor]
    not_finite: tf.Tensor


class DeviceStore:
    """See the module. Of several devices each has the rows of its keys (`table_cache.py`).

    Attributes:
      options: As they were given.
      device: Where the rows are, TensorFlow's full name.
      number: int64 scalar, by which the ops know it.
    """

    def __init__(
        self, path: str, path_tensor: tf.Tensor, uuid: str, config: TableConfig, options: DeviceCache, device: str
    ) -> None:
        """Makes it, with all slots free.

        Args:
          path, path_tensor, uuid, config: Of the table (`TableBinding`).
          options: Of the cache.
          device: As `resolve_device` returns it.

        Raises:
          UnsupportedError: TensorFlow would copy whole variables there.
        """
        refuse_determinism(device, config.name)
        self.options = options
        self.device = device
        self._path, self._path_tensor, self._uuid, self._config = path, path_tensor, uuid, config
        self._kind: str | None = None
        self._given_up = False  # rows that are lost are being written by others
        with eager_ops(f"making the cache of table {path}") as _ops_, tf.device(_HOST):
            _remove_gone(_ops_)
            self.number = _ops_.cache_create(options.rows, options.policy, path)
            self._carrier = tf.zeros([0, config.dim])
        self._area = copier.area_of(int(self.number))
        self._link = link
        self._copier: copier.Copier | None = None
        self._constraint = config.resolved_constraint()
        self._planes = [self._variable(config.dim, "rows", config.dtype)]
        known = weakref.finalize(self, _gone.append, (int(self.number), os.getpid()))
        known.atexit = False  # type: ignore[misc]  # the process gives up everything

    def _variable(self, width: int, name: str, dtype: str = "float32") -> tf.Variable:
        with tf.init_scope(), tf.device(self.device):
            zeros = tf.zeros([self.options.rows, width], dtype)
            return _keras.ResourceVariable(
                initial_value=zeros, trainable=False, name=f"tsps_cache_{self._config.name}_{name}"
            )

    def bind(self, rule: RowOptimizer) -> None:
        """Makes room for the slots of the rule that trains the table. Nothing is newer here than on the host.

        Raises:
          UnsupportedError: The rule has no form for devices; TensorFlow would copy whole variables there.
        """
        refuse_determinism(self.device, self._config.name)
        if self._kind == rule.kind:
            return
        if rule.kind not in row_rules.RULES:
            raise UnsupportedError(
                f"table {self._config.name!r}: rows of the rule {rule.kind!r} cannot be on a device (cache=...), only "
                f"of {', '.join(row_rules.RULES)}"
            )
        self.clear()
        widths = _table.slot_widths(rule.kind, self._config.dim)
        self._planes[1:] = [self._variable(width, name) for width, name in zip(widths, rule.slots, strict=True)]
        self._kind = rule.kind

    # --- looking up ---

    def take(
        self, ids: Sequence[tf.Tensor], path: tf.Tensor, after: tf.Tensor, to: str
    ) -> tuple[_ops.Unique, tf.Tensor]:
        """The unique keys of one call's ids, and their rows, on the device `to`: see `TableCache.take`."""
        with tf.device(_HOST):
            with tf.control_dependencies([after]):
                found = _ops.cache_take(self.number, ids)
            (from_host,) = _ops.read_rows([found.absent], [path], [self._uuid], [self._carrier])
            from_host = self._link.down(self._stored(from_host))
            if to != self.device:
                _ops.cache_exchanged(self.number, tf.size(found.slots) + tf.size(found.positions), 0)
        with tf.device(self.device):
            here = [_gather(self._planes[0], found.slots), self._copied(found)]
        with tf.device(to):
            rows = tf.gather(tf.concat([*here, from_host], 0), found.order)
            return _ops.Unique(found.inverses, [found.keys]), tf.cast(rows, tf.float32)

    def _copied(self, found: _ops.Taken) -> tf.Tensor:
        """Rows that were copied ahead, [c, dim], as they are stored."""
        dim, dtype = self._config.dim, self._config.dtype

        def take() -> tf.Tensor:
            with tf.device(self.device):
                rows = tf.gather(copier.unstage(self._area, found.copy, dtype), found.positions)
                return tf.ensure_shape(rows, [None, dim])

        return tf.cond(found.copy > 0, take, lambda: tf.zeros([0, dim], dtype))

    def look_ahead(self) -> None:
        """From now on rows that a dataset announces (`_ops.cache_stage`) are copied to the device ahead."""
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
        """Rows of the host, of the type that they have there and here."""
        return tf.cast(rows, self._config.dtype)

    # --- a step ---

    def merge(self, keys: tf.Tensor, gradients: tf.Tensor, device: str) -> tuple[tf.Tensor, tf.Tensor]:
        """See `TableCache.merge`."""
        with tf.device(_HOST):
            found = _ops.unique([keys], [0], 1)
        with tf.device(device):
            sums = tf.math.unsorted_segment_sum(gradients, found.inverses[0], tf.shape(found.keys[0])[0])
            sums.set_shape([None, self._config.dim])
        return found.keys[0], sums

    def plan(self, keys: tf.Tensor, gradients: tf.Tensor) -> StepPart:
        """Decides what a step moves, and reads what leaves.

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
        """Does on the device what was planned, when the step is made: new rows come, and all that are here are trained.

        Args:
          part: The step's.
          hyper: Of the table's rule, and of its constraint, float32[n].
          step: That was made, int64.

        Returns:
          What says that it is done, in a graph; nothing eagerly. Before that the rows are used by nobody.
        """
        assert self._kind is not None  # it is bound
        plan = part.plan
        with tf.device(_HOST):
            coming = [self._stored(plan.rows[0]), *plan.rows[1:]]
            draws = self._draws(part, step)
        with tf.device(self.device):
            came = [
                _put(plane, plan.entering, self._link.down(rows))
                for plane, rows in zip(self._planes, coming, strict=True)
            ]
            with tf.control_dependencies([one for one in came if one is not None]):
                rows = [_gather(plane, plan.slots) for plane in self._planes]
            hyper = tf.identity(hyper)
            rows[0] = tf.cast(rows[0], tf.float32)
            trained = row_rules.RULES[self._kind](hyper, tf.gather(part.gradients, plan.held), rows)
            if self._constraint is not None:
                trained[0] = row_constraints.apply(self._constraint.kind, hyper[-4:], trained[0])
            trained[0] = row_rounding.to(self._config.dtype, trained[0], draws)
            done = [_put(plane, plan.slots, new) for plane, new in zip(self._planes, trained, strict=True)]
        with tf.control_dependencies([one for one in done if one is not None]), tf.device(_HOST):
            moved = _ops.cache_moved(self.number, plan.plan)
        return [] if moved is None else [moved]

    def _draws(self, part: StepPart, step: tf.Tensor) -> tf.Tensor | None:
        """What the rounding of the rows that are trained depends on, int64[h]; None: they are not rounded at random."""
        if self._config.dtype == "float32" or self._config.rounding != "stochastic":
            return None
        keys = tf.gather(part.keys, part.plan.held)
        return _ops.cache_draws(self._path_tensor, self._uuid, keys, step)

    def flush_after(self, step: tf.Tensor) -> None:
        """Flushes after every so many steps, if the cache's options say so. `step`: the one that was made, int64."""
        every = self.options.flush_every
        if every is None:
            return

        def flush() -> tf.Tensor:
            return self._flush()

        with tf.device(_HOST):
            tf.cond(tf.equal(tf.math.floormod(step, every), 0), flush, lambda: tf.constant(0, tf.int64))

    # --- the host's rows ---

    def flush(self) -> None:
        """Gives the host all rows that are newer here, in one commit. Eagerly; does nothing if there are none."""
        if self._given_up:
            return
        with eager_ops(f"flushing the cache of table {self._path}"):
            for _ in range(_FLUSHES):
                if not self.counters()["newer"] or not self._flush():
                    return

    def _flush(self) -> tf.Tensor:
        """Returns how many rows were left, because a step of another thread has trained or moved them; int64."""
        with tf.device(_HOST):
            newer = _ops.cache_newer(self.number)
        with tf.device(self.device):
            rows, *others = (self._link.up(_gather(plane, newer.slots)) for plane in self._planes)
        with tf.device(_HOST):
            rows = tf.cast(rows, tf.float32)
            return _ops.cache_flush(self.number, self._path_tensor, self._uuid, newer, rows, others)[1]

    @property
    def failed(self) -> bool:
        """Whether a step was made on the host and not here: rows are lost, and what is here is not to be used."""
        return bool(self.counters()["moving"])

    @contextlib.contextmanager
    def host_writes(self, *, whole: bool) -> Iterator[None]:
        """Surrounds a write of others to the table: all newer rows are flushed, and then none is here any more.

        Args:
          whole: They write everything. So rows that a failed step has lost are there again, and are not asked for.
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
        """Frees all slots: the host's rows are the ones that count, from now on."""
        with eager_ops(f"clearing the cache of table {self._path}") as _ops_:
            _ops_.cache_clear(self.number)

    def counters(self) -> dict[str, int]:
        """`CACHE_COUNTERS`, by name."""
        with tf.init_scope(), tf.device(_HOST):
            found = _ops.cache_counters(self.number).numpy().tolist()
        return dict(zip(_ops.CACHE_COUNTERS, found, strict=True))

    def statistics(self) -> dict[str, float]:
        """What it did since it was made: `CACHE_COUNTERS`, and what follows from them.

        `hit_rate` is that of steps; `bytes_down` went from the host to the device, `bytes_up` back: rows of forward
        passes, copied ahead or when they were needed, rows that entered, gradients of rows that stayed, and rows that
        left or were flushed. `bytes_between` went from one device to another: rows that others looked up, and
        gradients that came back.
        """
        found = self.counters()
        del found["moving"]
        row, gradient = (size * self._config.dim for size in (self._planes[0].dtype.size, 4))
        all_planes = sum(plane.dtype.size * int(plane.shape[1]) for plane in self._planes)
        left = found["keys"] - found["hits"] - found["entered"]
        return {
            **{name: float(value) for name, value in found.items()},
            "hit_rate": found["hits"] / found["keys"] if found["keys"] else 0.0,
            "bytes_down": float((found["missed"] + found["copied_ahead"]) * row + found["entered"] * all_planes),
            "bytes_between": float(found["pulled"] * row + found["pushed"] * gradient),
            "bytes_up": float(left * gradient + (found["written"] + found["flushed"]) * all_planes),
        }


def gather(carrier: tf.Tensor, rows: tf.Tensor, found: _ops.Unique, device: str) -> list[tf.Tensor]:
    """Rows of the ids of N features, on a device; their gradient arrives at the carrier, summed there per key.

    Args:
      carrier: float32[0, dim], of the table.
      rows: float32[u, dim], of the unique keys.
      found: Of the features of this table alone.
      device: TensorFlow's name.

    Returns:
      N of float32[*ids.shape, dim].
    """

    (keys,) = found.keys

    @tf.custom_gradient
    def gathered(carrier: tf.Tensor, rows: tf.Tensor) -> Any:
        def grad(*upstream: tf.Tensor) -> Sequence[Any]:
            _ops.refuse_constructs()
            with tf.device(device):
                flat = _joined([tf.reshape(one, [-1, carrier.shape[1]]) for one in upstream])
                positions = _joined([tf.reshape(one, [-1]) for one in found.inverses])
                sums = tf.math.unsorted_segment_sum(flat, positions, tf.shape(keys)[0])
            return tf.IndexedSlices(sums, keys), None

        return [tf.gather(rows, one) for one in found.inverses], grad

    with tf.device(device):
        found_rows: list[tf.Tensor] = gathered(carrier, tf.stop_gradient(rows))
        return found_rows


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
        if pid == os.getpid():  # not of a parent's
            ops.cache_remove(number)
