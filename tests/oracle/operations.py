"""Draws the script of a job: the operations that all ranks make, one after another."""

from __future__ import annotations

import random

from tests.oracle import rules
from tests.oracle.options import Operation, Options

# The kinds of operations. "train" and "fit_epochs" have steps.
KINDS = (
    "train fit_epochs refused look_up evaluate set_weights rate drain save save_weights load_weights export evict"
).split()


def script(choose: random.Random, options: Options) -> tuple[Operation, ...]:
    """Returns a script that the options allow."""
    if options.policy == "callback":
        epochs = tuple(choose.randrange(2, 7) for _ in range(choose.choice([1, 2, 3])))
        ahead = choose.choice([0, 0, 1, 3]) if rules.may_look_ahead(options) else 0
        return (Operation("fit_epochs", epochs=epochs, ahead=ahead),)
    return _Writer(choose, options).write()


class _Writer:
    def __init__(self, choose: random.Random, options: Options) -> None:
        self._choose, self._options = choose, options
        self._batch = 0
        self._saved = False

    def write(self) -> tuple[Operation, ...]:
        """Returns a checkpoint, then training with other operations between, and finally a lookup of everything."""
        choose, options = self._choose, self._options
        operations = [Operation("save", value=1)] if options.policy == "checkpointer" else []
        for _ in range(choose.randrange(3, 6)):
            operations.append(self._train())
            if options.policy == "checkpointer" and choose.random() < 0.6:
                operations.append(Operation("save", value=choose.choice([0, 0, 1])))
            for _ in range(choose.choice([0, 1, 1, 2])):
                if (operation := self._other()) is not None:
                    operations.append(operation)
        operations.append(Operation("drain"))
        if options.schedule != "delayed":
            operations.append(Operation("look_up"))
        return tuple(operations)

    def _train(self) -> Operation:
        choose, options = self._choose, self._options
        steps = choose.randrange(1, 6)
        weights: tuple[float, ...] = ()
        if rules.may_weigh(options) and choose.random() < 0.2:
            weights = tuple(choose.choice([0.0, 1.0, 2.0]) for _ in range(options.ranks))
            weights = weights if sum(weights) else ()
        ahead = choose.choice([0, 0, 1, 2, 4]) if rules.may_look_ahead(options) else 0
        first, self._batch = self._batch, self._batch + steps
        how = choose.choice(["loop", "loop", "fit", "eager"])
        return Operation("train", steps, first, how, ahead, choose.choice([0, 0, 3]) if ahead else 0, weights)

    def _other(self) -> Operation | None:
        choose, options = self._choose, self._options
        delayed = options.schedule == "delayed"
        kinds = ["rate", "drain"] if delayed else ["look_up", "look_up", "evaluate", "drain"]
        if options.policy != "live":
            kinds += ["rate"]
        if not delayed:
            kinds += ["export"]
        bounded = [t for t, table in enumerate(options.tables) if table.bounded and table.layer != "collection"]
        if bounded and options.policy != "live" and not delayed:
            kinds += ["set_weights"] * 2
        evicting = [t for t, table in enumerate(options.tables) if table.eviction]
        if evicting and options.policy != "live":
            kinds += ["evict"] * 2
        if rules.may_refuse(options):
            kinds += ["refused"]
        if rules.may_load_weights(options):
            kinds += ["load_weights", "load_weights"] if self._saved else ["save_weights", "save_weights"]
        kind = choose.choice(kinds)
        if kind == "rate":
            return Operation(kind, value=choose.choice([0.01, 0.1, 0.4]))
        if kind == "set_weights":
            return Operation(kind, table=choose.choice(bounded), value=choose.randrange(1, 1000))
        if kind == "evict":
            return Operation(kind, table=choose.choice(evicting))
        if kind == "refused":
            return Operation(kind, first=self._batch, table=choose.randrange(options.ranks))
        if kind == "save_weights":
            self._saved = True
        return Operation(kind, first=choose.randrange(100), value=choose.randrange(1, 1000))
