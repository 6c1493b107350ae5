"""Refuses optimizers, options, tables and callbacks that do not work with `DistributedOptimizer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.reduction.clipping import Clipping
from tf_sparse_ps.schedules.delayed_global import DelayedGlobal
from tf_sparse_ps.schedules.schedule import Schedule
from tf_sparse_ps.training.optimizer_options import OptimizerOptions

LOSS_SCALING = (
    "a LossScaleOptimizer cannot wrap DistributedOptimizer; compile() under mixed_float16 makes one. It decides from "
    "the gradients of this rank whether to make the step, so the ranks would disagree and wait for each other. Use the "
    "policy mixed_bfloat16, or, with Keras 3, compile(auto_scale_loss=False) and a fixed loss_scale_factor in the "
    "optimizer that you wrap."
)
STRATEGY = (
    "a tf.distribute strategy of several replicas is active, and this optimizer or tape was made for "
    "collectives='{kind}'. The replicas would train apart. Make it within `with strategy.scope():`, with "
    "collectives='auto' or 'tf.distribute'."
)
OUTSIDE_OF_RUN = (
    "gradients of a tf.distribute strategy can only be reduced in its replicas. Call apply_gradients (and a "
    "DistributedGradientTape's gradient) in a function that strategy.run() runs, directly or through tf.functions "
    "around the call of strategy.run()."
)


def refuse_unsupported(optimizer: Any, wrapper: Any) -> None:
    """Raises ValueError, with the reason, if `wrapper`, a DistributedOptimizer, cannot wrap `optimizer`."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, type(wrapper)):
        raise ValueError(
            "the optimizer is already a DistributedOptimizer, so gradients would be reduced twice. Pass the Keras "
            "optimizer that it wraps"
        )
    for candidate in (optimizer, wrapper):
        if (foreign := collectives_lib.foreign_wrapper(candidate)) is not None:
            raise ValueError(
                f"tsps.DistributedOptimizer replaces {foreign}. With both, gradients would be reduced twice. Wrap the "
                "plain Keras optimizer in tsps.DistributedOptimizer only."
            )
    if _keras.is_loss_scale_optimizer(optimizer):
        raise ValueError(
            "DistributedOptimizer cannot wrap a LossScaleOptimizer. It skips steps whose gradients overflow, and "
            "tables would not skip them. Use the policy mixed_bfloat16, or a fixed loss_scale_factor (Keras 3)."
        )
    if not isinstance(optimizer, _keras.optimizer_types()):
        raise ValueError(f"`optimizer` must be a Keras optimizer or its name. Received: {optimizer!r}")
    if steps := getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            f"{kind}(gradient_accumulation_steps={steps}) is not supported: tables would be updated in every batch, "
            f"but dense weights only in every {steps}. Use a larger batch, or add up the losses of several batches in "
            "a training loop."
        )
    if getattr(optimizer, "use_ema", False):
        raise ValueError(
            f"{kind}(use_ema=True) is not supported: it would average the dense weights, but not the tables, and "
            "replace the weights by the averages at the end of fit. Leave use_ema out."
        )


def refuse_tables(schedule: Schedule, tables: Sequence[TableBinding]) -> None:
    """Raises UnsupportedError, with the reason, if a schedule cannot train a table with its options."""
    for table in tables:
        options = {
            f"storage={table.config.storage}": schedule.refuses_tiered if table.config.storage != "memory" else None,
            f"eviction={table.config.eviction}": schedule.refuses_eviction if table.config.eviction else None,
            f"admission={table.config.admission}": schedule.refuses_admission if table.config.admission else None,
        }
        for option, reason in options.items():
            if reason is not None:
                raise UnsupportedError(
                    f"table {table.config.name!r} has {option} and cannot be trained with {schedule}: {reason} Use "
                    "schedules.Synchronous() or TimedBuckets()."
                )


def refuse_sharded(owner: OptimizerOptions, tables: Sequence[TableBinding]) -> None:
    """Raises UnsupportedError, with the reason, if an optimizer cannot train a table that is spread over machines.

    It also raises on one machine, where a sharded table has all its rows, so that the program works on several.
    """
    sharded = [table.config.name for table in tables if isinstance(table.config.placement, Sharded)]
    if not sharded:
        return
    clips = Clipping.of(owner.inner_optimizer)
    reasons = {
        str(owner.schedule): owner.schedule.refuses_sharded,
        f"topology={owner.topology!r}": None
        if owner.topology == "hierarchical"
        else "gradients are sent only to the machine that has the row. Use topology='hierarchical'.",
        f"clipnorm={clips.norm}, global_clipnorm={clips.global_norm}": "no machine has all reduced gradients, so none "
        "knows their norm. Use clipvalue."
        if clips.needs_norms
        else None,
    }
    for option, reason in reasons.items():
        if reason is not None:
            raise UnsupportedError(f"table {sharded[0]!r} is sharded and cannot be trained with {option}: {reason}")


