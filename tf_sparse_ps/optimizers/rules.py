"""The rules themselves: `RowOptimizer` and its subclasses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

LearningRate = float | Callable[[Any], Any] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """The base class of the row optimizers.

    Attributes:
      learning_rate: A number, a Keras learning-rate schedule or any function of the step. None: at every step, the
        current learning rate of the Keras optimizer that `DistributedOptimizer` wraps.
    """

    learning_rate: LearningRate = None

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
          ValueError: A field is out of range.
        """
        if isinstance(self.learning_rate, int) and not isinstance(self.learning_rate, bool):
            object.__setattr__(self, "learning_rate", float(self.learning_rate))
        if isinstance(self.learning_rate, dict):  # from a configuration
            from tf_sparse_ps._compat import _keras  # imports TensorFlow, which the store does not need

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
    def kind(self) -> str:
        """The rule's name in the store, which a table that is bound to the rule records."""
        raise NotImplementedError

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots. Each slot is as wide as the row, except that of `RowwiseAdagrad`."""
        return ()

    @property
    def slot_init(self) -> tuple[float, ...]:
        """The initial value of the elements of each slot, in the order of `slots`."""
        return (0.0,) * len(self.slots)

    @property
    def slot_identity(self) -> tuple[str, tuple[float, ...]]:
        """The kind, and `slot_init` rounded to float32 as tables store it. Rules with equal ones can share slots."""
        return self.kind, tuple(float(np.float32(value)) for value in self.slot_init)

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """Returns the hyperparameters of one step, in the order that the store expects (docs/ops.md).

        Args:
          learning_rate: The learning rate of this step, a number or a scalar tensor.
          step: The number of this step, counted from 1, a number or a scalar tensor.
        """
        raise NotImplementedError

    def rate_at(self, step: Any, wrapped: Any) -> Any:
        """Returns the learning rate of a step.

        Args:
          step: The number of steps made before this one, which Keras passes to a schedule.
          wrapped: The wrapped optimizer's current learning rate, or None.

        Raises:
          ValueError: Neither this optimizer nor a wrapped one has a learning rate.
        """
        rate = self.learning_rate
        if rate is None:
            rate = wrapped
        if rate is None:
            raise ValueError(
                f"{type(self).__name__}: learning_rate is None, and no wrapped optimizer has one. Set learning_rate"
            )
        return rate(step) if callable(rate) else rate

    def hyper_values(self, step: int) -> list[float]:
        """Returns `hyper` of a step (1, 2, ...) with this optimizer's own learning rate, without TensorFlow.

        Raises:
          ValueError: The learning rate is None.
        """
        return [float(value) for value in self.hyper(self.rate_at(step - 1, None), step)]

    def hyper_tensor(self, learning_rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Returns `hyper` as a float32 vector.

        Args:
          learning_rate: The learning rate of this step, a scalar of any floating type.
          step: The number of this step, an int64 scalar, counted from 1.
        """
        import tensorflow as tf  # the store does not need it

        return tf.stack([tf.cast(value, tf.float32) for value in self.hyper(learning_rate, step)])

    def get_config(self) -> dict[str, Any]:
        """Returns the fields in a form that Keras can serialize."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if callable(config["learning_rate"]):
            from tf_sparse_ps._compat import _keras  # imports TensorFlow, which the store does not need

            config["learning_rate"] = _keras.serialize(config["learning_rate"])
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RowOptimizer:
        """Makes an optimizer from the result of `get_config`."""
        return cls(**config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(RowOptimizer):
    """`w -= learning_rate * g`; with momentum `m = momentum * m - learning_rate * g; w += m`, as Keras's SGD.

    With `nesterov` the row moves by `momentum * m - learning_rate * g`, where `m` is the new one. The momentum of a row
    without a gradient neither moves the row nor decays.

    Source: Polyak 1964; for `nesterov` Sutskever et al. 2013.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        self._check("momentum", 0 <= self.momentum <= 1, "in [0, 1]")
        self._check("nesterov", isinstance(self.nesterov, bool), "True or False")

    @property
    def kind(self) -> str:
        """See `RowOptimizer.kind`."""
        return "momentum" if self.momentum else "sgd"

    @property
    def slots(self) -> tuple[str, ...]:
        """See `RowOptimizer.slots`."""
        return ("momentum",) if self.momentum else ()

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [learning_rate, self.momentum, float(self.nesterov)] if self.momentum else [learning_rate]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(RowOptimizer):
    """`a += g^2; w -= learning_rate * g / sqrt(a + epsilon)`, as Keras's Adagrad.

    Source: Duchi, Hazan, Singer 2011. Keras's legacy Adagrad adds epsilon outside of the root; this rule does not.
    """

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        start = self.initial_accumulator_value
        self._check("initial_accumulator_value", 0 <= start < math.inf, "a finite number >= 0")
        self._check("epsilon", 0 <= self.epsilon < math.inf and self.epsilon + start > 0, "finite, >= 0, not all zero")

    @property
    def kind(self) -> str:
        """See `RowOptimizer.kind`."""
        return "adagrad"

    @property
    def slots(self) -> tuple[str, ...]:
        """See `RowOptimizer.slots`."""
        return ("accumulator",)

    @property
    def slot_init(self) -> tuple[float, ...]:
        """See `RowOptimizer.slot_init`."""
        return (self.initial_accumulator_value,)

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [learning_rate, self.epsilon]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(Adagrad):
    """`a += mean(g^2); w -= learning_rate * g / (sqrt(a) + epsilon)`, where `a` is one float per row.

    `Adagrad` keeps a slot as wide as the row, so a table of 64 floats per row takes half as much memory with this rule.
    The rule is EXACT_ROWWISE_ADAGRAD of FBGEMM and TorchRec without weight decay: epsilon is outside of the root.

    Source: Gupta, Bengio, Weston 2014, section 4.4.3; FBGEMM.
    """

    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-8

    @property
    def kind(self) -> str:
        """See `RowOptimizer.kind`."""
        return "rowwise_adagrad"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(RowOptimizer):
    """Lazy Adam with Keras's formulas.

    `m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); w -= learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) *
    m / (sqrt(v) + epsilon)`, where `t` counts updates of the wrapped optimizer, this one included. With `amsgrad` the
    root is that of the largest `v` so far.

    `t` counts updates of the whole model, not of the row. Keras's Adam does the same, so a row that every batch touches
    gets exactly Keras's values. `t` is the wrapped optimizer's `iterations + 1`, not the job's step: a second model of
    the same process starts at 1, with new slots, and a model that is loaded with its optimizer continues at its own
    count. If a process attaches to a named job's tables with a new Keras optimizer, `t` starts at 1 while the slots are
    old: the first updates are a third of the usual size, and grow to it.

    Because the row's own updates are not counted, the first update of a row that appears late is not bias-corrected. At
    the defaults it is `(1 - beta_1) / sqrt(1 - beta_2)` = 3.2 times as large as a corrected one, as in Keras's sparse
    updates.

    Source: Kingma and Ba 2015, the form at the end of section 2; for `amsgrad` Reddi, Kale, Kumar 2018.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        self._check("beta_1", 0 <= self.beta_1 < 1, "in [0, 1)")
        self._check("beta_2", 0 <= self.beta_2 < 1, "in [0, 1)")
        self._check("epsilon", 0 < self.epsilon < math.inf, "a finite number > 0")
        self._check("amsgrad", isinstance(self.amsgrad, bool), "True or False")

    @property
    def kind(self) -> str:
        """See `RowOptimizer.kind`."""
        return "amsgrad" if self.amsgrad else "adam"

    @property
    def slots(self) -> tuple[str, ...]:
        """See `RowOptimizer.slots`."""
        return ("m", "v", "v_hat") if self.amsgrad else ("m", "v")

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [learning_rate, self.beta_1, self.beta_2, self.epsilon, step]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """`w -= learning_rate * weight_decay * w` before each update of `Adam`, as Keras's AdamW.

    A row decays only in steps that have a gradient for it. If it occurs in every tenth batch, it decays a tenth as fast
    as in Keras, where all rows decay at every step.

    Source: Loshchilov and Hutter 2019.
    """

    weight_decay: float = 0.004

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        self._check("weight_decay", 0 <= self.weight_decay < math.inf, "a finite number >= 0")
        self._check("amsgrad", not self.amsgrad, "False: no rule has both weight decay and amsgrad")

    @property
    def kind(self) -> str:
        """See `RowOptimizer.kind`."""
        return "adamw"

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [*super().hyper(learning_rate, step), self.weight_decay]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSprop(RowOptimizer):
    """`v = rho * v + (1 - rho) * g^2; w -= learning_rate * g / sqrt(v + epsilon)`, as Keras's RMSprop.

    With momentum: `m = momentum * m + learning_rate * g / sqrt(v + epsilon); w -= m`. With `centered`:
    `a = rho * a + (1 - rho) * g`, and `v - a^2` takes the place of `v` under the root. The slots of a row without a
    gradient do not decay.

    Source: Hinton 2012, lecture 6e; for `centered` Graves 2013.
    """

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        self._check("rho", 0 <= self.rho <= 1, "in [0, 1]")
        self._check("momentum", 0 <= self.momentum <= 1, "in [0, 1]")
        self._check("epsilon", 0 < self.epsilon < math.inf, "a finite number > 0")
        self._check("centered", isinstance(self.centered, bool), "True or False")

    @property
    def kind(self) -> str:
        """See `RowOptimizer.kind`."""
        return "rmsprop" + "_centered" * self.centered + "_momentum" * bool(self.momentum)

    @property
    def slots(self) -> tuple[str, ...]:
        """See `RowOptimizer.slots`."""
        return ("velocity",) + ("momentum",) * bool(self.momentum) + ("average_gradient",) * self.centered

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        return [learning_rate, self.rho, self.momentum, self.epsilon]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ftrl(RowOptimizer):
    """Follow the regularized leader, as Keras's Ftrl with `learning_rate_power=-0.5`.

    `n = a + g^2; z += g + 2 * l2_shrinkage * w - (sqrt(n) - sqrt(a)) / learning_rate * w; a = n;
    w = (clip(z, -l1, l1) - z) / ((sqrt(n) + beta) / learning_rate + 2 * l2)`. The learning rate must be positive.

    Source: McMahan et al. 2013, algorithm 1.
    """

    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        """See `RowOptimizer`."""
        super().__post_init__()
        self._check("initial_accumulator_value", 0 < self.initial_accumulator_value < math.inf, "a finite number > 0")
        for field in dataclasses.fields(self)[2:]:
            self._check(field.name, 0 <= getattr(self, field.name) < math.inf, "a finite number >= 0")

    @property
    def kind(self) -> str:
        """See `RowOptimizer.kind`."""
        return "ftrl"

    @property
    def slots(self) -> tuple[str, ...]:
        """See `RowOptimizer.slots`."""
        return ("accumulator", "linear")

    @property
    def slot_init(self) -> tuple[float, ...]:
        """See `RowOptimizer.slot_init`."""
        return (self.initial_accumulator_value, 0.0)

    def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
        """See `RowOptimizer.hyper`."""
        strengths = (self.l1_regularization_strength, self.l2_regularization_strength)
        return [learning_rate, *strengths, self.l2_shrinkage_regularization_strength, self.beta]
