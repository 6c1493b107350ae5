"""Another tree's build and this one's, by turns: `python -m benchmarks step --against ../parent`.

A tree is a checkout of this project, built in place with `tools/native.py`. A process, a *side*, runs the suites of
*this* checkout with its tree's `tf_sparse_ps`: the work is the same, and so are all ids and gradients, which come of
fixed seeds. This tree has one side. The other has two: what their ratio is off 1.00 is noise, in the same run. One side
works at a time. Before each block it hands over and waits, and they go in another order each time; so whatever else the
machine does hits all of them, and a machine that is slow today is slow for all.

What is reported is the ratio of the lower quartiles of the blocks, above 1 where this tree is slower: of times and
sizes this tree's divided by the other's, of samples/s (whose better quartile is the upper one) the other's by this
tree's; with it the lowest and the highest ratio within a turn; and the control, the ratio of the other tree's second
side to its first. Quartiles, because what disturbs a machine only ever makes a block slower. Where the control is off 1
by more than 15 %, the comparison is not valid, and the table says so. Variants that do not use tf_sparse_ps are left
out.
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

SUITES = ("kernels", "layers", "step", "cluster", "ranks")  # those that ask for turns
_ROOT = Path(__file__).absolute().parents[1]
VALID = 0.15  # how far the control may be off 1
_CLOSE_S = 60.0


class SideFailed(RuntimeError):
    """A side ended with an error; the text names its tree and ends with what it printed."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A checkout with its build.

    Attributes:
        path: of the checkout.
        commit: short hash, with "+ changes" if files differ from it; "" outside of git.
        stale: a source of the shared objects that is newer than they are, or None.
    """

    path: Path
    commit: str
    stale: Path | None

    @classmethod
    def at(cls, path: Path) -> Tree:
        """The tree at a path.

        Raises:
            ValueError: it is no checkout of this project, or has not been built.
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
        oldest = min(one.stat().st_mtime for one in built)
        layers = ("core", "executor", "kernels", "python")
        sources = [one for name in layers for one in (path / "cc" / name).rglob("*.*")]
        return cls(path, _commit(path), next((one for one in sources if one.stat().st_mtime > oldest), None))

    def __str__(self) -> str:
        """Its path and what stands there."""
        return f"{self.path} ({self.commit})" if self.commit else str(self.path)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A variant of a case with both trees.

    Attributes:
        other: the better quartile of the other tree's blocks.
        this: of this tree's.
        ratio: of the quartiles; above 1: this tree is slower, or takes more.
        low, high: of the ratios of blocks of one turn.
        control: the ratio of the other tree to itself.
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
    """What the sides have measured, case by case; `again` is the other tree's second side.

    Raises:
        ValueError: they have not measured the same.
    """
    names = [{(one.suite, one.case, one.variant, one.unit, len(one.blocks)) for one in side} for side in (other, this)]
    if differ := names[0] ^ names[1]:
        raise ValueError(f"both trees must have measured the same. Received, of one of them only: {sorted(differ)}")
    found = []
    for a, b, c in zip(other, this, again, strict=True):
        of_turns = [_slower(x, y, b.unit) for x, y in zip(b.blocks, a.blocks, strict=True)]
        mine, peer, control = (harness.quartile(one.blocks, b.unit) for one in (b, a, c))
        ratio, of_control = _slower(mine, peer, b.unit), _slower(control, peer, b.unit)
        case = (b.suite, b.case, b.variant, b.unit)
        found.append(Ratio(*case, peer, mine, ratio, min(of_turns), max(of_turns), of_control))
    return found


def _slower(figure: float, peer: float, unit: str) -> float:
    """By how much worse a figure is than its peer's."""
    return peer / figure if harness.is_rate(unit) else figure / peer


def table(found: Sequence[Ratio]) -> str:
    """The ratios as Markdown."""
    head = ("suite", "case", "variant", "other", "this", "ratio", "lowest - highest", "control")
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---:|---:|---:|---|---:|"]
    for one in found:
        other, this = (f"{harness.number(value)} {one.unit}" for value in (one.other, one.this))
        words = f"| {one.suite} | {one.case} | {one.variant} | {other} | {this} "
        verdict = "" if abs(one.control - 1) <= VALID else ", not valid"
        lines.append(f"{words}| **{one.ratio:.3f}** | {one.low:.2f} - {one.high:.2f} | {one.control:.3f}{verdict} |")
    return "\n".join(lines)


