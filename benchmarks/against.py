"""Compares another tree's build with this one's: `python -m benchmarks step --against ../parent`.

A tree is a checkout of this project, built in place with `tools/native.py`. A *side* is a process that runs the suites
of *this* checkout with the `tf_sparse_ps` of its tree. All sides do the same work: ids and gradients come from fixed
seeds. This tree has one side. The other tree has two sides, and the distance of their ratio from 1 is the noise of the
run. The sides take turns: only one works at a time, and their order changes every turn. Whatever else the machine does
affects all of them.

The report gives three figures for each variant:

- The ratio of the lower quartiles of the blocks. It is above 1 if this tree is slower or takes more: times and sizes of
  this tree are divided by those of the other tree. Rates, whose better quartile is the upper one, are divided the other
  way round.
- The lowest and the highest ratio within one turn.
- The control: the ratio of the other tree's second side to its first. If it differs from 1 by more than 15 %, the
  table marks the comparison as not valid.

The report uses quartiles because disturbances only make blocks slower. Variants without tf_sparse_ps are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from benchmarks import harness
from benchmarks.turns import Baton

SUITES = ("kernels", "layers", "step", "cluster", "ranks", "tiers")  # the suites that take turns
_ROOT = Path(__file__).absolute().parents[1]
VALID = 0.15  # the largest valid distance of the control from 1
_CLOSE_S = 60.0


class SideFailed(RuntimeError):
    """A side ended with an error. The text names its tree and ends with the output of the side."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A checkout with its build.

    Attributes:
        path: The folder of the checkout.
        commit: The short hash, with "+ changes" if files differ from the commit; "" outside of git.
        stale: A source file that is newer than the shared objects, or None.
    """

    path: Path
    commit: str
    stale: Path | None

    @classmethod
    def at(cls, path: Path) -> Tree:
        """Returns the tree at a path.

        Raises:
            ValueError: The path is no checkout of this project, or the checkout has not been built.
        """
        path = path.absolute()
        package = path / "tf_sparse_ps"
        if not (package / "__init__.py").is_file():
            raise ValueError(
                f"a tree is a checkout of tf_sparse_ps. Received: {path}, without tf_sparse_ps/__init__.py"
            )
        built = [package / "_ops_lib.so", *package.glob("_table.*.so")]
        if len(built) < 2 or not built[0].is_file():
            raise ValueError(f"{path} has not been built: cd {path} && {sys.executable} tools/native.py")
        oldest = min(file.stat().st_mtime for file in built)
        layers = ("core", "executor", "kernels", "python")
        sources = [file for name in layers for file in (path / "cc" / name).rglob("*.*")]
        return cls(path, _commit(path), next((file for file in sources if file.stat().st_mtime > oldest), None))

    def __str__(self) -> str:
        """Returns the path and the commit."""
        return f"{self.path} ({self.commit})" if self.commit else str(self.path)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A variant of a case with both trees.

    Attributes:
        other: The better quartile of the other tree's blocks.
        this: The better quartile of this tree's blocks.
        ratio: The ratio of the quartiles; above 1: this tree is slower, or takes more.
        low, high: The lowest and the highest ratio of two blocks of one turn.
        control: The ratio of the other tree's second side to its first.
    """

    suite: str
    case: str
    variant: str
    unit: str
    other: float
    this: float
    ratio: float
    low: float
    high: float
    control: float


def ratios(
    other: Sequence[harness.Result], this: Sequence[harness.Result], again: Sequence[harness.Result]
) -> list[Ratio]:
    """Compares the results of the sides, case by case; `again` is the other tree's second side.

    Raises:
        ValueError: The sides have measured different cases.
    """
    names = [
        {(result.suite, result.case, result.variant, result.unit, len(result.blocks)) for result in side}
        for side in (other, this)
    ]
    if differ := names[0] ^ names[1]:
        raise ValueError(f"both trees must have measured the same. Received, of one of them only: {sorted(differ)}")
    compared = []
    for a, b, c in zip(other, this, again, strict=True):
        of_turns = [_slower(x, y, b.unit) for x, y in zip(b.blocks, a.blocks, strict=True)]
        own, peer, control = (harness.quartile(side.blocks, b.unit) for side in (b, a, c))
        ratio, of_control = _slower(own, peer, b.unit), _slower(control, peer, b.unit)
        case = (b.suite, b.case, b.variant, b.unit)
        compared.append(Ratio(*case, peer, own, ratio, min(of_turns), max(of_turns), of_control))
    return compared


def _slower(figure: float, peer: float, unit: str) -> float:
    """Returns the factor by which a figure is worse than its peer's."""
    return peer / figure if harness.is_rate(unit) else figure / peer


def table(ratios: Sequence[Ratio]) -> str:
    """Returns the ratios as Markdown."""
    head = ("suite", "case", "variant", "other", "this", "ratio", "lowest - highest", "control")
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---:|---:|---:|---|---:|"]
    for ratio in ratios:
        other, this = (f"{harness.number(value)} {ratio.unit}" for value in (ratio.other, ratio.this))
        cells = f"| {ratio.suite} | {ratio.case} | {ratio.variant} | {other} | {this} "
        verdict = "" if abs(ratio.control - 1) <= VALID else ", not valid"
        lines.append(
            f"{cells}| **{ratio.ratio:.3f}** | {ratio.low:.2f} - {ratio.high:.2f} | {ratio.control:.3f}{verdict} |"
        )
    return "\n".join(lines)


