"""The optimizer that trains shared tables, and averages what is replicated.

A step, on every rank (docs/training.md has the rules and a table of what works with what):

1. The anchors' gradients, which are the tables', are taken out of the list.
2. The sparse ring and the dense ring start; neither waits for the other.
3. The leader of each node makes one gradient per key, updates its tables, and publishes the step.
4. The wrapped Keras optimizer applies the averaged dense gradients.
5. Every rank waits until its node's tables have the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _keras, _ops, optimizers, schedules
from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import job as job_lib
from tf_sparse_ps.layers import anchor
from tf_sparse_ps.training import binding, clipping, dense_ring, failures, gradient_tape, sparse_ring
from tf_sparse_ps.training.sparse_ring import SparseGradient

# Gradients of other layers that arrive as IndexedSlices travel dense when the variable is at most this big, and in the
# sparse ring otherwise.
_DENSIFY_UP_TO = 1 << 20
_WIDEST_ROW = 1 << 16  # that the sparse ring takes


@_keras.register("DistributedOptimizer")
class DistributedOptimizer(_keras.Optimizer):
    """Wraps a Keras optimizer for models with tables of tf_sparse_ps, on one rank or many.

    ```python
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.05)), loss=...)
    ```

    Works under Keras 3 and Keras 2 (its legacy optimizers included), in `fit` and in loops of one's own. Models without
    tables train too: their gradients are averaged over the ranks.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        sparse_optimizer: optimizers.RowOptimizer | str | None = None,
        sparse_reduction: str = "frequency",
        topology: str = "hierarchical",
        wire: str = "float32",
        schedule: Any = None,
        collectives: str = "auto",
        name: str | None = None,
    ) -> None:
        """Makes the optimizer.

        Args:
          optimizer: A Keras optimizer, or its name. It trains the dense weights; its learning rate drives the
            tables too, unless `sparse_optimizer` has its own.
          sparse_optimizer: The update rule of the tables (`tsps.optimizers`); None: the one that does what
            `optimizer` does, an error at the first table if there is none. A rule in a table's own configuration goes
            first.
          sparse_reduction: What a key's summed gradient is divided by: "frequency" (the number of ranks in which the
            key occurred), "average" (the number of ranks), "sum" (nothing).
          topology: "hierarchical": ranks of a node merge their sparse gradients in shared memory, only the leaders of
            nodes send any. "flat": every rank sends its own to all.
          wire: What sparse gradients are rounded to where they travel between nodes (or, "flat", between ranks):
            "float32", "bfloat16" or "float16". Sums are made in float32.
          schedule: `tsps.schedules.Synchronous()`, the default.
          collectives: "auto", "horovod" or "local".
          name: For Keras.

        Raises:
          ValueError: An option, or an optimizer, that cannot work, with the reason.
        """
        optimizer = _keras.keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer
        _refuse_unsupported(optimizer, self)
        if sparse_reduction not in sparse_ring.REDUCTIONS:
            raise ValueError(
                f"`sparse_reduction` must be one of {sparse_ring.REDUCTIONS}. Received: {sparse_reduction!r}"
            )
        if topology not in sparse_ring.TOPOLOGIES:
            raise ValueError(f"`topology` must be one of {sparse_ring.TOPOLOGIES}. Received: {topology!r}")
        if wire not in sparse_ring.WIRES:
            raise ValueError(f"`wire` must be one of {sparse_ring.WIRES}. Received: {wire!r}")
        schedule = schedules.Synchronous() if schedule is None else schedule
        if not isinstance(schedule, schedules.Synchronous):
            raise ValueError(f"`schedule` must be tsps.schedules.Synchronous() in this version. Received: {schedule!r}")
        rule = optimizers.get(sparse_optimizer)
        if _keras.IS_KERAS_3:
            super().__init__(learning_rate=0.0, name=name or "distributed_optimizer")
        else:
            super().__init__(name=name or "DistributedOptimizer")
        self.inner_optimizer = optimizer
        self.sparse_optimizer = rule
        self.sparse_reduction = sparse_reduction
        self.topology = topology
        self.wire = wire
        self.schedule = schedule
        self.collectives = collectives
        self._run = _Run(collectives_lib.resolve(collectives), rule or _match(optimizer))

    # --- what Keras calls ---

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the wrapped optimizer's slots for the dense variables. Binds nothing: one rank alone may load a model.

        Raises:
          ValueError: There are tables, and no update rule for them.
        """
        for variable in variables:
            if (table := anchor.binding_of(variable)) is not None:
                self._rule_of(table)
        dense = [variable for variable in variables if anchor.binding_of(variable) is None]
        self._run.variables = list(variables)
        if dense:
            _keras.build_optimizer(self.inner_optimizer, dense)
        self.built = True

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **options: Any) -> Any:
        """Reduces gradients over the ranks and updates weights and tables.

        Args:
          grads_and_vars: Pairs of gradient (tensor, `tf.IndexedSlices` or None) and variable.
          args: Keras 2's `name`, ignored.
          options: Keras 2's `skip_gradients_aggregation`, which must be False.

        Returns:
          The number of updates, an int64 variable.
        """
        aggregate = options.get("experimental_aggregate_gradients", True)
        if options.get("skip_gradients_aggregation") or not aggregate:
            raise ValueError("DistributedOptimizer always aggregates; ranks would drift apart otherwise")
        self._train(list(grads_and_vars))
        return self.iterations

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """As `apply_gradients`, with Keras 3's arguments."""
        if trainable_variables is None:
            trainable_variables = self._run.variables
            if len(trainable_variables) != len(grads):
                raise ValueError(
                    "`apply(grads)` without variables needs `build(variables)` first, with one variable for each "
                    f"gradient. Received: {len(grads)} gradients for {len(trainable_variables)} variables"
                )
        self._train(list(zip(grads, trainable_variables, strict=True)))

    @property
    def variables(self) -> Any:
        """The wrapped optimizer's variables. The tables' slots are in the tables."""
        variables = self.inner_optimizer.variables
        return variables() if callable(variables) else variables

    @property
    def iterations(self) -> Any:
        """The number of updates, the wrapped optimizer's."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self.inner_optimizer.iterations = value

    @property
    def learning_rate(self) -> Any:
        """The wrapped optimizer's learning rate; schedules and callbacks that set it drive the tables too."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    def statistics(self) -> dict[str, float]:
        """What this process has put on the rings since it began, all its optimizers together.

        Returns:
          - rows_shared, bytes_shared: gradient rows that this rank put into shared memory for its node, and their bytes
            with keys. Rows are unique within a step.
          - rows_merged: rows that came out of the key range which this rank merges; the node's unique rows are the sum
            over its ranks, the unique ratio is that over the sum of rows_shared.
          - rounds: merges; more than the steps when gradients are larger than the exchange's window.
          - waited_s: seconds spent waiting for other ranks of the node in merges.
          - bytes_sent, bytes_received: sparse gradients handed to the all-gather by this rank, and what came out of it.
          - dense_bytes_per_step: dense gradients that this optimizer hands to the all-reduce in a step.
        """
        found = dict.fromkeys(_ops.RING_COUNTERS, 0.0)
        if self._run.ring is not None:
            counters = _ops.ring_info(job_lib.current().group_path).numpy().tolist()
            found = {name: float(value) for name, value in zip(_ops.RING_COUNTERS, counters, strict=True)}
        found["waited_s"] = found.pop("waited_ns") * 1e-9
        return {**found, "dense_bytes_per_step": float(self._run.dense_bytes)}

    def scale_loss(self, loss: Any) -> Any:
        """The loss times the wrapped optimizer's `loss_scale_factor`, if it has one."""
        return loss if self.loss_scale_factor == 1.0 else loss * self.loss_scale_factor

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Nothing to do: only EMA needs it, which is refused."""

    def get_config(self) -> dict[str, Any]:
        """A serializable configuration."""
        return {
            "name": self.name,
            "optimizer": _keras.serialize_optimizer(self.inner_optimizer),
            "sparse_optimizer": optimizers.serialize(self.sparse_optimizer),
            "sparse_reduction": self.sparse_reduction,
            "topology": self.topology,
            "wire": self.wire,
            "schedule": {"class_name": type(self.schedule).__name__, "config": self.schedule.get_config()},
            "collectives": self.collectives,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
        """The inverse of `get_config`."""
        config = dict(config)
        config["optimizer"] = _keras.deserialize_optimizer(config["optimizer"], custom_objects)
        if isinstance(config.get("schedule"), dict):
            schedule = config["schedule"]
            config["schedule"] = getattr(schedules, schedule["class_name"])(**schedule["config"])
        return cls(**config)

    # Keras's LossScaleOptimizers set these on the optimizer that they wrap.

    @property
    def loss_scale_factor(self) -> float:
        """The wrapped optimizer's, 1 when it has none: setting None, as Keras 3 does, must not look like no change."""
        return getattr(self.__dict__.get("inner_optimizer"), "loss_scale_factor", None) or 1.0

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: Any) -> None:
        if "inner_optimizer" in self.__dict__:
            raise ValueError(_LOSS_SCALING)

    @property
    def _is_wrapped_by_loss_scale_optimizer(self) -> bool:
        return False

    @_is_wrapped_by_loss_scale_optimizer.setter
    def _is_wrapped_by_loss_scale_optimizer(self, value: Any) -> None:
        raise ValueError(_LOSS_SCALING)

    # --- the step ---

    def _rule_of(self, table: Any) -> optimizers.RowOptimizer:
        rule = table.config.optimizer or self._run.rule
        if isinstance(rule, ValueError):
            raise ValueError(f"table '{table.config.name}' has no update rule: {rule}")
        return rule

    def _train(self, pairs: list[tuple[Any, Any]]) -> None:
        if tf.distribute.has_strategy():
            raise ValueError(_STRATEGY)
        if all(gradient is None for gradient, _ in pairs):
            raise ValueError(f"no gradients provided for any variable: {[v.name for _, v in pairs]}")
        if not self._run.variables:
            self.build([variable for _, variable in pairs])
        tables, dense = _split(pairs)
        run = self._run
        with tf.init_scope():
            job = job_lib.current() if tables else None
            self._bind(job, tables, dense)
        world, name = run.collectives, f"tsps.{run.ordinal}"

        # Both rings' inputs are ready gradients, and neither's outputs are the other's inputs.
        big = sparse_ring.reduce_replicated([one.gradient for one in dense if one.big], world, f"{name}.big")
        run.dense_bytes = sum(one.bytes for one in dense if one.to_average) if world.size > 1 else 0
        averaged = dense_ring.average([one.value for one in dense if one.to_average], world, f"{name}.dense")
        _take_back(dense, averaged, big)

        # Read now: the wrapped optimizer's update advances its iterations, and with them a schedule.
        rate, made = _keras.current_learning_rate(self.inner_optimizer), tf.convert_to_tensor(self.iterations)
        published: list[tf.Tensor] = []
        if job is not None:
            published = [self._update_tables(job, tables, dense, rate, made)]
        present = [one for one in dense if one.result is not None]
        if present:
            _keras.apply_optimizer(self.inner_optimizer, [one.result for one in dense], [one.variable for one in dense])
        else:
            self.iterations.assign_add(1)
        if job is not None:
            with tf.control_dependencies(published):
                job.step.assign(_ops.wait_step(job.group_path, published[0], job.timeout_s))

    def _bind(self, job: Any, tables: list[_TableGradient], dense: list[_DenseGradient]) -> None:
        run = self._run
        new = [one.table for one in tables if one.table.path not in run.bound]
        if run.ordinal is not None and not new:
            return
        run.ordinal = binding.bind(
            run.collectives,
            job,
            new,
            [self._rule_of(table) for table in new],
            {
                "sparse_reduction": self.sparse_reduction,
                "topology": self.topology,
                "wire": self.wire,
                "schedule": self.schedule,
                "wrapped optimizer": type(self.inner_optimizer).__name__,
                "updates made before": int(self.iterations),
                "clipping": clipping.Clipping.of(self.inner_optimizer),
                "dense gradients": [one.signature for one in dense],
                "tables with gradients": [one.table.config.name for one in tables],
            },
        )
        run.bound.update(table.path for table in new)
        if new and run.collectives.size > 1:
            binding.on_all(run.collectives, job.join_exchange, "tsps.exchange")
            failures.watch(job)
        if new and run.ring is None:
            run.ring = sparse_ring.make(self.topology, job, self.sparse_reduction, self.wire)

    def _update_tables(
        self, job: Any, tables: list[_TableGradient], dense: list[_DenseGradient], rate: tf.Tensor, made: tf.Tensor
    ) -> tf.Tensor:
        """Returns the step that these gradients make, once this process has done its part of it."""
        run, factor, clip = self._run, self.loss_scale_factor, clipping.Clipping.of(self.inner_optimizer)
        assert run.ring is not None  # made when the tables were bound
        step = tf.identity(job.step) + 1
        gradients, name = [one.gradient for one in tables], f"tsps.{run.ordinal}"
        rules = [self._rule_of(one.table) for one in tables]
        update = sparse_ring.Update(
            [one.table.path for one in tables],
            [one.table.uuid for one in tables],
            [rule.hyper_tensor(tf.cast(rule.rate_at(made, rate), tf.float32), made + 1) for rule in rules],
        )
        if factor == 1.0 and clip == clipping.Clipping():
            return run.ring.apply(gradients, f"{name}.sparse", step, update)

        reduced = run.ring.reduce(gradients, f"{name}.sparse", step)
        rows = None if reduced is None else [_unscale(one.rows, factor) for one in reduced]
        if rows is not None and clip.value is not None:
            rows = [tf.clip_by_value(one, -clip.value, clip.value) for one in rows]
        if clip.needs_norms:
            others = [_unscale(one.result, factor) for one in dense if one.result is not None]
            factors = clipping.table_factors(clip, rows, others, len(tables), run.collectives, f"{name}.clip")
            if rows is not None:
                rows = [one * factors[t] for t, one in enumerate(rows)]
            if clip.global_norm is not None:
                # The wrapped optimizer clips what it gets once more, which finds nothing left to clip.
                for one in dense:
                    one.result = None if one.result is None else clipping.scale(one.result, factors[0])
        if reduced is None or rows is None:
            return step
        return update.apply(step, [one.keys for one in reduced], rows)