def refuse_cached(schedule: Schedule, tables: Sequence[TableBinding]) -> None:
    """Raises UnsupportedError, with the reason, if a schedule cannot train a table that has rows on a device."""
    cached = [table.config.name for table in tables if cache_of(table) is not None]
    if cached and isinstance(schedule, DelayedGlobal) and schedule.sparse:
        raise UnsupportedError(
            f"table {cached[0]!r} has a cache and cannot be trained with {schedule}: rows would be updated after other "
            "rows have replaced them on the device. Use schedules.Synchronous(), or DelayedGlobal(sparse=False)."
        )


def refuse_callbacks(model: Any, callbacks: Sequence[Any]) -> None:
    """Raises UnsupportedError, with the remedy, for callbacks of `fit` that would fail at the end of an epoch."""
    tables = [table for layer in _keras.layers_of(model, TableLayer) for table in layer.table_configs()]
    if not tables:
        return
    for callback in callbacks:
        name = type(callback).__name__
        if _keras.is_callback(callback, "TensorBoard") and getattr(callback, "write_images", False):
            raise UnsupportedError(
                f"{name}(write_images=True) is not supported: the weight of a table is empty, and TensorFlow ends the "
                "process when it draws it as an image. Leave write_images out."
            )
        unbounded = [table.name for table in tables if table.key_limit is None]
        if unbounded and (unsupported := _needs_matrices(callback)) is not None:
            argument, remedy = unsupported
            raise UnsupportedError(
                f"{name}({argument}) is not supported: it needs matrices, and the vocabulary of "
                f"{', '.join(map(repr, unbounded))} is unbounded. {remedy}"
            )


def refuse_projector(model: Any, callback: Any) -> None:
    """Raises UnsupportedError, with the remedy, if TensorBoard's projector would have to show a table.

    The projector finds matrices by class, and reads them from checkpoints of TensorFlow. Tables are no variables there.
    """
    table_layers = {layer.name for layer in _keras.layers_of(model, TableLayer)}
    keras_layers = [layer for layer in model.layers if isinstance(layer, _keras.keras.layers.Embedding)]
    metadata = callback.embeddings_metadata
    if isinstance(metadata, dict):
        shown = sorted(table_layers & set(metadata))
    else:
        shown = [] if keras_layers else sorted(table_layers)
    if shown:
        raise UnsupportedError(
            f"{type(callback).__name__}(embeddings_freq={callback.embeddings_freq}) cannot show the rows of "
            f"{', '.join(map(repr, shown))} in the projector: they are not a variable of a TensorFlow checkpoint. "
            "Leave embeddings_freq and the layer's embeddings_metadata out. After training, save a copy of a bounded "
            "table: tf.train.Checkpoint(embedding=tf.Variable(layer.get_weights()[0])).save(...)"
        )


def _needs_matrices(callback: Any) -> tuple[str, str] | None:
    """Returns the argument with which a callback needs weights as matrices, and the remedy; None if it does not."""
    if _keras.is_callback(callback, "EarlyStopping") and callback.restore_best_weights:
        return "restore_best_weights=True", (
            "Let ModelCheckpoint('best.weights.h5', save_weights_only=True, save_best_only=True, "
            f"monitor={callback.monitor!r}) keep the best weights, on one rank, and call "
            "model.load_weights('best.weights.h5') after fit."
        )
    if _keras.is_callback(callback, "ModelCheckpoint"):
        path, only_weights = str(callback.filepath), callback.save_weights_only
        if path.endswith((".h5", ".hdf5")) and not (only_weights and path.endswith(".weights.h5")):
            return f"{path!r}", "Save to a path that ends with .keras, or with .weights.h5 and save_weights_only=True."
    if _keras.is_callback(callback, "OrbaxCheckpoint"):
        return "...", "Use ModelCheckpoint."
    return None


def refuse_other_rules(tables: Sequence[tuple[Any, Any]]) -> None:
    """Raises ValueError if another optimizer has bound a table to another rule. `tables`: pairs of table and rule."""
    for table, rule in tables:
        present = table.optimizer
        if present is None or present.slot_identity != rule.slot_identity:
            raise ValueError(
                f"table '{table.config.name}' is bound to {present!r} now. This optimizer has trained it by {rule!r} "
                "before. Optimizers that train the same table, for example of two models that share a layer, must have "
                "the same rule for it. Set sparse_optimizer=, or the optimizer of the table"
            )
