"""The rules by which optimizers take a local gradient at once, and later the global gradient in its place.

`local` makes a step of this rank's own gradient. `correct` puts a global gradient in the place of the local one that
was sent for it. After all corrections, SGD, Adagrad and Adam are where a synchronous optimizer with the same global
gradients would be. docs/schedules.md derives each rule.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps._compat import _keras


class Correction(NamedTuple):
    """A global gradient, and the local step whose place it takes.

    Attributes:
      local_gradients: This rank's gradient of each variable; zeros if it has no part in the global one.
      local_steps: What `Rule.local` returned for these gradients; zeros likewise.
      local_rate: The learning rate of the local step.
      global_gradients: The global gradient of each variable.
      global_rate: The learning rate of the global gradient.
      late: The number of local steps since the one that is corrected, float32 scalar.
      applied: The number of global gradients that the rule has applied before, float32 scalar.
    """

    local_gradients: list[tf.Tensor]
    local_steps: list[tf.Tensor]
    local_rate: tf.Tensor
    global_gradients: list[tf.Tensor]
    global_rate: tf.Tensor
    late: tf.Tensor
    applied: tf.Tensor


class Rule(abc.ABC):
    """The update rule of one optimizer's variables.

    Attributes:
      keeps_steps: Whether `local` returns its step of each variable, which `correct` needs. Else it returns none.
      size: The number of elements of all variables.
      variables: The variables that are trained.
      slots: The slots of each variable, the same number for all.
    """

    keeps_steps = True

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Takes the constants and slots of a Keras optimizer that was built for the variables."""
        self.variables = [_keras.tf_variable(variable) for variable in variables]
        self.slots = [_keras.slots_of(optimizer, variable) for variable in variables]
        self.size = sum(variable.shape.num_elements() for variable in self.variables)

    @abc.abstractmethod
    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, applied: tf.Tensor) -> list[tf.Tensor]:
        """Moves the weights by this rank's gradients.

        Args:
          gradients: float32, of each variable.
          rate: The learning rate, float32 scalar.
          applied: The number of global gradients that the rule has applied, float32 scalar.

        Returns:
          The step by which each variable became smaller, if `keeps_steps`; else no tensors.
        """

    @abc.abstractmethod
    def correct(self, correction: Correction) -> None:
        """Puts a global gradient in the place of a local one."""


class PlainSGD(Rule):
    """`w -= rate * g`. A correction adds `local_rate * g - global_rate * G`, however late it is."""

    keeps_steps = False

    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, applied: tf.Tensor) -> list[tf.Tensor]:
        """See `Rule.local`."""
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(rate * gradient)
        return []

    def correct(self, correction: Correction) -> None:
        """See `Rule.correct`."""
        for variable, missing in zip(self.variables, _missing(correction), strict=True):
            variable.assign_add(missing)


class MomentumSGD(Rule):
    """`v = b v - rate * g; w += v`, or `w += b v - rate * g` (Nesterov), as Keras.

    Both are linear in the gradients. Had the gradient of d steps ago been larger by x, with e = -rate x, then v would
    now be larger by b^d e, and w by (1 + b + ... + b^d) e = (1 - b^(d + 1)) / (1 - b) e; with Nesterov's rule by
    (1 + b (1 - b^(d + 1)) / (1 - b)) e. A correction adds that. Local gradients reach the momentum at once.
    """

    keeps_steps = False

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """See `Rule`."""
        super().__init__(optimizer, variables)
        self._momentum, self._nesterov = float(optimizer.momentum), bool(optimizer.nesterov)

    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, applied: tf.Tensor) -> list[tf.Tensor]:
        """See `Rule.local`."""
        for variable, (velocity,), gradient in zip(self.variables, self.slots, gradients, strict=True):
            step = rate * gradient
            moved = velocity.assign(self._momentum * velocity - step)
            variable.assign_add(self._momentum * moved - step if self._nesterov else moved)
        return []

    def correct(self, correction: Correction) -> None:
        """See `Rule.correct`."""
        b = self._momentum
        of_velocity = tf.pow(b, correction.late)
        of_weights = (1.0 - of_velocity * b) / (1.0 - b)
        if self._nesterov:
            of_weights = 1.0 + b * of_weights
        for variable, (velocity,), missing in zip(self.variables, self.slots, _missing(correction), strict=True):
            velocity.assign_add(of_velocity * missing)
            variable.assign_add(of_weights * missing)