_LOSS_SCALING = (
    "a LossScaleOptimizer cannot be around DistributedOptimizer, where compile() under mixed_float16 puts one: it "
    "decides from this rank's own gradients whether to make the step, so ranks would disagree and wait for each other. "
    "Use the policy mixed_bfloat16, or, with Keras 3, compile(auto_scale_loss=False) and a fixed loss_scale_factor in "
    "the optimizer that you wrap."
)
_STRATEGY = (
    "DistributedOptimizer does not work under a tf.distribute strategy in this version. Start one process per rank "
    "with horovodrun, and leave the strategy out."
)


class _Run:
    """What an optimizer has found out by training."""

    def __init__(self, collectives: collectives_lib.Collectives, rule: optimizers.RowOptimizer | ValueError) -> None:
        self.collectives = collectives
        self.rule = rule  # of tables without their own; or why there is none, which matters when there is a table
        self.ordinal: int | None = None
        self.ring: sparse_ring.SparseRing | None = None  # made when the first table is bound
        self.bound: set[str] = set()
        self.dense_bytes = 0
        self.variables: list[Any] = []


@dataclasses.dataclass
class _TableGradient:
    table: Any  # TableBinding
    slices: list[tf.IndexedSlices]

    @property
    def gradient(self) -> SparseGradient:
        return SparseGradient.of(self.slices, self.table.config.dim)


