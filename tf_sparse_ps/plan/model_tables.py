"""The tables of a Keras model, as tables of a configuration. The model's program imports TensorFlow."""

from __future__ import annotations

from typing import Any

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.errors import InvalidArgumentError


def tables(model: Any) -> list[dict[str, Any]]:
    """Returns the tables of a model, built or not, as `configuration.parse_table` reads them.

    A table's optimizer is that of its configuration, else the rule of the compiled optimizer, else Adagrad.
    `ids_per_sample` is known for layers whose input shape is known.

    Raises:
      InvalidArgumentError: The model has no table.
    """
    rule = _rule(getattr(model, "optimizer", None))
    found: dict[str, dict[str, Any]] = {}
    for layer in _layers(model):
        for config in layer.table_configs():
            name, number = config.name, 1
            while name in found:
                number += 1
                name = f"{config.name}-{number}"
            found[name] = {**_fields(config, rule), "name": name, "ids_per_sample": _ids(layer, config)}
    if not found:
        raise InvalidArgumentError(f"the model {model!r} has no layer of tf_sparse_ps, so there is nothing to plan")
    return list(found.values())


def _layers(model: Any) -> list[Any]:
    from tf_sparse_ps._compat import _keras  # imports TensorFlow, which the model has imported

    return [layer for layer in _keras.all_layers(model) if callable(getattr(layer, "table_configs", None))]


def _rule(optimizer: Any) -> optimizers.RowOptimizer | None:
    rule = getattr(optimizer, "sparse_optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    if rule is not None or inner is None:
        return rule if isinstance(rule, optimizers.RowOptimizer) else None
    return optimizers.match(inner)


def _fields(config: TableConfig, rule: optimizers.RowOptimizer | None) -> dict[str, Any]:
    fields = config.get_config()
    kept = ("dim", "dtype", "key_limit", "max_rows", "storage", "placement", "cache", "admission", "eviction")
    return {**{name: fields[name] for name in kept}, "optimizer": config.optimizer or rule or optimizers.Adagrad()}


def _ids(layer: Any, config: TableConfig) -> float | None:
    """Returns the ids per sample of a layer's table; None: the input shape is not known."""
    try:
        inputs = layer.input
    except (AttributeError, RuntimeError, ValueError):
        return None
    if isinstance(inputs, dict):
        features = getattr(layer, "features", {})
        inputs = [inputs[name] for name, feature in features.items() if feature.table.name == config.name]
    total = 0
    for each in inputs if isinstance(inputs, list | tuple) else [inputs]:
        n = 1
        for width in tuple(each.shape)[1:]:
            if width is None:
                return None
            n *= int(width)
        total += n
    return float(total) or None
