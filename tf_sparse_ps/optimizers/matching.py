"""`match`: the row optimizer with the rule of a Keras optimizer."""

from __future__ import annotations

from typing import Any

from tf_sparse_ps.optimizers.rules import SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop, RowOptimizer


def match(keras_optimizer: Any) -> RowOptimizer:
    """Returns the row optimizer with the rule of a Keras optimizer of Keras 3 or Keras 2, legacy ones included.

    Every step reads the learning rate from the Keras optimizer. Clipping does not matter here, because
    `DistributedOptimizer` does it.

    Args:
      keras_optimizer: A Keras optimizer: SGD, Adagrad, Adam, AdamW, RMSprop or Ftrl. Only AdamW may have weight decay,
        and it must not have amsgrad. Legacy RMSprop is refused, because its epsilon is outside of the root. Ftrl must
        have `learning_rate_power=-0.5`.

    Raises:
      ValueError: No row optimizer has this rule, or one of its options.
    """
    kind = type(keras_optimizer)
    config = keras_optimizer.get_config()
    name = kind.__name__ if kind.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow") else ""

    def refusal(rule: str) -> ValueError:
        return ValueError(
            f"no row optimizer has the rule of {rule}. Pass a rule for the tables, for example "
            "sparse_optimizer=tsps.optimizers.Adagrad(); the dense weights keep the optimizer that you gave. "
            f"Received: {kind.__module__}.{kind.__name__}"
        )

    def numbers(*names: str) -> dict[str, float]:
        return {name: float(config[name]) for name in names}

    if config.get("weight_decay") and name != "AdamW":
        raise refusal(f"{kind.__name__}(weight_decay={config['weight_decay']})")
    if name == "SGD":
        return SGD(**numbers("momentum"), nesterov=bool(config["nesterov"]) and bool(config["momentum"]))
    if name == "Adagrad":
        return Adagrad(**numbers("initial_accumulator_value", "epsilon"))
    if name == "Adam":
        return Adam(**numbers("beta_1", "beta_2", "epsilon"), amsgrad=bool(config["amsgrad"]))
    if name == "AdamW":
        if config["amsgrad"]:
            raise refusal("AdamW(amsgrad=True)")
        decay = float(config["weight_decay"] or 0.0)
        return AdamW(**numbers("beta_1", "beta_2", "epsilon"), weight_decay=decay, amsgrad=False)
    if name == "RMSprop" and "legacy" not in kind.__module__:
        return RMSprop(**numbers("rho", "momentum", "epsilon"), centered=bool(config["centered"]))
    if name == "Ftrl":
        if config["learning_rate_power"] != -0.5:
            raise refusal(f"Ftrl(learning_rate_power={config['learning_rate_power']})")
        strengths = ("l1_regularization_strength", "l2_regularization_strength", "l2_shrinkage_regularization_strength")
        return Ftrl(**numbers("initial_accumulator_value", *strengths, "beta"))
    raise refusal(kind.__name__)