@dataclasses.dataclass
class _DenseGradient:
    variable: Any
    value: Any  # as it came: tensor, IndexedSlices when `big`, or None
    result: Any = None  # reduced

    @property
    def big(self) -> bool:
        return isinstance(self.value, tf.IndexedSlices)

    @property
    def to_average(self) -> bool:
        return self.value is not None and not self.big and not gradient_tape.is_averaged(self.value)

    @property
    def gradient(self) -> SparseGradient:
        width = tf.TensorShape(self.variable.shape[1:]).num_elements()
        return SparseGradient.of([self.value], width)

    @property
    def bytes(self) -> int:
        return int(tf.TensorShape(self.variable.shape).num_elements()) * int(self.value.dtype.size)

    @property
    def signature(self) -> str:
        kind = "none" if self.value is None else "sparse" if self.big else "dense"
        return f"{kind}{list(self.variable.shape)}"


def _match(optimizer: Any) -> optimizers.RowOptimizer | ValueError:
    try:
        return optimizers.match(optimizer)
    except ValueError as error:
        return error


def _refuse_unsupported(optimizer: Any, wrapper: Any) -> None:
    kind = type(optimizer).__name__
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("the optimizer is a DistributedOptimizer already; it would reduce twice")
    for one in (optimizer, wrapper):
        if (foreign := collectives_lib.foreign_wrapper(one)) is not None:
            raise ValueError(
                f"tsps.DistributedOptimizer takes the place of {foreign}; gradients would be reduced twice. Wrap the "
                "plain Keras optimizer in tsps.DistributedOptimizer only."
            )
    if _keras.is_loss_scale_optimizer(optimizer):
        raise ValueError(
            "DistributedOptimizer cannot wrap a LossScaleOptimizer: tables would miss the steps that it skips. Use the "
            "policy mixed_bfloat16, or a fixed loss_scale_factor (Keras 3)."
        )
    if not isinstance(optimizer, _keras.optimizer_types()):
        raise ValueError(f"`optimizer` must be a Keras optimizer or its name. Received: {optimizer!r}")
    if steps := getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            f"{kind}(gradient_accumulation_steps={steps}) is not supported: tables would move at every batch, the "
            "dense weights at every few. Use a larger batch, or add up the losses of several in a loop of your own."
        )
    if getattr(optimizer, "use_ema", False):
        raise ValueError(
            f"{kind}(use_ema=True) is not supported: it would average the dense weights and not the tables, and put "
            "the averages in place at the end of fit."
        )
    if tf.distribute.has_strategy():
        raise ValueError(_STRATEGY)


