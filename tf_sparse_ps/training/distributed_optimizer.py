"""The optimizer that trains shared tables, and averages what is replicated.

A step, on every rank (docs/training-reference.md has the rules and a table of what works with what):

1. The anchors' gradients, which are the tables', are taken out of the list.
2. The sparse ring and the dense ring start; neither waits for the other.
3. The leader of each node makes one gradient per key, updates its tables, and publishes the step.
4. The wrapped Keras optimizer applies the averaged dense gradients.
5. Every rank waits until its node's tables have the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import optimizers, schedules
from tf_sparse_ps._compat import _keras, _keras_hooks
from tf_sparse_ps.config import placement
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction import sparse_reducer, sparse_reducers
from tf_sparse_ps.training import fits, loaded_options, refusals, replicas, step_builder


def _of_wrapped(name: str) -> Any:
    """A property that is the wrapped optimizer's."""

    def get(self: DistributedOptimizer) -> Any:
        return getattr(self.__dict__.get("inner_optimizer"), name, None)

    def put(self: DistributedOptimizer, value: Any) -> None:
        if "inner_optimizer" in self.__dict__:  # Keras sets them in its own constructor
            self._set_on_wrapped(name, value)

    return property(get, put)


@_keras.register("DistributedOptimizer")
class DistributedOptimizer(_keras.Optimizer):
    """Wraps a Keras optimizer for models with tables of tf_sparse_ps, on one rank or many.

    ```python
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss=...)
    ```

    Works under Keras 3 and Keras 2 (its legacy optimizers included), in `fit` and in custom training loops. Models
    without tables train too: their gradients are averaged over the ranks.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        sparse_optimizer: optimizers.RowOptimizer | str | None = None,
        sparse_reduction: str = "frequency",
        topology: str = "hierarchical",
        wire: str = "float32",
        schedule: schedules.Schedule | None = None,
        broadcast: bool = True,
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
          topology: "hierarchical": ranks of a node merge their sparse gradients in shared memory, each a range of
            keys, which it exchanges with the ranks of its number on the other nodes; on one node none are sent.
            "flat": every rank sends its own to all.
          wire: What sparse gradients are rounded to where they travel between nodes (or, "flat", between ranks):
            "float32", "bfloat16" or "float16". Sums are made in float32.
          schedule: When dense gradients travel and are applied, one of `tsps.schedules`; None: `Synchronous()`.
          broadcast: All ranks get rank 0's dense weights and optimizer variables before the first step, if theirs
            differ. False: that they differ is a ValueError on all ranks.
          collectives: "auto", "horovod", "tf.distribute" (of the strategy in whose scope this is made) or "local".
          name: For Keras.

        Raises:
          ValueError: An option, or an optimizer, that cannot work, with the reason.
        """
        optimizer = _keras.keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer
        refusals.refuse_unsupported(optimizer, self)
        if sparse_reduction not in sparse_reducer.REDUCTIONS:
            raise ValueError(
                f"`sparse_reduction` must be one of {sparse_reducer.REDUCTIONS}. Received: {sparse_reduction!r}"
            )
        if topology not in sparse_reducers.TOPOLOGIES:
            raise ValueError(f"`topology` must be one of {sparse_reducers.TOPOLOGIES}. Received: {topology!r}")
        if wire not in placement.WIRES:
            raise ValueError(f"`wire` must be one of {placement.WIRES}. Received: {wire!r}")
        if not isinstance(broadcast, bool):
            raise ValueError(f"`broadcast` must be True or False. Received: {broadcast!r}")
        schedule = schedules.Synchronous() if schedule is None else schedule
        rule = optimizers.get(sparse_optimizer)
        found, strategy = collectives_lib.resolve(collectives), collectives_lib.active_strategy()
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            replicas.check_optimizer(optimizer, strategy)
        _check_schedule(schedule, optimizer, found)
        if _keras.IS_KERAS_3:
            super().__init__(learning_rate=0.0, name=name or "distributed_optimizer")
        else:
            super().__init__(name=name or "DistributedOptimizer")
        self.inner_optimizer = optimizer
        self.sparse_optimizer = rule
        self.sparse_reduction = sparse_reduction
        self.topology = topology
        self.wire = wire
        self._schedule = schedule
        self.broadcast = broadcast
        self.collectives = collectives
        self._step_builder = step_builder.StepBuilder(self, found, rule)

    # --- what Keras calls ---

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the wrapped optimizer's slots for the dense variables. Binds nothing: one rank alone may load a model.

        Raises:
          ValueError: There are tables, and no update rule for them.
          UnsupportedError: A table is sharded, and these options cannot train it.
        """
        tables = [table for variable in variables if (table := binding_of(variable)) is not None]
        self._step_builder.match_rule()  # the wrapped optimizer may have been changed since
        for table in tables:
            self._step_builder.rule_of(table)
        refusals.refuse_sharded(self, tables)
        dense = [variable for variable in variables if binding_of(variable) is None]
        self._step_builder.variables = list(variables)
        if dense:
            _keras.build_optimizer(self.inner_optimizer, dense)
        self.built = True

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Reduces gradients over the ranks and updates weights and tables.

        Args:
          grads_and_vars: Pairs of gradient (tensor, `tf.IndexedSlices` or None) and variable.
          name: Of Keras 2, where it names operations; it has no effect here.
          skip_gradients_aggregation: Of Keras 2; must be False.
          experimental_aggregate_gradients: Of Keras 2; must be True.

        Returns:
          The number of updates, an int64 variable.

        Raises:
          ValueError: Gradients are not to be aggregated, or cannot be trained, with the reason.
        """
        if skip_gradients_aggregation or not experimental_aggregate_gradients:
            raise ValueError("DistributedOptimizer always aggregates; ranks would drift apart otherwise")
        self._step_builder.make(list(grads_and_vars))
        return self.iterations

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """As `apply_gradients`, with Keras 3's arguments."""
        if trainable_variables is None:
            trainable_variables = self._step_builder.variables
            if len(trainable_variables) != len(grads):
                raise ValueError(
                    "`apply(grads)` without variables needs `build(variables)` first, with one variable for each "
                    f"gradient. Received: {len(grads)} gradients for {len(trainable_variables)} variables"
                )
        self._step_builder.make(list(zip(grads, trainable_variables, strict=True)))

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
        """The wrapped optimizer's learning rate; schedules and callbacks that set it drive the tables too.

        Setting it drains first where gradients are outstanding: every rank does, after the same step.
        """
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self._step_builder.outstanding():
            self.drain()
        self.inner_optimizer.learning_rate = value

    clipnorm = _of_wrapped("clipnorm")
    clipvalue = _of_wrapped("clipvalue")
    global_clipnorm = _of_wrapped("global_clipnorm")
    weight_decay = _of_wrapped("weight_decay")
    use_ema = _of_wrapped("use_ema")
    gradient_accumulation_steps = _of_wrapped("gradient_accumulation_steps")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses what would be set on the wrapper and read from the wrapped optimizer, such as `beta_1`."""
        inner = self.__dict__.get("inner_optimizer")
        own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if inner is not None and not own and hasattr(inner, name):
            raise ValueError(
                f"`{name}` belongs to the wrapped {type(inner).__name__}. Set optimizer.inner_optimizer.{name} before "
                f"the first step. Received: DistributedOptimizer.{name} = {value!r}"
            )
        super().__setattr__(name, value)

    def exclude_from_weight_decay(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Leaves weights, or the rows of tables, out of weight decay, as Keras's method of the same name.

        Args:
          var_list: Variables; `layer.embeddings` is one.
          var_names: Regular expressions, searched for in the variables' names. A table's is "embeddings", in an
            `EmbeddingCollection` "<table>_embeddings".

        Raises:
          ValueError: The optimizer is built already.
        """
        if getattr(self, "built", False):
            raise ValueError("exclude_from_weight_decay() must be called before the optimizer is built")
        listed = list(var_list or ())
        dense = [one for one in listed if binding_of(one) is None]
        self._step_builder.no_decay = [table for one in listed if (table := binding_of(one)) is not None]
        self.inner_optimizer.exclude_from_weight_decay(var_list=dense, var_names=list(var_names or ()))

    @property
    def schedule(self) -> schedules.Schedule:
        """When dense gradients travel and are applied. It can be assigned until the first step is made."""
        return self._schedule

    @schedule.setter
    def schedule(self, value: schedules.Schedule) -> None:
        if self._step_builder.begun:
            raise ValueError(
                f"the schedule cannot be changed once training has begun: gradients may be on their way, and functions "
                f"are traced for {self._schedule!r}. Make a new DistributedOptimizer. Received: {value!r}"
            )
        _check_schedule(value, self.inner_optimizer, collectives_lib.resolve(self.collectives))
        self._schedule = value

    @property
    def rank_weight(self) -> tf.Variable:
        """This rank's weight in the mean of dense gradients: float32 scalar, 1 unless it is assigned.

        The mean is the sum of weight times gradient over the ranks, divided by the sum of weights. A rank of weight 0
        contributes nothing: no dense gradient, not even NaN, and no key of a table. Other weights do not act on tables.
        Read by each step when it runs; not a part of checkpoints and configurations.
        """
        return self._step_builder.weight.variable

    def begin_with(self, rank: int) -> None:
        """Has the first step begin with this rank's variables in place of rank 0's. Every rank calls it before."""
        self._step_builder.equal.root = rank

    def begin_restored(self) -> None:
        """Has the first step begin with each rank's variables as they are: a checkpoint has set them, on all ranks.

        Statistics of normalisation may then differ between ranks, as they did when it was saved.
        """
        self._step_builder.equal.leave_as_they_are()

    @property
    def begun(self) -> bool:
        """Whether this process has traced, or made, a first step."""
        return self._step_builder.begun

    @property
    def trained_variables(self) -> list[Any]:
        """The variables that it was built for: dense ones, and those that stand for tables."""
        return self._step_builder.variables

    def weigh_until(self, iterations: int | None) -> None:
        """Gives this rank weight 0 in the steps from this number of updates on; None: in none.

        For `tsps.callbacks.EqualSteps`: one call for an epoch, however many steps a call of TensorFlow makes.
        """
        self._step_builder.weight.only_until(iterations)

    def statistics(self) -> dict[str, float]:
        """What this process has put on the rings since it began, all its optimizers together.

        Returns:
          - rows_shared, bytes_shared: gradient rows that this rank put into shared memory for its node, and their bytes
            with keys. Rows are unique within a step.
          - rows_merged: rows that came out of the key range which this rank merges; the node's unique rows are the sum
            over its ranks, the unique ratio is that over the sum of rows_shared.
          - rounds: merges; more than the steps when gradients are larger than the exchange's window.
          - waited_s: seconds spent waiting for other ranks of the node in merges.
          - sending_s, overlapped_s: seconds in which sparse gradients were on their way between nodes, over Horovod,
            and how much of them this rank was merging and packing the next, or reducing the last, waits for the other
            ranks of its node included.
          - bytes_sent, bytes_received: sparse gradients handed to the all-gather by this rank, and what came out of it.
          - rows_read, disk_bytes: rows of tables that are partly on disk, read there, ahead or when they were needed,
            and bytes of these reads; rows_read_late: of the rows, those that were needed when they were read.
          - rows_read_before: rows that were needed, were not in memory with their table, and had been read already:
            by `tsps.lookahead`, or for the same step.
          - disk_waited_s: seconds in which look-ups and steps of this rank waited for rows on disk.
          - sharded_rows, sharded_bytes: rows of sharded tables that this node has, and what they take in memory and on
            disk; sharded_max_over_mean: of the table whose rows lie least evenly, those of the node that has most
            divided by the mean, when nodes were last compared: at the first step, and at the end of `fit`.
          - dense_bytes_per_step: dense gradients that this optimizer hands to the all-reduce in a step.
        """
        return self._step_builder.statistics()

    def schedule_report(self) -> dict[str, Any]:
        """What the schedule has found out and done so far; nothing before the first step, or under `Synchronous()`.

        Returns, under `TimedBuckets`:
          - plan: a `tsps.schedules.Plan`, None until it is made.

        Under `DelayedGlobal`:
          - iterations: local steps. global_gradients: how many have come. Of those, discarded: not applied ("newest");
            without_own: this rank was late for them (`late_after_s`).
          - most_late: the largest number of local steps between a local step and its correction.
        """
        return self._step_builder.report()

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """Gives the schedule variables that are no parameters, to be averaged with them: statistics of normalisation.

        `tsps.callbacks.Drain` does it in `fit`. Before the first step. Other types than floating ones stay as they are.

        Args:
          variables: Called when they are needed: `lambda: model.non_trainable_variables`.
        """
        self._step_builder.also_average(variables)

    def scale_loss(self, loss: Any) -> Any:
        """The loss times the wrapped optimizer's `loss_scale_factor`, if it has one."""
        return loss if self.loss_scale_factor == 1.0 else loss * self.loss_scale_factor

    def drain(self) -> None:
        """Applies what the schedule still has outstanding: all ranks then have the same, complete weights and slots.

        Eager; every rank calls it, after the same step. Does nothing under `Synchronous()`.
        """
        self._step_builder.drain()

    def save_own_variables(self, store: Any) -> None:
        """Keras calls it when it saves. It saves the wrapped optimizer too, which is an attribute, but no legacy one.

        Raises:
          RuntimeError: The schedule has something outstanding: this rank's weights are not the job's.
        """
        if self._step_builder.outstanding():
            raise RuntimeError(
                f"gradients are outstanding under {self.schedule}: this rank's weights are not the job's. Call "
                "optimizer.drain() on all ranks before any of them saves; in fit, use tsps.callbacks.Drain()"
            )
        if _keras.is_legacy_optimizer(self.inner_optimizer):
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Keras calls it when it loads. Files of earlier versions have all variables here, as well."""
        if len(store.keys()):
            super().load_own_variables(store)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Keras calls it at the end of `fit`. Drains, and compares how many rows of sharded tables the nodes have."""
        self._step_builder.finish()

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
            "broadcast": self.broadcast,
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
        return cls(**loaded_options.for_this_job(config))

    def _set_on_wrapped(self, name: str, value: Any) -> None:
        inner = self.inner_optimizer
        kind = type(inner).__name__
        if not hasattr(inner, name):
            raise ValueError(f"the wrapped {kind} has no `{name}`. Received: {name}={value!r}")
        if self._step_builder.begun:
            raise ValueError(
                f"`{name}` cannot be changed once training has begun: functions are traced for "
                f"{getattr(inner, name)!r}. Make a new DistributedOptimizer({kind}({name}=...)). Received: {value!r}"
            )
        before = getattr(inner, name)
        setattr(inner, name, value)
        try:
            refusals.refuse_unsupported(inner, self)
            _check_schedule(self._schedule, inner, collectives_lib.resolve(self.collectives))
        except ValueError:
            setattr(inner, name, before)
            raise

    # Keras's LossScaleOptimizers set these on the optimizer that they wrap.

    @property
    def loss_scale_factor(self) -> float:
        """The wrapped optimizer's, 1 when it has none: setting None, as Keras 3 does, must not look like no change."""
        return getattr(self.__dict__.get("inner_optimizer"), "loss_scale_factor", None) or 1.0

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: Any) -> None:
        if "inner_optimizer" in self.__dict__:
            raise ValueError(refusals.LOSS_SCALING)

    @property
    def _is_wrapped_by_loss_scale_optimizer(self) -> bool:
        return False

    @_is_wrapped_by_loss_scale_optimizer.setter
    def _is_wrapped_by_loss_scale_optimizer(self, value: Any) -> None:
        raise ValueError(refusals.LOSS_SCALING)


def _check_schedule(schedule: Any, optimizer: Any, collectives: Any) -> None:
    if not isinstance(schedule, schedules.Schedule):
        raise ValueError(f"`schedule` must be one of tsps.schedules, as Synchronous(). Received: {schedule!r}")
    schedule.refuse(optimizer, collectives)


fits.watch(DistributedOptimizer)
_keras_hooks.before_projector(refusals.refuse_projector)