def _missing(correction: Correction) -> Iterator[tf.Tensor]:
    """Yields for each variable what the local step lacks to be the step of the global gradient."""
    pairs = zip(correction.local_gradients, correction.global_gradients, strict=True)
    for local_gradient, global_gradient in pairs:
        yield correction.local_rate * local_gradient - correction.global_rate * global_gradient


class AdaptiveRule(Rule):
    """A rule with moments, which only global gradients change.

    A local step is the one that the optimizer would make if the local gradient were the next global one; it keeps no
    moments. `local` returns its change of the weights, and a correction takes that change back.
    """

    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, applied: tf.Tensor) -> list[tf.Tensor]:
        """See `Rule.local`."""
        scale, steps = self._scale(rate, applied), []
        for variable, slots, gradient in zip(self.variables, self.slots, gradients, strict=True):
            steps.append(self._step(self._moments(slots, gradient), gradient, scale))
            variable.assign_sub(steps[-1])
        return steps

    def correct(self, correction: Correction) -> None:
        """See `Rule.correct`."""
        scale = self._scale(correction.global_rate, correction.applied)
        for variable, slots, gradient, local_step in zip(
            self.variables, self.slots, correction.global_gradients, correction.local_steps, strict=True
        ):
            moments = self._moments(slots, gradient)
            for slot, moment in zip(slots, moments, strict=True):
                slot.assign(moment)
            variable.assign_add(local_step - self._step(moments, gradient, scale))

    def _scale(self, rate: tf.Tensor, applied: tf.Tensor) -> tf.Tensor:
        """Returns the factor of a step."""
        return rate

    @abc.abstractmethod
    def _moments(self, slots: Sequence[tf.Variable], gradient: tf.Tensor) -> list[tf.Tensor]:
        """Returns a variable's slots after one more gradient."""

    @abc.abstractmethod
    def _step(self, moments: Sequence[tf.Tensor], gradient: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Returns the step by which a variable becomes smaller."""


class Adagrad(AdaptiveRule):
    """`a += g^2; w -= rate * g / sqrt(a + epsilon)`, as Keras."""

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """See `Rule`."""
        super().__init__(optimizer, variables)
        self._epsilon = float(optimizer.epsilon)

    def _moments(self, slots: Sequence[tf.Variable], gradient: tf.Tensor) -> list[tf.Tensor]:
        return [slots[0] + tf.square(gradient)]

    def _step(self, moments: Sequence[tf.Tensor], gradient: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        return scale * gradient / tf.sqrt(moments[0] + self._epsilon)


class Adam(AdaptiveRule):
    """Keras's Adam, with bias corrections that count global gradients."""

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """See `Rule`."""
        super().__init__(optimizer, variables)
        self._beta_1, self._beta_2 = float(optimizer.beta_1), float(optimizer.beta_2)
        self._epsilon = float(optimizer.epsilon)

    def _moments(self, slots: Sequence[tf.Variable], gradient: tf.Tensor) -> list[tf.Tensor]:
        first, second = slots
        return [
            first + (gradient - first) * (1.0 - self._beta_1),
            second + (tf.square(gradient) - second) * (1.0 - self._beta_2),
        ]

    def _step(self, moments: Sequence[tf.Tensor], gradient: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        return moments[0] * scale / (tf.sqrt(moments[1]) + self._epsilon)

    def _scale(self, rate: tf.Tensor, applied: tf.Tensor) -> tf.Tensor:
        t = applied + 1.0
        return rate * tf.sqrt(1.0 - tf.pow(self._beta_2, t)) / (1.0 - tf.pow(self._beta_1, t))


def kind_of(optimizer: Any) -> type[Rule]:
    """Returns the rule of a Keras optimizer.

    Raises:
      ValueError: There is no rule for it, with the reason.
    """
    kind, known, name = type(optimizer), _keras.keras.optimizers, type(optimizer).__name__
    if _keras.is_legacy_optimizer(optimizer):
        raise ValueError(f"DelayedGlobal cannot wrap a legacy optimizer. Use tf.keras.optimizers.{name}")
    if kind is known.SGD and optimizer.momentum >= 1.0:
        raise ValueError(f"DelayedGlobal needs a momentum below 1. Received: SGD(momentum={optimizer.momentum})")
    if kind is known.SGD:
        return MomentumSGD if optimizer.momentum else PlainSGD
    if kind is known.Adagrad:
        return Adagrad
    if kind is known.Adam and not optimizer.amsgrad:
        return Adam
    raise ValueError(
        "DelayedGlobal can replace a local gradient by a late global one for SGD (also with momentum and Nesterov), "
        f"Adagrad and Adam (without amsgrad). Received: {name}. Use one of these optimizers or another schedule"
    )