def _split(pairs: list[tuple[Any, Any]]) -> tuple[list[_TableGradient], list[_DenseGradient]]:
    """Takes tables' gradients out of the list, one entry per table, in the order of the tables' ordinals."""
    tables: dict[str, _TableGradient] = {}
    dense: list[_DenseGradient] = []
    for gradient, variable in pairs:
        table = anchor.binding_of(variable)
        if table is None:
            dense.append(_DenseGradient(variable, _dense_or_big(gradient, variable)))
            continue
        entry = tables.setdefault(table.path, _TableGradient(table, []))
        if gradient is None:
            continue
        if not isinstance(gradient, tf.IndexedSlices):
            raise ValueError(
                f"the gradient of table '{table.config.name}' must be tf.IndexedSlices, as the tape gives it. "
                f"Received: {gradient!r}. Something between tape and optimizer changed it; clip with the wrapped "
                "optimizer's clipnorm, clipvalue or global_clipnorm."
            )
        _refuse_reduced(gradient, table)
        entry.slices.append(gradient)
    return sorted(tables.values(), key=lambda entry: entry.table.ordinal), dense


def _dense_or_big(gradient: Any, variable: Any) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    shape = tf.TensorShape(variable.shape)
    wide = shape[1:].num_elements() > _WIDEST_ROW
    if shape.num_elements() > _DENSIFY_UP_TO and not wide and gradient.values.dtype == tf.float32 and shape.rank >= 1:
        return gradient
    # Through the variable's shape: the slices may not know theirs.
    slices = tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape.as_list(), tf.int64))
    return tf.ensure_shape(tf.convert_to_tensor(slices), shape)


