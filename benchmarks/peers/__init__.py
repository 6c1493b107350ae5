"""A suite's work by other libraries and by ours, in turns: `python -m benchmarks step --peers`, or `layers --peers`.

Each peer is a process with its own interpreter, because no environment holds them all (`make bench-peers` sets them
up). As with `--against`, only one works at a time, and their order changes every turn. All have the same ids, the same
gradients and the same number of threads. A peer that is not installed is left out, and the report mentions it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import against, harness

ROOT = Path(__file__).absolute().parents[2]
LOOKUP, STEP = "lookup", "lookup + backward + update"
Calls = tuple[Callable[[], Any], Callable[[], Any]]  # make a lookup, and a step, of the next batch


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of every peer.

    Attributes:
        rows, dim: The size of each table.
        ids: Batches of int64[ids], or int64[tables, ids] for several tables.
        gradients: Gradients of the outputs, float32, with the shape of the ids and `dim`.
        threads: The number of threads.
    """

    rows: int
    dim: int
    ids: Sequence[np.ndarray]
    gradients: Sequence[np.ndarray]
    threads: int


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library that does the work.

    Attributes:
        name: The name in the report.
        venv: The folder of its environment in the checkout; None: this interpreter's environment.
        module: The module of this package, with `one_table` or `many_tables`, whichever its suite needs.
        arguments: The arguments of that function, after the work.
        needs: A package of the environment, without which the peer is not installed.
        beside: The name of our peer that does the same work.
    """

    name: str
    venv: str | None
    module: str
    arguments: tuple[str, ...]
    needs: str
    beside: str

    @property
    def python(self) -> Path:
        """The interpreter of the peer."""
        return Path(sys.executable) if self.venv is None else ROOT / self.venv / "bin" / "python"

    def installed(self) -> bool:
        """Whether the peer can be run."""
        if self.venv is None:
            return importlib.util.find_spec(self.needs) is not None
        return any((ROOT / self.venv).glob(f"lib/python*/site-packages/{self.needs}"))


KERAS_2, TORCHREC, TFRA = ".venv-tf215", ".venv-torchrec", ".venv-tfra"
_OURS, _ROWWISE = "ours, Adagrad", "ours, row-wise Adagrad"
_COLLECTION, _BOUNDED = "ours, a collection", "ours, a collection of bounded tables"
_NARROW = ("adagrad", "bfloat16")

PEERS: dict[str, tuple[Peer, ...]] = {
    "step": (
        Peer(_OURS, None, "ours", ("adagrad",), "tensorflow", _OURS),
        Peer("ours, Adagrad, bfloat16 rows", None, "ours", _NARROW, "tensorflow", _OURS),
        Peer(
            "ours, Adagrad, bfloat16 rows and outputs", None, "ours", (*_NARROW, "mixed_bfloat16"), "tensorflow", _OURS
        ),
        Peer(_ROWWISE, None, "ours", ("rowwise_adagrad",), "tensorflow", _OURS),
        Peer("Keras 2, Adagrad", KERAS_2, "keras_layer", (), "keras", _OURS),
        Peer("Keras 3, Adagrad", None, "keras_layer", (), "keras", _OURS),
        Peer("FBGEMM, Adagrad", TORCHREC, "fbgemm", ("EXACT_ADAGRAD",), "fbgemm_gpu", _OURS),
        Peer("FBGEMM, row-wise Adagrad", TORCHREC, "fbgemm", ("EXACT_ROWWISE_ADAGRAD",), "fbgemm_gpu", _ROWWISE),
        Peer("TFRA, Adagrad", TFRA, "tfra", (), "tensorflow_recommenders_addons", _OURS),
    ),
    "layers": (
        Peer(_COLLECTION, None, "ours", ("collection", "unbounded"), "tensorflow", _COLLECTION),
        Peer(_BOUNDED, None, "ours", ("collection", "bounded"), "tensorflow", _BOUNDED),
        Peer("ours, a layer for each feature", None, "ours", ("separate", "unbounded"), "tensorflow", _COLLECTION),
        Peer("ours, a bounded layer for each", None, "ours", ("separate", "bounded"), "tensorflow", _BOUNDED),
        Peer("Keras 2, a layer for each feature", KERAS_2, "keras_layer", (), "keras", _COLLECTION),
        Peer("Keras 3, a layer for each feature", None, "keras_layer", (), "keras", _COLLECTION),
    ),
}


class PeerSide(against.Side):
    """The process of a peer. It is a context manager, which ends the process."""

    def __init__(self, suite: str, peer: Peer, options: harness.Options) -> None:
        command = [str(peer.python), "-m", "benchmarks.peers.program", suite, peer.name, peer.module, *peer.arguments]
        super().__init__(f"the peer {peer.name}", ROOT, command, options)


def report(suite: str, options: harness.Options, path: Path | None) -> None:
    """Measures all peers of a suite that are installed, prints ratios of ours to them, and writes JSON."""
    machine = harness.hardware()
    peers = [peer for peer in PEERS[suite] if peer.installed()]
    for peer in PEERS[suite]:
        if peer not in peers:
            print(f"{peer.name}: left out, because {peer.venv} is not installed (make bench-peers)", flush=True)
    results = run(suite, peers, options)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print("In turns. A figure is the lower quartile of the blocks. A ratio is our figure divided by the peer's.")
    print(table(suite, results), end="\n\n")
    path = path or Path(f"build/benchmarks/{suite}-peers.json")
    harness.save(path, machine, options, results)
    print(path)


def run(suite: str, peers: Sequence[Peer], options: harness.Options) -> list[harness.Result]:
    """Measures the work of each peer, in turns."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(PeerSide(suite, peer, options)) for peer in peers]
        against.play(sides)
        return [result for side in sides for result in side.figures()[0]]


def case(kind: str, sizes: str) -> str:
    """Returns the name of a case. `kind`: LOOKUP or STEP; `sizes`: "" if the suite has one size."""
    return f"{kind}, {sizes}" if sizes else kind


def sizes_of(case_name: str) -> str:
    """Returns the sizes in the name of a case; "" if it has none."""
    return case_name.partition(", ")[2]


def table(suite: str, results: Sequence[harness.Result]) -> str:
    """Formats the results as Markdown, with a table for each size."""
    sizes = dict.fromkeys(sizes_of(result.case) for result in results)
    return "\n\n".join(_table(suite, results, size) for size in sizes)


def _table(suite: str, results: Sequence[harness.Result], sizes: str) -> str:
    head = f"{sizes}\n\n" if sizes else ""
    lines = ["| variant | lookup | step | lowest - highest step | lookup, ours / peer | step, ours / peer |"]
    lines.append("|---|---:|---:|---|---:|---:|")
    result_of = {(result.variant, result.case): result for result in results}
    beside = {peer.name: peer.beside for peer in PEERS[suite]}

    def figure(name: str, kind: str) -> float:
        result = result_of[name, case(kind, sizes)]
        return harness.quartile(result.blocks, result.unit)

    for name in dict.fromkeys(result.variant for result in results):
        step, ours = result_of[name, case(STEP, sizes)], beside[name]
        ratios = ["" if name == ours else f"{figure(ours, kind) / figure(name, kind):.2f}" for kind in (LOOKUP, STEP)]
        lines.append(
            f"| {name} | {harness.number(figure(name, LOOKUP))} ms | {harness.number(figure(name, STEP))} ms "
            f"| {harness.number(step.low)} - {harness.number(step.high)} | {' | '.join(ratios)} |"
        )
    return head + "\n".join(lines)