def report(other: Tree, this: Tree, suites: Sequence[str], options: harness.Options, path: Path | None) -> None:
    """Runs the comparison, prints the ratios, and writes everything as JSON.

    Args:
        other: The tree that this tree is compared with.
        this: The checkout that these benchmarks belong to.
        suites: Some of `SUITES`.
        options: The options of the command line.
        path: The file to write; None: build/benchmarks/SUITES-against.json.
    """
    machine = harness.hardware()
    print(f"other: {other}\nthis:  {this}", flush=True)
    for tree in (other, this):
        if tree.stale:
            print(f"warning: {tree.stale} is newer than the build of {tree.path}", flush=True)
    compared, installed = run(other, this, suites, options)
    machine |= installed
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"The benchmarks of {this.path} with the tf_sparse_ps of either tree, in turns. Above 1, this tree is slower, "
        "or takes more. Ratio: of the quartiles. Lowest - highest: of one turn. Control: the other tree's two sides."
    )
    print(table(compared), end="\n\n")
    path = path or Path("build/benchmarks") / f"{'-'.join(suites)}-against.json"
    trees = {"other": str(other), "this": str(this)}
    harness.save(path, machine | trees, options, compared)
    print(path)


def run(other: Tree, this: Tree, suites: Sequence[str], options: harness.Options) -> tuple[list[Ratio], dict[str, str]]:
    """Measures some of `SUITES` with both trees; returns the ratios, and the installed versions.

    Raises:
        SideFailed: A side failed, for example because the other tree lacks something that a suite of this one uses.
    """
    command = [sys.executable, "-m", "benchmarks.against", *suites]
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(Side(f"the tf_sparse_ps of {tree}", tree.path, command, options))
            for tree in (other, this, other)
        ]
        play(sides)
        figures = [side.figures() for side in sides]
    return ratios(*(results for results, _ in figures)), figures[0][1]


class Player(Protocol):
    """A player that takes turns.

    Attributes:
        done: Whether no turn is left.
    """

    done: bool

    def work(self) -> None:
        """Takes a turn."""


def play(players: Sequence[Player]) -> None:
    """Lets players take turns, in another order each time, until all are done."""
    with tqdm(desc="against", unit=" turns", delay=2, disable=None) as bar:
        for order in itertools.cycle(itertools.permutations(players)):
            if all(player.done for player in players):
                return
            for player in order:
                if not player.done:
                    player.work()
            bar.update()


class Side:
    """A process that measures when its turn comes. It is a context manager, which ends the process.

    Args:
        whose: Describes what is measured, for messages.
        tree: The checkout from which the process imports tf_sparse_ps. It imports benchmarks from this checkout.
        command: The command to run. It must call `work`.
        options: The options for the suites.
    """

    def __init__(self, whose: str, tree: Path, command: Sequence[str], options: harness.Options) -> None:
        self._whose = whose
        self._folder = tempfile.TemporaryDirectory(prefix="tfsps-bench-")
        # The process imports from this folder: this checkout's benchmarks, and the tree's package.
        view = Path(self._folder.name)
        (view / "benchmarks").symlink_to(_ROOT / "benchmarks")
        (view / "tf_sparse_ps").symlink_to(tree / "tf_sparse_ps")
        self._log = (view / "log").open("w+")
        environment = {
            key: value for key, value in os.environ.items() if key != "TFSPS_JOB"
        }  # each process gets its own tables
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=view,
            env=environment | {"PYTHONPATH": str(view)},
        )
        self.done = False
        self._write(json.dumps(dataclasses.asdict(dataclasses.replace(options, turns=None))))
        self._read()

    def __enter__(self) -> Side:
        """Returns this side."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process. A process that is working ends at its next turn, so that its tables are removed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def work(self) -> None:
        """Takes a turn."""
        self._write("go")
        self._read()

    def figures(self) -> tuple[list[harness.Result], dict[str, str]]:
        """Returns the results and the installed versions, when the side is done."""
        document = json.loads((Path(self._folder.name) / "figures.json").read_text())
        return [harness.Result(**result) for result in document["results"]], document["installed"]

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self._fail()

    def _read(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            if self._process.wait():
                self._fail()
            self.done = True

    def _fail(self) -> None:
        self._log.seek(0)
        raise SideFailed(
            f"this checkout's benchmarks failed with {self._whose} "
            f"(status {self._process.wait()}):\n{self._log.read()[-4000:]}"
        )


def _commit(path: Path) -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "cc", "tf_sparse_ps")
    return f"{commit} + changes" if commit and changed else commit


def work(measure: Callable[[harness.Options], tuple[list[harness.Result], dict[str, str]]]) -> None:
    """Runs in the process of a `Side`, in the folder from which the process imports.

    Args:
        measure: Returns the results, and the installed versions. It is called in the first turn.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of suites goes to the log
    arguments = json.loads(sys.stdin.readline())
    turns = Baton(out, sys.stdin)
    arguments["cluster"] = harness.Cluster(**arguments["cluster"])
    options = harness.Options(**{**arguments, "turns": turns})
    turns.next()  # imports use all processors, so they wait for the turn, too
    results, installed = measure(options)
    document: Mapping[str, Any] = {
        "results": [dataclasses.asdict(result) for result in results],
        "installed": installed,
    }
    Path("figures.json").write_text(json.dumps(document))


def _suites(options: harness.Options) -> tuple[list[harness.Result], dict[str, str]]:
    installed = harness.prepare(options.threads)
    suites = [importlib.import_module(f"benchmarks.{name}") for name in sys.argv[1:]]
    return [result for suite in suites for result in suite.run(options)], installed


if __name__ == "__main__":
    work(_suites)