def _refuse_reduced(gradient: tf.IndexedSlices, table: Any) -> None:
    """Refuses a table's gradient that another library has gathered, where it can be seen: in a graph."""
    if tf.executing_eagerly():
        return
    pending, seen = [gradient.values.op, gradient.indices.op], 0
    while pending and seen < 64:
        op = pending.pop()
        seen += 1
        if op.type.startswith("Horovod"):
            raise ValueError(
                f"the gradient of table '{table.config.name}' has been reduced by Horovod already ({op.type}), which "
                "loses the number of ranks of each key. Use tsps.DistributedGradientTape in place of Horovod's."
            )
        if op.type not in ("TspsSegmentSum", "TspsPooledSum", "TspsLookup", "TspsPooledLookup"):
            pending.extend(tensor.op for tensor in op.inputs)


def _take_back(dense: list[_DenseGradient], averaged: list[tf.Tensor], reduced: list[SparseGradient]) -> None:
    """Puts the rings' outputs to the gradients that went in."""
    ring = iter(averaged)
    for one in dense:
        if one.to_average:
            one.result = next(ring)
        elif not one.big:
            one.result = one.value  # None, or averaged by a DistributedGradientTape
    big = [one for one in dense if one.big]
    for one, merged in zip(big, reduced, strict=True):
        rows = tf.reshape(merged.rows, [-1, *one.variable.shape[1:]])
        one.result = tf.IndexedSlices(rows, merged.keys, tf.constant(list(one.variable.shape), tf.int64))


def _unscale(gradient: Any, factor: float) -> Any:
    return gradient if factor == 1.0 else clipping.scale(gradient, tf.constant(1.0 / factor, tf.float32))