def report(other: Tree, this: Tree, suites: Sequence[str], options: harness.Options, path: Path | None) -> None:
    """Runs the comparison, prints it with what was compared, and writes everything as JSON.

    Args:
        other: what this tree is divided by.
        this: the checkout that these benchmarks belong to.
        suites: some of `SUITES`.
        options: of the command line.
        path: of the file; None: build/benchmarks/SUITES-against.json.
    """
    machine = harness.hardware()
    print(f"other: {other}\nthis:  {this}", flush=True)
    for tree in (other, this):
        if tree.stale:
            print(f"warning: {tree.stale} is newer than the build of {tree.path}", flush=True)
    found, installed = run(other, this, suites, options)
    machine |= installed
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"The benchmarks of {this.path} with the tf_sparse_ps of either tree, by turns. Ratio of the quartiles: above "
        "1 this tree is slower, or takes more; lowest and highest ratio of a turn; control: the other tree to itself."
    )
    print(table(found), end="\n\n")
    path = path or Path("build/benchmarks") / f"{'-'.join(suites)}-against.json"
    trees = {"other": str(other), "this": str(this)}
    harness.save(path, machine | trees, options, found)
    print(path)


def run(other: Tree, this: Tree, suites: Sequence[str], options: harness.Options) -> tuple[list[Ratio], dict[str, str]]:
    """Measures some of `SUITES` with both trees; returns the ratios, and what is installed.

    Raises:
        SideFailed: say because the other tree lacks what a suite of this one uses.
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
    """Who takes turns.

    Attributes:
        done: it has none left.
    """

    done: bool

    def work(self) -> None:
        """Takes a turn."""


def play(players: Sequence[Player]) -> None:
    """Lets players take turns, each time in another order, until all are done."""
    with tqdm(desc="against", unit=" turns", delay=2, disable=None) as bar:
        for order in itertools.cycle(itertools.permutations(players)):
            if all(player.done for player in players):
                return
            for player in order:
                if not player.done:
                    player.work()
            bar.update()


class Side:
    """A process that measures when it is its turn; a context, which ends it.

    Args:
        whose: what is measured, for messages.
        tree: the checkout whose tf_sparse_ps it imports; its benchmarks are this checkout's.
        command: what it runs, which calls `work`.
        options: for it.
    """

    def __init__(self, whose: str, tree: Path, command: Sequence[str], options: harness.Options) -> None:
        self._whose = whose
        self._folder = tempfile.TemporaryDirectory(prefix="tfsps-bench-")
        # What it imports: this checkout's benchmarks and the tree's package, side by side.
        view = Path(self._folder.name)
        (view / "benchmarks").symlink_to(_ROOT / "benchmarks")
        (view / "tf_sparse_ps").symlink_to(tree / "tf_sparse_ps")
        self._log = (view / "log").open("w+")
        environment = {key: value for key, value in os.environ.items() if key != "TFSPS_JOB"}  # nobody else's tables
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
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process; one that works ends at its next turn, so that its tables are removed."""
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
        """What it has measured, when it is done, and what is installed."""
        found = json.loads((Path(self._folder.name) / "figures.json").read_text())
        return [harness.Result(**one) for one in found["results"]], found["installed"]

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
    """What a `Side`'s process does, in the folder from which it imports.

    Args:
        measure: returns results, and what is installed. Its first turn has begun when it is called.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what suites print is for the log
    given = json.loads(sys.stdin.readline())
    turns = Baton(out, sys.stdin)
    given["cluster"] = harness.Cluster(**given["cluster"])
    options = harness.Options(**{**given, "turns": turns})
    turns.next()  # even to import takes all processors
    results, installed = measure(options)
    document: Mapping[str, Any] = {
        "results": [dataclasses.asdict(result) for result in results],
        "installed": installed,
    }
    Path("figures.json").write_text(json.dumps(document))


def _suites(options: harness.Options) -> tuple[list[harness.Result], dict[str, str]]:
    installed = harness.prepare(options.threads)
    named = [importlib.import_module(f"benchmarks.{name}") for name in sys.argv[1:]]
    return [result for suite in named for result in suite.run(options)], installed


if __name__ == "__main__":
    work(_suites)
