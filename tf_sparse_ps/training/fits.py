"""Checks at the beginning and clean-up at the end of every `fit` of a model with a `DistributedOptimizer`.

When `fit` begins, the ranks compare three things: which of their callbacks make collectives, the settings of these
callbacks, and the number of steps of the `fit`. All ranks make this one collective, whatever each of them has imported.
A rank that refuses its `fit` reports it there, so that the others do not wait for it. When `fit` ends, also with an
exception, this module removes state that would change the next `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps._compat import _keras, _keras_fit, _keras_hooks
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import error_text, must_agree
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.node import activity
from tf_sparse_ps.training import progress_line, refusals, samples

# The method of callbacks that make collectives. It returns the settings that must be equal on all ranks, by name, or
# None if the callback makes no collective in this `fit`.
SETTINGS = "_settings_of_fit"

_STEPS = "steps that this fit makes (epochs x steps per epoch)"

Check = Callable[[Any, list[Any]], None]
_checks: list[Check] = [refusals.refuse_callbacks]
_optimizers: list[type] = []


def watch(optimizer: type) -> None:
    """Watches every `fit` of a model that is compiled with this class of optimizer. Call it once."""
    _optimizers.append(optimizer)
    _keras_hooks.at_batches(activity.progress)
    _keras_hooks.in_epochs(_count_samples)
    _keras_hooks.in_progress_line(progress_line.of)
    _keras_fit.scope_fits()
    _keras_hooks.before_fit(_begin)


def before_fit(check: Check) -> None:
    """Makes every `fit` call `check(model, callbacks)` when it begins.

    The check raises an error for a model or callback that is not supported. It must not make a collective, because a
    module that only one rank has imported may have added it.
    """
    _checks.append(check)


def _begin(model: Any, callbacks: list[Any]) -> None:
    arguments = _keras_fit.arguments_of(model, "epochs", "initial_epoch", "validation_data", "validation_split")
    if arguments is not None:
        _keras_fit.at_end(lambda: _keras_fit.forget_validation(model))
        _keras_fit.at_end(lambda: samples.end(model))
    error: Exception | None = None
    try:
        for check in _checks:
            check(model, callbacks)
    except Exception as caught:
        error = caught
    ranks = None if arguments is None else _ranks_of(model)
    if ranks is None or arguments is None:  # a training loop calls the callbacks, perhaps not on all ranks
        if error is not None:
            raise error
        return
    refused = error_text(error)
    collective = [
        (_name(callback), settings) for callback in callbacks if (settings := _settings(callback)) is not None
    ]
    facts = _facts(model, arguments, callbacks, collective)
    everyone = ranks.allgather_object((refused, [name for name, _ in collective], facts), "tsps.fit")
    all_names = [names for _, names, _ in everyone]
    _must_have_the_same(all_names)
    if error is not None:
        raise error
    refusals_of_others = [f"rank {rank}: {text}" for rank, (text, *_) in enumerate(everyone) if text is not None]
    if refusals_of_others:
        raise ValueError(f"this fit is refused on {'; '.join(refusals_of_others)}")
    _must_have_one_order(all_names)
    all_facts = [rank_facts for *_, rank_facts in everyone]
    if not all(_STEPS in rank_facts for rank_facts in all_facts):  # not all ranks know their number of steps
        for rank_facts in all_facts:
            rank_facts.pop(_STEPS, None)
    must_agree(all_facts)


def _count_samples(model: Any, event: str) -> None:
    if isinstance(getattr(model, "optimizer", None), tuple(_optimizers)):
        samples.observe(model, event)


def _ranks_of(model: Any) -> Collectives | None:
    """Returns the collectives of the ranks that train the model; None for one rank, or if a strategy runs `fit`."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not isinstance(optimizer, tuple(_optimizers)):
        return None
    ranks = collectives_lib.resolve(optimizer.collectives)
    return ranks if ranks.size > 1 and ranks.kind != "tf.distribute" else None


def _settings(callback: Any) -> dict[str, Any] | None:
    settings = getattr(callback, SETTINGS, None)
    return None if settings is None else settings()


def is_library_callback(cls: type) -> bool:
    """Whether a class is one of `tsps.callbacks`."""
    return cls.__module__.startswith("tf_sparse_ps.callbacks.")


def _name(callback: Any) -> str:
    """Returns the name of a callback's class, or of the class of `tsps.callbacks` that it is derived from."""
    for cls in type(callback).__mro__:
        if is_library_callback(cls):
            return f"tsps.callbacks.{cls.__name__}"
    return type(callback).__name__


def _facts(
    model: Any, arguments: dict[str, Any], callbacks: Sequence[Any], collective: Sequence[tuple[str, dict[str, Any]]]
) -> dict[str, str]:
    """Returns what must be equal on all ranks. `collective`: names and settings of callbacks that make collectives."""
    facts = {f"{setting} of {name}": str(value) for name, settings in collective for setting, value in settings.items()}
    params: dict[str, Any] = next((c.params for c in callbacks if getattr(c, "params", None)), {})
    steps, epochs = params.get("steps"), params.get("epochs")
    if isinstance(steps, int) and isinstance(epochs, int):
        epochs -= int(arguments["initial_epoch"] or 0)
        facts[_STEPS] = str(epochs * steps)
    tables = [table for layer in _keras.layers_of(model, TableLayer) for table in layer.bindings]
    sharded = any(table.placement == "sharded" for table in tables)
    if sharded or any(name.endswith(".Drain") for name, _ in collective):
        validates = arguments["validation_data"] is not None or bool(arguments["validation_split"])
        facts["validation in this fit, which all ranks make together"] = "yes" if validates else "no"
    return facts


def _must_have_the_same(names: list[list[str]]) -> None:
    """Raises ValueError, on all ranks, unless all have the same callbacks that make collectives."""
    for name in dict.fromkeys(name for rank_names in names for name in rank_names):
        if without := [rank for rank, rank_names in enumerate(names) if name not in rank_names]:
            raise ValueError(
                f"fit has {name} on some ranks and not on ranks {without}: the ranks wait for each other in it. Give "
                "it to fit on every rank"
            )


def _must_have_one_order(names: list[list[str]]) -> None:
    """Raises ValueError, on all ranks, unless all have these callbacks in the same order."""
    different = [rank for rank, rank_names in enumerate(names) if rank_names != names[0]]
    if different:
        raise ValueError(
            f"ranks call their callbacks in different orders: rank 0 has {names[0]}, rank {different[0]} has "
            f"{names[different[0]]}. The ranks wait for each other in these callbacks: give fit the same list on all"
        )
