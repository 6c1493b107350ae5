"""The cases of the delayed schedule's equality test, for the program and for the reference."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np

SHAPES = ((3, 2), (5,))
KEYS, DIM = 20, 3
STEPS = 23  # no multiple of a cycle below
RATES = {"sgd": 0.2, "momentum": 0.05, "nesterov": 0.05, "adagrad": 0.3, "adam": 0.05}
DECAY = 0.1


@dataclasses.dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
      kind: "sgd", "momentum", "nesterov", "adagrad" or "adam".
      staleness, cycle, apply: The arguments of `DelayedGlobal`.
      tables: Whether the model has a table, which SGD trains and whose step is delayed, too.
      late: Whether some ranks have weight 0 in some iterations.
      mode: "function": the step in a tf.function; "loop": three steps per call; "eager".
    """

    kind: str
    staleness: int = 1
    cycle: int = 7
    apply: str = "all"
    tables: bool = False
    late: bool = False
    mode: str = "function"

    @property
    def name(self) -> str:
        """The name of the run's results."""
        return "-".join(str(value) for value in dataclasses.astuple(self))


CASES = (
    Case("sgd", tables=True, late=True),
    Case("sgd", staleness=3, cycle=10, apply="newest", tables=True),
    Case("sgd", staleness=2, cycle=100, mode="eager"),
    Case("momentum", staleness=2, cycle=10, mode="loop"),
    Case("momentum", staleness=3, cycle=6, apply="newest", late=True),
    Case("nesterov", staleness=3),
    Case("adagrad", staleness=2, cycle=9, tables=True, mode="loop"),
    Case("adagrad", apply="newest", late=True),
    Case("adam", staleness=2, cycle=8, late=True),
    Case("adam", staleness=3, cycle=9, apply="newest"),
)


def first_weights() -> list[np.ndarray]:
    """Returns float32 weights of each shape."""
    random = np.random.default_rng(5)
    return [random.normal(size=shape).astype(np.float32) for shape in SHAPES]


def rate(kind: str, iteration: int) -> float:
    """Returns the learning rate of an iteration. It differs in each."""
    return RATES[kind] / (1 + DECAY * iteration)


@dataclasses.dataclass
class Batch:
    """The batch of one rank and iteration.

    Attributes:
      targets: The targets of each dense weight, whose gradient is weight - target.
      ids, rows: int64[n] and float32[n, DIM]. The gradient of the looked-up row is row - target.
      weight: The weight of the rank.
    """

    targets: list[np.ndarray]
    ids: np.ndarray
    rows: np.ndarray
    weight: float


def batch(case: Case, iteration: int, rank: int) -> Batch:
    """Returns the batch of a rank and iteration, always the same."""
    random = np.random.default_rng([zlib.crc32(case.name.encode()), iteration, rank])
    targets = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
    n = int(random.integers(0, 12))
    ids = random.integers(0, KEYS, n)
    rows = random.normal(size=(n, DIM)).astype(np.float32)
    return Batch(targets, ids, rows, float(not (case.late and (iteration + rank) % 3 == 0)))
