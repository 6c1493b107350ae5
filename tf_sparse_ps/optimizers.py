"""Row optimizers: update rules that the store applies to the rows of a table that a step touches.

All are lazy: a row without a gradient keeps its value and its slots, as in Keras's sparse updates and unlike its dense
ones (Keras's dense Adam moves every row at every step). Where a row has a gradient the rule is Keras's, and with
unique ids the result is what the Keras optimizer of the same name gives for that row.

Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import tensorflow as tf

LearningRate = float | Callable[[Any], Any] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """Base of the row optimizers.

    Attributes:
      learning_rate: A number, a Keras learning-rate schedule (or any function of the step), or None: the current
        learning rate of the Keras optimizer that `DistributedOptimizer` wraps, at every step.
    """

    kind: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()

    learning_rate: LearningRate = None

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
          ValueError: A field is out of range.
        """
        if isinstance(self.learning_rate, int) and not isinstance(self.learning_rate, bool):
            object.__setattr__(self, "learning_rate", float(self.learning_rate))
        if isinstance(self.learning_rate, dict):  # from a configuration
            from tf_sparse_ps import _keras

            object.__setattr__(self, "learning_rate", _keras.deserialize(self.learning_rate))
        rate = self.learning_rate
        if not (rate is None or callable(rate) or (isinstance(rate, float) and math.isfinite(rate))):
            raise ValueError(
                f"{type(self).__name__}: learning_rate must be a finite number, a function of the step, or None "
                f"(that of the wrapped optimizer). Received: {rate!r}"
            )

    def _check(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ValueError(f"{type(self).__name__}: {name} must be {expected}. Received: {getattr(self, name)!r}")

    @property
    def slot_init(self) -> tuple[float, ...]:
        """Initial value of the elements of each slot, in the order of `slots`."""
        return (0.0,) * len(self.slots)

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """Hyperparameters of one step, in the order that the store expects (docs/ops.md).

        Args:
          learning_rate: The rate to use at this step: a number, or a scalar tensor.
          step: The update that is being made, counted from 1: a number, or a scalar tensor.
        """
        raise NotImplementedError

    def rate_at(self, step: Any, wrapped: Any) -> Any:
        """The learning rate of a step.

        Args:
          step: Steps made before this one, as Keras counts when it calls a schedule.
          wrapped: The wrapped optimizer's current rate, or None.

        Raises:
          ValueError: Neither this optimizer nor a wrapped one has a learning rate.
        """
        rate = self.learning_rate
        if rate is None:
            rate = wrapped
        if rate is None:
            raise ValueError(
                f"{type(self).__name__}: learning_rate is None and there is no wrapped optimizer to take it from"
            )
        return rate(step) if callable(rate) else rate

    def hyper_values(self, step: int) -> list[float]:
        """`hyper` at a step (1, 2, ...) with this optimizer's own learning rate, for use without TensorFlow.

        Raises:
          ValueError: The learning rate is None.
        """
        return [float(value) for value in self.hyper(self.rate_at(step - 1, None), step)]

    def hyper_tensor(self, learning_rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """`hyper` as a float32 vector.

        Args:
          learning_rate: Scalar, any floating type.
          step: int64 scalar, counted from 1.
        """
        import tensorflow as tf

        return tf.stack([tf.cast(value, tf.float32) for value in self.hyper(learning_rate, step)])

    def get_config(self) -> dict[str, Any]:
        """The fields, serializable by Keras."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if callable(config["learning_rate"]):
            from tf_sparse_ps import _keras

            config["learning_rate"] = _keras.serialize(config["learning_rate"])
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RowOptimizer:
        """The inverse of `get_config`."""
        return cls(**config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(RowOptimizer):
    """`w -= learning_rate * g`."""

    kind = "sgd"

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [learning_rate]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(RowOptimizer):
    """`a += g^2; w -= learning_rate * g / sqrt(a + epsilon)`, as Keras's Adagrad.

    Source: Duchi, Hazan, Singer 2011. Keras's legacy Adagrad adds epsilon outside the root; ours does not.
    """

    kind = "adagrad"
    slots = ("accumulator",)

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        start = self.initial_accumulator_value
        self._check("initial_accumulator_value", 0 <= start < math.inf, "a finite number >= 0")
        self._check("epsilon", 0 <= self.epsilon < math.inf and self.epsilon + start > 0, "finite, >= 0, not all zero")

    @property
    def slot_init(self) -> tuple[float, ...]:
        """See `RowOptimizer.slot_init`."""
        return (self.initial_accumulator_value,)

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [learning_rate, self.epsilon]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(RowOptimizer):
    """Lazy Adam with Keras's formulas.

    `m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); w -= learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) *
    m / (sqrt(v) + epsilon)`, where `t` counts updates of the wrapped optimizer, this one included.

    `t` counts updates of the whole model, not of the row, because that is what Keras's Adam does, so that a row which
    every batch touches gets exactly Keras's values. It is the wrapped optimizer's `iterations + 1`, not the job's
    step: a second model of the same process starts at 1, as its slots do, and a model that is loaded with its
    optimizer goes on where it was. (A process that attaches to a named job's tables with a new Keras optimizer starts
    at 1 with old slots: its first updates are a third of the usual size, and grow to it.) The price of not
    counting the row's own updates: the first update of a row that appears late is not bias-corrected, hence
    `(1 - beta_1) / sqrt(1 - beta_2)` = 3.2 times a corrected one's size at the defaults, as with Keras's sparse
    updates.

    Source: Kingma and Ba 2015, in the form before their section 2.1.
    """

    kind = "adam"
    slots = ("m", "v")

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        self._check("beta_1", 0 <= self.beta_1 < 1, "in [0, 1)")
        self._check("beta_2", 0 <= self.beta_2 < 1, "in [0, 1)")
        self._check("epsilon", 0 < self.epsilon < math.inf, "a finite number > 0")

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [learning_rate, self.beta_1, self.beta_2, self.epsilon, step]


BY_KIND: dict[str, type[RowOptimizer]] = {rule.kind: rule for rule in (SGD, Adagrad, Adam)}


def get(identifier: RowOptimizer | str | dict[str, Any] | None) -> RowOptimizer | None:
    """Returns a row optimizer from an instance, a kind ("sgd", "adagrad", "adam") or a `serialize`d form.

    Raises:
      ValueError: Anything else.
    """
    if identifier is None or isinstance(identifier, RowOptimizer):
        return identifier
    if isinstance(identifier, str) and identifier.lower() in BY_KIND:
        return BY_KIND[identifier.lower()]()
    if isinstance(identifier, dict) and identifier.get("kind") in BY_KIND:
        return BY_KIND[identifier["kind"]].from_config(identifier["config"])
    raise ValueError(
        f"expected a row optimizer (tsps.optimizers.SGD, Adagrad, Adam) or one of {sorted(BY_KIND)}. "
        f"Received: {identifier!r}"
    )


def serialize(optimizer: RowOptimizer | None) -> dict[str, Any] | None:
    """The form that `get` reads, for configurations."""
    return None if optimizer is None else {"kind": optimizer.kind, "config": optimizer.get_config()}


def match(keras_optimizer: Any) -> RowOptimizer:
    """Returns the row optimizer with the rule of a Keras optimizer (Keras 3, Keras 2, or Keras 2's legacy ones).

    The learning rate stays with the Keras optimizer and is read from it at every step. Clipping is
    `DistributedOptimizer`'s work and does not matter here.

    Args:
      keras_optimizer: SGD without momentum, Adagrad, or Adam without amsgrad; none with weight decay.

    Raises:
      ValueError: Another optimizer, or one with an option that the store's rules do not have.
    """
    kind = type(keras_optimizer)
    config = keras_optimizer.get_config()
    from_keras = kind.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow")

    def refuse(what: str) -> ValueError:
        return ValueError(
            f"no row optimizer does what {what} does. Pass the rule for the tables, for example "
            "sparse_optimizer=tsps.optimizers.Adagrad(); the dense weights keep the optimizer you gave. "
            f"Received: {kind.__module__}.{kind.__name__}"
        )

    if config.get("weight_decay"):
        raise refuse(f"{kind.__name__}(weight_decay={config['weight_decay']})")
    if from_keras and kind.__name__ == "SGD":
        if config["momentum"]:
            raise refuse(f"SGD(momentum={config['momentum']})")
        return SGD()
    if from_keras and kind.__name__ == "Adagrad":
        return Adagrad(
            initial_accumulator_value=float(config["initial_accumulator_value"]), epsilon=float(config["epsilon"])
        )
    if from_keras and kind.__name__ == "Adam":
        if config["amsgrad"]:
            raise refuse("Adam(amsgrad=True)")
        return Adam(beta_1=float(config["beta_1"]), beta_2=float(config["beta_2"]), epsilon=float(config["epsilon"]))
    raise refuse(kind.__name__)
