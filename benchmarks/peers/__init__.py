"""A suite's work by other libraries and by ours, by turns: `python -m benchmarks step --peers`, or `layers --peers`.

Each peer is a process with an interpreter of its own, because no environment holds them all (`make bench-peers` sets
them up). One works at a time, as under `--against`, in another order each turn. All have the same ids, the same
gradients and as many threads. A peer that is not installed is left out, and the report says so.
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
Calls = tuple[Callable[[], Any], Callable[[], Any]]  # that do a lookup, and a step, of the next batch


@dataclasses.dataclass(frozen=True)
class Work:
    """What every peer does.

    Attributes:
        rows, dim: of each table.
        ids: batches; int64[ids], or int64[tables, ids] for several tables.
        gradients: of the outputs; float32, of a shape with `dim` more.
        threads: to work on.
    """

    rows: int
    dim: int
    ids: Sequence[np.ndarray]
    gradients: Sequence[np.ndarray]
    threads: int


@dataclasses.dataclass(frozen=True)
class Peer:
    """Who does the work.

    Attributes:
        name: in the report.
        venv: folder of its environment in the checkout; None: this interpreter's.
        module: of this package, with `one_table` or `many_tables`, whichever its suite needs.
        arguments: what that is given, after the work.
        needs: a package without which it is not installed.
        beside: the one of ours that does the same work.
    """

    name: str
    venv: str | None
    module: str
    arguments: tuple[str, ...]
    needs: str
    beside: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return Path(sys.executable) if self.venv is None else ROOT / self.venv / "bin" / "python"

    def installed(self) -> bool:
        """Whether it can be run."""
        if self.venv is None:
            return importlib.util.find_spec(self.needs) is not None
        return any((ROOT / self.venv).glob(f"lib/python*/site-packages/{self.needs}"))


KERAS_2, FBGEMM, TFRA = ".venv-tf215", ".venv-fbgemm", ".venv-tfra"
_OURS, _ROWWISE, _COLLECTION = "ours, Adagrad", "ours, row-wise Adagrad", "ours, a collection"
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
        Peer("FBGEMM, Adagrad", FBGEMM, "fbgemm", ("EXACT_ADAGRAD",), "fbgemm_gpu", _OURS),
        Peer("FBGEMM, row-wise Adagrad", FBGEMM, "fbgemm", ("EXACT_ROWWISE_ADAGRAD",), "fbgemm_gpu", _ROWWISE),
        Peer("TFRA, Adagrad", TFRA, "tfra", (), "tensorflow_recommenders_addons", _OURS),
    ),
    "layers": (
        Peer(_COLLECTION, None, "ours", ("collection",), "tensorflow", _COLLECTION),
        Peer("ours, a layer for each feature", None, "ours", ("separate",), "tensorflow", _COLLECTION),
        Peer("Keras 2, a layer for each feature", KERAS_2, "keras_layer", (), "keras", _COLLECTION),
        Peer("Keras 3, a layer for each feature", None, "keras_layer", (), "keras", _COLLECTION),
    ),
}


class PeerSide(against.Side):
    """The process of a peer; a context, which ends it."""

    def __init__(self, suite: str, peer: Peer, options: harness.Options) -> None:
        command = [str(peer.python), "-m", "benchmarks.peers.program", suite, peer.name, peer.module, *peer.arguments]
        super().__init__(f"the peer {peer.name}", ROOT, command, options)


def report(suite: str, options: harness.Options, path: Path | None) -> None:
    """Measures all peers of a suite that are installed, prints ratios of ours to them, and writes JSON."""
    machine = harness.hardware()
    peers = [peer for peer in PEERS[suite] if peer.installed()]
    for peer in PEERS[suite]:
        if peer not in peers:
            print(f"{peer.name}: left out, {peer.venv} is not there (make bench-peers)", flush=True)
    found = run(suite, peers, options)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print("By turns; a figure is the lower quartile of the blocks, a ratio that of ours to the peer's.")
    print(table(suite, found), end="\n\n")
    path = path or Path(f"build/benchmarks/{suite}-peers.json")
    harness.save(path, machine, options, found)
    print(path)


def run(suite: str, peers: Sequence[Peer], options: harness.Options) -> list[harness.Result]:
    """The work by each peer, by turns."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(PeerSide(suite, peer, options)) for peer in peers]
        against.play(sides)
        return [result for side in sides for result in side.figures()[0]]


def table(suite: str, found: Sequence[harness.Result]) -> str:
    """The results as Markdown."""
    lines = ["| variant | lookup | step | lowest - highest step | lookup, ours to it | step, ours to it |"]
    lines.append("|---|---:|---:|---|---:|---:|")
    by = {(one.variant, one.case): one for one in found}
    beside = {peer.name: peer.beside for peer in PEERS[suite]}

    def figure(name: str, case: str) -> float:
        return harness.quartile(by[name, case].blocks, by[name, case].unit)

    for name in dict.fromkeys(one.variant for one in found):
        step, ours = by[name, STEP], beside[name]
        ratios = ["" if name == ours else f"{figure(ours, case) / figure(name, case):.2f}" for case in (LOOKUP, STEP)]
        lines.append(
            f"| {name} | {harness.number(figure(name, LOOKUP))} ms | {harness.number(figure(name, STEP))} ms "
            f"| {harness.number(step.low)} - {harness.number(step.high)} | {' | '.join(ratios)} |"
        )
    return "\n".join(lines)
