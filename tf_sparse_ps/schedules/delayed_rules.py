"""How optimizers take a local gradient at once and the global one later, in its place.

`local` makes a step of this rank's own gradient; `correct` lets a global gradient take the place of the local one that
was sent for it. Once all have been corrected, SGD, Adagrad and Adam are where a synchronous optimizer would be that got
the same global gradients; docs/schedules.md derives each rule.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps._compat import _keras


class Correction(NamedTuple):
    """A global gradient, and the local step whose place it takes.

    Attributes:
      own: This rank's gradient of each variable, zeros if it has no part in the global one.
      share: What `Rule.local` returned for it; zeros likewise.
      own_rate: The learning rate that the local step had.
      mean: The global gradient of each variable.
      rate: Its learning rate.
      late: How many local steps have been made since that of `own`, float32 scalar.
      seen: How many global gradients the rule has had before this one, float32 scalar.
    """

    own: list[tf.Tensor]
    share: list[tf.Tensor]
    own_rate: tf.Tensor
    mean: list[tf.Tensor]
    rate: tf.Tensor
    late: tf.Tensor
    seen: tf.Tensor


class Rule(abc.ABC):
    """The update rule of the variables of one optimizer.

    Attributes:
      has_share: `correct` needs what `local` returns, a tensor for each variable; else it returns none.
      size: Elements of all variables together.
      variables: That are trained.
      slots: That belong to them, the same number for each variable.
    """

    has_share = True

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Takes the rule's constants, and the slots, of a Keras optimizer that was built for the variables."""
        self.variables = [_keras.tf_variable(variable) for variable in variables]
        self.slots = [_keras.slots_of(optimizer, variable) for variable in variables]
        self.size = sum(variable.shape.num_elements() for variable in self.variables)

    @abc.abstractmethod
    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, seen: tf.Tensor) -> list[tf.Tensor]:
        """Moves the weights by this rank's gradients.

        Args:
          gradients: float32, of each variable.
          rate: Learning rate, float32 scalar.
          seen: How many global gradients the rule has had, float32 scalar.

        Returns:
          What `correct` needs to know of it.
        """

    @abc.abstractmethod
    def correct(self, by: Correction) -> None:
        """Lets a global gradient take the place of a local one."""


class PlainSGD(Rule):
    """`w -= rate * g`. A correction adds `own_rate * own - rate * mean`, however late it is."""

    has_share = False

    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, seen: tf.Tensor) -> list[tf.Tensor]:
        """See `Rule.local`."""
        for variable, one in zip(self.variables, gradients, strict=True):
            variable.assign_sub(rate * one)
        return []

    def correct(self, by: Correction) -> None:
        """See `Rule.correct`."""
        for variable, own, mean in zip(self.variables, by.own, by.mean, strict=True):
            variable.assign_add(by.own_rate * own - by.rate * mean)


class MomentumSGD(Rule):
    """`v = b v - rate * g; w += v`, or `w += b v - rate * g` (Nesterov), as Keras.

    Both are linear in the gradients. Had the gradient of d steps ago been larger by x, with e = -rate x, then v would
    now be larger by b^d e, and w by (1 + b + ... + b^d) e = (1 - b^(d + 1)) / (1 - b) e; with Nesterov's rule by
    (1 + b (1 - b^(d + 1)) / (1 - b)) e. That is what a correction adds. Local gradients reach the momentum at once.
    """

    has_share = False

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """See `Rule`."""
        super().__init__(optimizer, variables)
        self._momentum, self._nesterov = float(optimizer.momentum), bool(optimizer.nesterov)

    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, seen: tf.Tensor) -> list[tf.Tensor]:
        """See `Rule.local`."""
        for variable, (velocity,), one in zip(self.variables, self.slots, gradients, strict=True):
            step = rate * one
            moved = velocity.assign(self._momentum * velocity - step)
            variable.assign_add(self._momentum * moved - step if self._nesterov else moved)
        return []

    def correct(self, by: Correction) -> None:
        """See `Rule.correct`."""
        b = self._momentum
        of_velocity = tf.pow(b, by.late)
        of_weights = (1.0 - of_velocity * b) / (1.0 - b)
        if self._nesterov:
            of_weights = 1.0 + b * of_weights
        for variable, (velocity,), own, mean in zip(self.variables, self.slots, by.own, by.mean, strict=True):
            missing = by.own_rate * own - by.rate * mean
            velocity.assign_add(of_velocity * missing)
            variable.assign_add(of_weights * missing)


class AdaptiveRule(Rule):
    """A rule with moments, which are of global gradients only.

    A local step is the one that the optimizer would make if the local gradient were the next global one; it keeps no
    moments. Its change of the weights is what it returns, and what a correction takes back.
    """

    def local(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, seen: tf.Tensor) -> list[tf.Tensor]:
        """See `Rule.local`."""
        scale, steps = self._scale(rate, seen), []
        for variable, slots, one in zip(self.variables, self.slots, gradients, strict=True):
            steps.append(self._step(self._moments(slots, one), one, scale))
            variable.assign_sub(steps[-1])
        return steps

    def correct(self, by: Correction) -> None:
        """See `Rule.correct`."""
        scale = self._scale(by.rate, by.seen)
        for variable, slots, one, taken in zip(self.variables, self.slots, by.mean, by.share, strict=True):
            moments = self._moments(slots, one)
            for slot, moment in zip(slots, moments, strict=True):
                slot.assign(moment)
            variable.assign_add(taken - self._step(moments, one, scale))

    def _scale(self, rate: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
        """What a step is multiplied by."""
        return rate

    @abc.abstractmethod
    def _moments(self, slots: Sequence[tf.Variable], gradient: tf.Tensor) -> list[tf.Tensor]:
        """A variable's slots after one more gradient."""

    @abc.abstractmethod
    def _step(self, moments: Sequence[tf.Tensor], gradient: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """What a variable becomes smaller by."""


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

    def _scale(self, rate: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
        t = seen + 1.0
        return rate * tf.sqrt(1.0 - tf.pow(self._beta_2, t)) / (1.0 - tf.pow(self._beta_1, t))


def kind_of(optimizer: Any) -> type[Rule]:
    """The rule of a Keras optimizer.

    Raises:
      ValueError: There is none, with the reason.
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
        "DelayedGlobal knows how a late global gradient takes the place of a local one for SGD (momentum and Nesterov "
        f"too), Adagrad and Adam (without amsgrad). Received: {name}"
    )
