"""All states that a run of a job goes through, by position in its script."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.model import Model
from tests.oracle.options import Operation
from tests.oracle.state import State

Position = tuple[int, int]  # number of the operation, steps of it that are made


def steps_of(operation: Operation) -> int:
    """Steps of training in an operation; a refused one is none."""
    return sum(operation.epochs) if operation.epochs else operation.steps


def end_of(operations: Sequence[Operation]) -> Position:
    """The position behind the last operation."""
    return len(operations), 0


def after(operations: Sequence[Operation], position: Position) -> Position:
    """The position behind the next step or operation."""
    op, sub = position
    if op >= len(operations):
        return position
    return (op, sub + 1) if sub + 1 < steps_of(operations[op]) else (op + 1, 0)


def forward(operations: Sequence[Operation], position: Position) -> Position:
    """The next position at which there is a step to make: where a job begins that knows nothing but its tables."""
    op, sub = position
    while sub == 0 and op < len(operations) and not steps_of(operations[op]):
        op += 1
    return op, sub


class Timeline:
    """States of a run from where it begins.

    Attributes:
      states: By position; (i, n) of an operation of n steps is (i + 1, 0).
    """

    def __init__(self, model: Model, operations: Sequence[Operation], begin: Position, state: State) -> None:
        """Makes all operations from `begin` on, where the job has `state`."""
        self.operations = list(operations)
        self.states: dict[Position, State] = {begin: state.copy()}
        state, position, end = state.copy(), begin, end_of(operations)
        while position != end:
            operation = operations[position[0]]
            if steps_of(operation):
                model.train(state, operation.first + position[1], operation.weights)
                behind = after(operations, position)
                if behind[1] == 0 and (operation.how == "fit" or operation.epochs):
                    model.drain(state)
                elif operation.epochs and state.iterations % model.options.every == 0:
                    model.drain(state)  # a checkpoint is saved
            else:
                model.make(state, operation)
                behind = after(operations, position)
            position = behind
            self.states[position] = state.copy()

    def between(self, low: Position, high: Position) -> list[Position]:
        """The positions of this timeline in a range, both ends included."""
        return sorted(one for one in self.states if low <= one <= high)
