"""The plan of a draw: a job, and something that only one of its ranks does."""

from __future__ import annotations

import dataclasses
import json
import random

# The events of the rank, and their possible moments: "build", before the model is built; "begin", before the first fit;
# "step", after a step of a fit; "between", between the two fits; "always", from the beginning on.
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
STEPS, EPOCHS = 3, 2  # in each of the two fits


@dataclasses.dataclass(frozen=True)
class Plan:
    """A draw.

    Attributes:
      seed: The seed of the draw.
      engine: "horovod" or "tensorflow".
      hosts: The hosts, as for horovodrun's -H: one node, or two.
      ranks: The number of ranks.
      rule: "sgd" or "adam".
      sharded: Whether the table is spread over the nodes.
      callbacks: The callbacks of both fits, on all ranks.
      catches: Whether the program catches errors of a fit, and continues with the next fit, as a notebook does.
      event, moment: A key and a value of `EVENTS`.
      who: The rank that acts differently.
      step: The step of the fit after which the event happens, if the moment is "step".
      detail: The name of the callback or of the option.
      fault: The planted fault, for controls (`controls.py`); "": none.
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
        """Returns the plan of a `text`."""
        fields = json.loads(text)
        return cls(**fields | {"callbacks": tuple(fields["callbacks"])})

    @property
    def text(self) -> str:
        """The plan as text, for the program."""
        return json.dumps(dataclasses.asdict(self))


def draw(seed: int) -> Plan:
    """Returns the plan of a seed."""
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
