"""The step suite's work by other libraries and by ours, by turns: `python -m benchmarks step --peers`.

Each peer is a process with an interpreter of its own, because no environment holds them all (`make bench-peers` sets
them up). One works at a time, as under `--against`, in another order each turn. All have the same ids, the same
gradients and as many threads. A peer that is not installed is left out, and the report says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import statistics
import sys
from pathlib import Path

from benchmarks import against, harness

ROOT = Path(__file__).absolute().parents[2]
LOOKUP, STEP = "lookup", "lookup + backward + update"


@dataclasses.dataclass(frozen=True)
class Peer:
    """Who does the work.

    Attributes:
        name: in the report.
        venv: folder of its environment in the checkout; None: this interpreter's.
        module: of this package, with `make`.
        arguments: what `make` is given.
        needs: a package without which it is not installed.
        beside: the one of ours that does the same work.
    """

    name: str
    venv: str | None
    module: str
    arguments: tuple[str, ...]
    needs: str
    beside: str = "ours, Adagrad"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return Path(sys.executable) if self.venv is None else ROOT / self.venv / "bin" / "python"

    def installed(self) -> bool:
        """Whether it can be run."""
        if self.venv is None:
            return importlib.util.find_spec(self.needs) is not None
        return any((ROOT / self.venv).glob(f"lib/python*/site-packages/{self.needs}"))


PEERS = (
    Peer("ours, Adagrad", None, "ours", ("adagrad",), "tensorflow"),
    Peer("ours, Adagrad, bfloat16 rows", None, "ours", ("adagrad", "bfloat16"), "tensorflow"),
    Peer(
        "ours, Adagrad, bfloat16 rows and outputs",
        None,
        "ours",
        ("adagrad", "bfloat16", "mixed_bfloat16"),
        "tensorflow",
    ),
    Peer("ours, row-wise Adagrad", None, "ours", ("rowwise_adagrad",), "tensorflow"),
    Peer("Keras 2, Adagrad", ".venv-tf215", "keras_layer", (), "keras"),
    Peer("Keras 3, Adagrad", None, "keras_layer", (), "keras"),
    Peer("FBGEMM, Adagrad", ".venv-fbgemm", "fbgemm", ("EXACT_ADAGRAD",), "fbgemm_gpu"),
    Peer(
        "FBGEMM, row-wise Adagrad",
        ".venv-fbgemm",
        "fbgemm",
        ("EXACT_ROWWISE_ADAGRAD",),
        "fbgemm_gpu",
        "ours, row-wise Adagrad",
    ),
    Peer("TFRA, Adagrad", ".venv-tfra", "tfra", (), "tensorflow_recommenders_addons"),
)


class PeerSide(against.Side):
    """The process of a peer; a context, which ends it."""

    def __init__(self, peer: Peer, options: harness.Options) -> None:
        command = [str(peer.python), "-m", "benchmarks.peers.program", peer.name, peer.module, *peer.arguments]
        super().__init__(f"the peer {peer.name}", ROOT, command, options)


def report(options: harness.Options, path: Path | None) -> None:
    """Measures all peers that are installed, prints ratios to ours, and writes everything as JSON."""
    machine = harness.hardware()
    peers = [peer for peer in PEERS if peer.installed()]
    for peer in set(PEERS) - set(peers):
        print(f"{peer.name}: left out, {peer.venv} is not there (make bench-peers)", flush=True)
    found = run(peers, options)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print("By turns; a figure is the lower quartile of the blocks, a ratio that of ours to the peer's.")
    print(table(found), end="\n\n")
    path = path or Path("build/benchmarks/step-peers.json")
    harness.save(path, machine, options, found)
    print(path)


def run(peers: list[Peer], options: harness.Options) -> list[harness.Result]:
    """The work by each peer, by turns."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(PeerSide(peer, options)) for peer in peers]
        against.play(sides)
        return [result for side in sides for result in side.figures()[0]]


def table(found: list[harness.Result]) -> str:
    """The results as Markdown."""
    lines = ["| variant | lookup | step | lowest - highest step | ours to it: lookup | step |"]
    lines.append("|---|---:|---:|---|---:|---:|")
    by = {(one.variant, one.case): one for one in found}
    beside = {peer.name: peer.beside for peer in PEERS}
    for name in dict.fromkeys(one.variant for one in found):
        look, step = by[name, LOOKUP], by[name, STEP]
        ours = beside[name]
        ratios = [quartile(by[ours, one.case]) / quartile(one) for one in (look, step)]
        shown = " | ".join("" if name == ours else f"{ratio:.2f}" for ratio in ratios)
        lines.append(
            f"| {name} | {harness.number(quartile(look))} ms | {harness.number(quartile(step))} ms "
            f"| {harness.number(step.low)} - {harness.number(step.high)} | {shown} |"
        )
    return "\n".join(lines)


def quartile(result: harness.Result) -> float:
    """The lower one of its blocks."""
    blocks = list(result.blocks)
    return blocks[0] if len(blocks) == 1 else statistics.quantiles(blocks, n=4, method="inclusive")[0]


__all__ = ["LOOKUP", "PEERS", "STEP", "Peer", "report", "run", "table"]
