"""`DistributedOptimizer`: trains shared tables, and averages the gradients of replicated weights.

Every rank makes a step as follows. docs/training-reference.md has the rules and a table of what works with what.

1. The step builder separates the gradients of tables, which arrive at their anchors, from dense gradients.
2. The reductions of both kinds start. Neither waits for the other.
3. The leader of each node gets one gradient per key, updates its tables, and publishes the step.
4. The wrapped Keras optimizer applies the averaged dense gradients.
5. Every rank waits until its node's tables show the step.
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
    """Returns a property that gets and sets a property of the wrapped optimizer."""

    def get(self: DistributedOptimizer) -> Any:
        return getattr(self.__dict__.get("inner_optimizer"), name, None)

    def put(self: DistributedOptimizer, value: Any) -> None:
        if "inner_optimizer" in self.__dict__:  # Keras's constructor also sets these properties
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
          optimizer: A Keras optimizer, or its name. It trains the dense weights. Its learning rate also drives the
            tables, unless `sparse_optimizer` has its own.
          sparse_optimizer: The update rule of the tables (`tsps.optimizers`). None: the rule that does what `optimizer`
            does; if there is none, the first table raises an error. A rule in a table's own configuration goes first.
          sparse_reduction: What a key's summed gradient is divided by: "frequency" (the number of ranks in which the
            key occurred), "average" (the number of ranks), "sum" (nothing).
          topology: "hierarchical": each rank merges one range of its node's keys in shared memory, and exchanges that
            range with the ranks that have the same local rank on the other nodes. On one node nothing is sent. "flat":
            every rank sends its sparse gradients to all others.
          wire: The type to which sparse gradients are rounded when they are sent between nodes (or, "flat", between
            ranks): "float32", "bfloat16" or "float16". They are summed in float32.
          schedule: When dense gradients are sent and applied, one of `tsps.schedules`. None: `Synchronous()`.
          broadcast: Gives all ranks the dense weights and optimizer variables of rank 0 before the first step, if they
            differ. False: a difference is a ValueError on all ranks.
          collectives: "auto", "horovod", "tensorflow", "tf.distribute" (the strategy in whose scope this is made) or
            "local".
          name: The optimizer's name in Keras.

        Raises:
          ValueError: An option, or the optimizer, cannot work. The message has the reason.
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
        ranks, strategy = collectives_lib.resolve(collectives), collectives_lib.active_strategy()
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            replicas.check_optimizer(optimizer, strategy)
        _check_schedule(schedule, optimizer, ranks)
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
        self._step_builder = step_builder.StepBuilder(self, ranks, rule)

    # --- what Keras calls ---

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the wrapped optimizer's slots for the dense variables. One rank alone may call it, to load a model.

        Raises:
          ValueError: There are tables, and no update rule for them.
          UnsupportedError: A table is sharded, and these options cannot train it.
        """
        tables = [table for variable in variables if (table := binding_of(variable)) is not None]
        self._step_builder.binding.match_rule()  # the wrapped optimizer may have been changed since
        for table in tables:
            self._step_builder.binding.rule_of(table)
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
          name: An argument of Keras 2. It has no effect.
          skip_gradients_aggregation: An argument of Keras 2. It must be False.
          experimental_aggregate_gradients: An argument of Keras 2. It must be True.

        Returns:
          The number of updates, an int64 variable.

        Raises:
          ValueError: Gradients are not to be aggregated, or cannot be trained. The message has the reason.
        """
        if skip_gradients_aggregation or not experimental_aggregate_gradients:
            raise ValueError(
                "DistributedOptimizer always aggregates gradients, because the ranks would drift apart otherwise. "
                "Leave skip_gradients_aggregation and experimental_aggregate_gradients out"
            )
        self._step_builder.make(list(grads_and_vars))
        return self.iterations

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Does what `apply_gradients` does, with the arguments of Keras 3."""
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
        """The wrapped optimizer's learning rate. Schedules and callbacks that set it drive the tables, too.

        If gradients are outstanding, setting it drains first: then every rank must set it, after the same step.
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
        """Refuses attributes that only the wrapped optimizer reads, such as `beta_1`."""
        inner = self.__dict__.get("inner_optimizer")
        of_wrapper = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if inner is not None and not of_wrapper and hasattr(inner, name):
            raise ValueError(
                f"`{name}` belongs to the wrapped {type(inner).__name__}. Set optimizer.inner_optimizer.{name} before "
                f"the first step. Received: DistributedOptimizer.{name} = {value!r}"
            )
        super().__setattr__(name, value)

    def exclude_from_weight_decay(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Leaves weights, or the rows of tables, out of weight decay, like Keras's method of the same name.

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
        dense = [variable for variable in listed if binding_of(variable) is None]
        self._step_builder.binding.no_decay = [
            table for variable in listed if (table := binding_of(variable)) is not None
        ]
        self.inner_optimizer.exclude_from_weight_decay(var_list=dense, var_names=list(var_names or ()))

    @property
    def schedule(self) -> schedules.Schedule:
        """When dense gradients are sent and applied. It can be assigned until the first step is made."""
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
        Each step reads the weight when it runs. Checkpoints and configurations do not hold it.
        """
        return self._step_builder.weight.variable

    def statistics(self) -> dict[str, float]:
        """Returns counters of this process since it began, of all its optimizers together.

        Returns:
          A dict of float, by name. Sparse gradients in shared memory:

          - rows_shared, bytes_shared: the gradient rows that this rank put into shared memory for its node, and their
            bytes with keys. Rows are unique within a step.
          - rows_merged: the rows of the key range that this rank merges, after merging. The sum over the ranks of a
            node is the number of its unique rows.
          - rounds: the number of merges. It exceeds the number of steps when gradients are larger than the window of
            the exchange.
          - waited_s: the seconds for which this rank waited in merges for other ranks of the node.

          Sparse gradients between nodes:

          - sending_s: the seconds for which sparse gradients were on their way between nodes, over Horovod.
          - overlapped_s: the part of sending_s in which this rank merged and packed the next range, or reduced the last
            one, with waits for the other ranks of its node.
          - bytes_sent, bytes_received: the bytes that this rank handed to the all-gather, and what came out of it.

          Tables that are partly on disk:

          - rows_read, disk_bytes: the rows that were read from disk, ahead or when they were needed, and their bytes.
          - rows_read_late: the rows of rows_read that were needed when they were read.
          - rows_read_before: the rows that were needed, were not in their table's memory, and had been read already by
            `tsps.lookahead` or for the same step.
          - disk_waited_s: the seconds for which lookups and steps of this rank waited for rows on disk.
          - disk_errors: the reads and writes that failed. Some were tried again without an error for the caller: reads,
            and all of compaction's.

          Sharded tables:

          - sharded_rows, sharded_bytes: the rows that this node has, and their bytes in memory and on disk.
          - sharded_max_over_mean: the rows of the node that has most, divided by the mean over the nodes, for the table
            with the largest such ratio. Nodes compare their rows at the first step and at the end of `fit`.
          - rows_pulled: the rows of other nodes that lookups of this rank needed.
          - rows_pulled_before: the rows of rows_pulled that had come before their batch.

          Tables that evict rows, on this node, since they were made:

          - rows_evicted_unused: the rows that steps have evicted because no step had trained them for long enough.
          - rows_evicted_excess: the rows that steps have evicted because there were too many.
          - oldest_use_age: the largest number of steps since a row was trained. 0 for tables with rows on disk.

          Tables that admit keys, on this node, since they were made:

          - rows_admitted: the rows that steps have made because their keys had occurred often enough.
          - gradients_dropped: the gradients of keys that had not.
          - sketch_fill, sketch_error: the largest values of a table, as `Table.stats` describes them.

          The last three values are found by a look at all rows and counts in memory.

          Dense gradients:

          - dense_bytes_per_step: the bytes that this optimizer hands to the all-reduce in a step.
        """
        return self._step_builder.statistics()

    def schedule_report(self) -> dict[str, Any]:
        """Returns what the schedule has measured and done so far.

        Returns:
          A dict, by name. It is empty before the first step, and under `Synchronous()`. Under `TimedBuckets`:

          - plan: the `tsps.schedules.Plan`, or None until it is made.

          Under `DelayedGlobal`:

          - iterations: the number of local steps.
          - global_gradients: the number of global gradients that have come.
          - discarded: how many of them were not applied ("newest").
          - without_own: for how many of them this rank was late (`late_after_s`).
          - most_late: the largest number of local steps between a local step and its correction.
        """
        return self._step_builder.report()

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """Has the schedule average variables that are not trained, such as statistics of normalization.

        Call it before the first step; in `fit`, `tsps.callbacks.Drain` does. Only variables of floating types are
        averaged.

        Args:
          variables: Returns the variables when it is called, as `lambda: model.non_trainable_variables` does.
        """
        self._step_builder.also_average(variables)

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies a loss by the wrapped optimizer's `loss_scale_factor`, if it has one."""
        return loss if self.loss_scale_factor == 1.0 else loss * self.loss_scale_factor

    def drain(self) -> None:
        """Applies the gradients that the schedule still has outstanding.

        All ranks then have the same, complete weights and slots. Every rank calls it eagerly, after the same step.
        Under `Synchronous()` it does nothing.
        """
        self._step_builder.drain()

    def save_own_variables(self, store: Any) -> None:
        """Saves the variables of a legacy optimizer. Keras calls it, and saves other wrapped optimizers by itself.

        Raises:
          RuntimeError: The schedule has gradients outstanding, or has not sent slots: this rank's weights or slots are
            not the job's.
        """
        if self._step_builder.incomplete():
            what = "gradients are outstanding" if self._step_builder.outstanding() else "slots are not sent"
            raise RuntimeError(
                f"{what} under {self.schedule}: this rank's weights or slots are not the job's. Call optimizer.drain() "
                "on all ranks before any of them saves; in fit, use tsps.callbacks.Drain()"
            )
        if _keras.is_legacy_optimizer(self.inner_optimizer):
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Loads the variables that `save_own_variables` of this or an earlier version has saved. Keras calls it."""
        if len(store.keys()):
            super().load_own_variables(store)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Drains, and compares how many rows of sharded tables the nodes have. Keras calls it at the end of `fit`."""
        self._step_builder.finish()

    def get_config(self) -> dict[str, Any]:
        """Returns a serializable configuration."""
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
        """Makes an optimizer of a configuration that `get_config` has returned."""
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
        """The factor of the wrapped optimizer, or 1. Not None, which Keras 3 sets, so that setting it is noticed."""
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


def step_builder_of(optimizer: DistributedOptimizer) -> step_builder.StepBuilder:
    """Returns the builder of an optimizer's steps, for callbacks and checkpoints: it holds what they set and read."""
    return optimizer._step_builder


def _check_schedule(schedule: Any, optimizer: Any, collectives: Any) -> None:
    if not isinstance(schedule, schedules.Schedule):
        raise ValueError(f"`schedule` must be one of tsps.schedules, as Synchronous(). Received: {schedule!r}")
    schedule.refuse(optimizer, collectives)


fits.watch(DistributedOptimizer)
_keras_hooks.before_projector(refusals.refuse_projector)
