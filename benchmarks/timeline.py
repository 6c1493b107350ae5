"""Draws what happens at the same time in some steps, on ranks of two emulated hosts (as root), or in one process.

`python -m benchmarks.timeline --plot FILE` runs the job of the suite `cluster` on 2 hosts x 2 ranks, and records and
draws some steps of all ranks. For each rank it prints a share of the time in which sparse gradients were on the wire:
the share in which the rank was merging or reducing other gradients, or waiting for the other rank of its host in doing
so.

`--delayed` runs the dense job of the suite `delayed` on 2 hosts x 1 rank instead. It prints the share of the time with
global gradients on the wire in which each rank was computing.

`--cache` runs one process with a device cache and a slow link. It prints the share of the time with rows on their way
to the device in which steps were running.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import delayed, harness, host_job, hosts

Spans = list[tuple[str, int, int]]
_JOB_S = 600.0


@dataclasses.dataclass(frozen=True)
class View:
    """A selection of spans to draw.

    Attributes:
        rows: The rows of the picture of each rank, from the top, by words. A span is in the row of the first word that
            its name contains.
        wire: The row of spans that send.
        work: The rows of work that may overlap with sending.
        words: The format of the printed text: milliseconds on the wire, and the share of them with work.
    """

    rows: Mapping[str, str]
    wire: str
    work: tuple[str, ...]
    words: str

    def row_of(self, name: str) -> str | None:
        """Returns the row of a span, or None if the span is not drawn."""
        return next((row for word, row in self.rows.items() if word in name), None)


_SYNCHRONOUS = View(
    {
        "lookup": "lookup",
        "segment sum": "segment sum",
        "dense": "dense ring",
        "rounds": "rounds agreed on",
        "merge and pack": "merge, pack",
        ".nodes": "sparse ring",
        "unpack and reduce": "unpack, reduce",
        "apply": "apply",
    },
    "sparse ring",
    ("merge, pack", "unpack, reduce"),
    "sparse gradients on the wire for {:.0f} ms, merging meanwhile {:.0%}",
)
_CACHE = View(
    {
        "announce": "announce (dataset)",
        "read for the cache": "read rows ahead",
        "link down": "rows to the device",
        "step": "step",
        "find in the cache": "lookup",
        "plan the cache": "plan",
        "link up": "rows to the host",
        "apply": "commit",
    },
    "rows to the device",
    ("step",),
    "rows on the way to the device for {:.0f} ms, steps meanwhile {:.0%}",
)
_DELAYED = View(
    {"computing": "computing", ".delayed": "all-reduce"},
    "all-reduce",
    ("computing",),
    "global gradients on the wire for {:.0f} ms, computing meanwhile {:.0%}",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description=__doc__)
    parser.add_argument("--mbit", type=float, default=harness.Cluster().mbit_per_s, help="Mbit/s per host")
    parser.add_argument("--steps", type=int, default=2, help="steps to draw (default: 2)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--delayed", action="store_true", help="draw DelayedGlobal(staleness=1)")
    kind.add_argument("--cache", action="store_true", help="draw a device cache that looks one batch ahead")
    parser.add_argument("--plot", type=Path, required=True, help="the PNG to write")
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that the program runs")
    options = parser.parse_args(argv)
    if options.cache:
        return _draw_cache(options)
    if reason := hosts.unavailable():
        print(f"timeline: {reason}", file=sys.stderr)
        return 1
    view = _DELAYED if options.delayed else _SYNCHRONOUS
    if options.delayed:
        ranks = record_delayed(options.mbit, quick=options.quick)
    else:
        ranks = record(options.mbit, options.steps, quick=options.quick)
    for rank, spans in enumerate(ranks):
        sending, worked = overlap(spans, view)
        share = worked / sending if sending else 0.0
        print(f"rank {rank}: {view.words.format(sending, share)}")
    draw(ranks, [f"rank {rank}, host {rank * 2 // len(ranks)}" for rank in range(len(ranks))], options.plot, view)
    print(options.plot)
    return 0


def _draw_cache(options: argparse.Namespace) -> int:
    from benchmarks import cache  # imports TensorFlow, which the ranks' parent does not need

    spans, rate = cache.record(options.steps, quick=options.quick)
    sending, worked = overlap(spans, _CACHE)
    print(_CACHE.words.format(sending, worked / sending if sending else 0.0))
    draw([spans], [f"a link of {rate / 1e6:.0f} MB/s each way, one batch ahead"], options.plot, _CACHE)
    print(options.plot)
    return 0


def record(mbit_per_s: float, steps: int, *, quick: bool) -> list[Spans]:
    """Returns the spans of every rank.

    Args:
        mbit_per_s: The rate of each host.
        steps: The number of steps to record.
        quick: Whether to use small sizes.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.rank_job", "--kind", "shared", "--threads", "1", "--steps", "4"]
        command += ["--record", str(steps), "--out", str(out), *(["--quick"] if quick else [])]
        with hosts.emulated(2, mbit_per_s=mbit_per_s) as network, host_job.started(network, 2, command) as job:
            job.wait(_JOB_S)
        return [[(name, begin, end) for name, begin, end in rank] for rank in json.loads(out.read_text())["spans"]]


def record_delayed(mbit_per_s: float, *, quick: bool) -> list[Spans]:
    """Returns the spans of every rank of a delayed job, which makes five steps.

    Args:
        mbit_per_s: The rate of each host.
        quick: Whether to use small sizes.
    """
    options = harness.Options(quick=quick)
    figures = delayed.job(("delayed-1",), [], options, mbit_per_s, blocks=1, record="delayed-1")
    return [[(name, begin, end) for name, begin, end in rank] for rank in figures["spans"]]


def overlap(spans: Spans, view: View) -> tuple[float, float]:
    """Returns the milliseconds in which gradients were on the wire, and those of them with work."""
    sending = [(begin, end) for name, begin, end in spans if view.row_of(name) == view.wire]
    working = [(begin, end) for name, begin, end in spans if view.row_of(name) in view.work]
    # Spans of the same kind do not overlap each other.
    common = sum(max(0, min(s[1], w[1]) - max(s[0], w[0])) for s in sending for w in working)
    return sum(end - begin for begin, end in sending) / 1e6, common / 1e6


def draw(ranks: Sequence[Spans], titles: Sequence[str], path: Path, view: View) -> None:
    """Draws the spans, with a row for each kind and rank. Each rank has its own panel with a title."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = list(view.rows.values())
    start = min(begin for spans in ranks for _, begin, _ in spans)
    figure, axes = pyplot.subplots(
        len(ranks),
        1,
        sharex=True,
        squeeze=False,
        figsize=(12, 0.5 + (0.3 + 0.2 * len(rows)) * len(ranks)),
        layout="constrained",
    )
    for spans, title, axis in zip(ranks, titles, axes[:, 0], strict=True):
        for number, row in enumerate(rows):
            bars = [
                ((begin - start) / 1e6, (end - begin) / 1e6) for name, begin, end in spans if view.row_of(name) == row
            ]
            axis.broken_barh(bars, (number - 0.4, 0.8), facecolor=f"C{number}", edgecolor="white", linewidth=0.5)
        axis.set_yticks(range(len(rows)), rows, fontsize=7)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9, loc="left")
        axis.grid(axis="x", alpha=0.3)
    axes[-1, 0].set_xlabel("ms")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
