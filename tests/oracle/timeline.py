"""All states of a run of a job, by position in its script."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.model import Model
from tests.oracle.options import Operation
from tests.oracle.state import State

Position = tuple[int, int]  # the number of the operation, and of its steps that are made


def steps_of(operation: Operation) -> int:
    """Returns the number of training steps of an operation. A refused step does not count."""
    return sum(operation.epochs) if operation.epochs else operation.steps


def end_of(operations: Sequence[Operation]) -> Position:
    """Returns the position after the last operation."""
    return len(operations), 0


def after(operations: Sequence[Operation], position: Position) -> Position:
    """Returns the position after the next step or operation."""
    op, sub = position
    if op >= len(operations):
        return position
    return (op, sub + 1) if sub + 1 < steps_of(operations[op]) else (op + 1, 0)


def forward(operations: Sequence[Operation], position: Position) -> Position:
    """Returns the next position with a step to make. A job that knows only its tables begins there."""
    op, sub = position
    while sub == 0 and op < len(operations) and not steps_of(operations[op]):
        op += 1
    return op, sub


class Timeline:
    """The states of a run from its beginning.

    Attributes:
      states: The states by position; (i, n) of an operation of n steps is (i + 1, 0).
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
                next_position = after(operations, position)
                if next_position[1] == 0 and (operation.how == "fit" or operation.epochs):
                    model.drain(state)
                elif operation.epochs and state.iterations % model.options.every == 0:
                    model.drain(state)  # saving a checkpoint drains
            else:
                model.make(state, operation)
                next_position = after(operations, position)
            position = next_position
            self.states[position] = state.copy()

    def between(self, low: Position, high: Position) -> list[Position]:
        """The positions of this timeline in a range, both ends included."""
        return sorted(position for position in self.states if low <= position <= high)
