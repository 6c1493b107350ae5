"""What a draw is: a job, and what one of its ranks does that the others do not."""

from __future__ import annotations

import dataclasses
import json
import random

# What the rank does, and when it can: "build", before the model is built; "begin", before the first fit; "step", in a
# fit, behind a step; "between", between the two fits; "always", from the beginning on.
EVENTS: dict[str, tuple[str, ...]] = {
    "raise": ("build", "begin", "step", "between"),
    "interrupt": ("begin", "step", "between"),
    "import": ("build", "begin", "step", "between"),
    "write": ("begin", "step", "between"),
    "rate": ("begin", "step", "between"),
    "save": ("begin", "step", "between"),
    "evaluate": ("begin", "step", "between"),
    "predict": ("begin", "between"),
    "validate": ("always",),
    "skip callback": ("always",),
    "option": ("always",),
    "layer": ("build",),
    "sleep": ("build", "begin", "step", "between"),
    "nothing": ("begin",),
}
CALLBACKS = ("MetricAverage", "BroadcastVariables", "Checkpoint", "ReduceLROnPlateau", "LearningRateScheduler")
OPTIONS = (
    "learning_rate",
    "momentum",
    "clipnorm",
    "sparse_reduction",
    "topology",
    "batches",
    "epochs",
    "dim",
    "root",
    "every_steps",
)
STEPS, EPOCHS = 3, 2  # of each of the two fits


@dataclasses.dataclass(frozen=True)
class Plan:
    """A draw.

    Attributes:
      seed: Of it.
      engine: "horovod" or "tensorflow".
      hosts: As horovodrun's -H: one node, or two.
      ranks: How many.
      rule: "sgd" or "adam".
      sharded: The table is spread over the nodes.
      callbacks: Of both fits, on all ranks.
      catches: The program catches errors of a fit, and goes on with the next one, as a notebook does.
      event, moment: See `EVENTS`.
      who: The rank.
      step: Of the fit behind which it happens, if the moment is "step".
      detail: Which callback, which option.
      fault: That is planted, for controls (`controls.py`); "": none.
    """

    seed: int
    engine: str
    hosts: str
    ranks: int
    rule: str
    sharded: bool
    callbacks: tuple[str, ...]
    catches: bool
    event: str
    moment: str
    who: int
    step: int
    detail: str = ""
    fault: str = ""

    @classmethod
    def of(cls, text: str) -> Plan:
        """The inverse of `text`."""
        found = json.loads(text)
        return cls(**found | {"callbacks": tuple(found["callbacks"])})

    @property
    def text(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    ranks = chance.choice((2, 2, 3, 4))
    two_nodes = (ranks > 2 and chance.random() < 0.5) or (ranks == 2 and chance.random() < 0.25)
    first = (ranks + 1) // 2
    event = chance.choice(tuple(EVENTS))
    callbacks = tuple(name for name in CALLBACKS if chance.random() < 0.25)
    detail = ""
    if event == "skip callback":
        detail = chance.choice(CALLBACKS)
    elif event == "option":
        detail = chance.choice(OPTIONS)
    needed = {"root": "BroadcastVariables", "every_steps": "Checkpoint"}.get(detail, detail)
    if needed in CALLBACKS and needed not in callbacks:
        callbacks = tuple(name for name in CALLBACKS if name in callbacks or name == needed)
    return Plan(
        seed=seed,
        engine=chance.choice(("horovod", "tensorflow")),
        hosts=f"localhost:{first},127.0.0.1:{ranks - first}" if two_nodes else f"localhost:{ranks}",
        ranks=ranks,
        rule=chance.choice(("sgd", "adam")),
        sharded=two_nodes and chance.random() < 0.4,
        callbacks=callbacks,
        catches=chance.random() < 0.5,
        event=event,
        moment=chance.choice(EVENTS[event]),
        who=chance.randrange(ranks),
        step=chance.randrange(1, 2 * STEPS * EPOCHS),
        detail=detail,
    )
