"""What goes on at the same time: pictures of some steps, of ranks on two emulated hosts (as root), or of one process.

`python -m benchmarks.timeline --plot FILE` runs the job of the suite `cluster` on 2 hosts x 2 ranks, records some steps
in all ranks, draws them, and prints for what share of the time in which sparse gradients were on the wire each rank was
inside merging or reducing others, waits for the other rank of its host included.

`--delayed` runs the dense job of the suite `delayed` on 2 hosts x 1 rank instead, and prints for what share of the time
in which global gradients were on the wire each rank was computing.

`--cache` runs one process with a device cache and a slow link, and prints for what share of the time in which rows were
on their way to the device steps went on.
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
    """What is drawn.

    Attributes:
        rows: of the picture in each rank, from the top; a span is in the first whose word its name has.
        wire: the row of what is sent.
        work: rows of what is done meanwhile.
        words: what is printed: milliseconds on the wire, and the share of them with work.
    """

    rows: Mapping[str, str]
    wire: str
    work: tuple[str, ...]
    words: str

    def row_of(self, name: str) -> str | None:
        """The row of a span, or None: it is none of a step."""
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
        "find in the cache": "look-up",
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
    parser.add_argument("--mbit", type=float, default=harness.Cluster().mbit_per_s, help="per second and host")
    parser.add_argument("--steps", type=int, default=2, help="drawn (default: 2)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--delayed", action="store_true", help="of DelayedGlobal(staleness=1)")
    what.add_argument("--cache", action="store_true", help="of a device cache that looks one batch ahead")
    parser.add_argument("--plot", type=Path, required=True, help="PNG to write")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
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
    from benchmarks import cache  # TensorFlow, which the ranks' parent does without

    spans, rate = cache.record(options.steps, quick=options.quick)
    sending, worked = overlap(spans, _CACHE)
    print(_CACHE.words.format(sending, worked / sending if sending else 0.0))
    draw([spans], [f"a link of {rate / 1e6:.0f} MB/s each way, one batch ahead"], options.plot, _CACHE)
    print(options.plot)
    return 0


def record(mbit_per_s: float, steps: int, *, quick: bool) -> list[Spans]:
    """The spans of every rank.

    Args:
        mbit_per_s: of each host.
        steps: to record.
        quick: small sizes.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.rank_job", "--kind", "shared", "--threads", "1", "--steps", "4"]
        command += ["--record", str(steps), "--out", str(out), *(["--quick"] if quick else [])]
        with hosts.emulated(2, mbit_per_s=mbit_per_s) as network, host_job.started(network, 2, command) as job:
            job.wait(_JOB_S)
        return [[(name, begin, end) for name, begin, end in rank] for rank in json.loads(out.read_text())["spans"]]


def record_delayed(mbit_per_s: float, *, quick: bool) -> list[Spans]:
    """The spans of every rank of a delayed job: five steps.

    Args:
        mbit_per_s: of each host.
        quick: small sizes.
    """
    options = harness.Options(quick=quick)
    found = delayed.job(("delayed-1",), [], options, mbit_per_s, blocks=1, record="delayed-1")
    return [[(name, begin, end) for name, begin, end in rank] for rank in found["spans"]]


def overlap(spans: Spans, view: View) -> tuple[float, float]:
    """Milliseconds in which gradients were on the wire, and those of them with work."""
    sending = [(begin, end) for name, begin, end in spans if view.row_of(name) == view.wire]
    working = [(begin, end) for name, begin, end in spans if view.row_of(name) in view.work]
    # Neither overlaps with its own kind: one after another.
    common = sum(max(0, min(s[1], w[1]) - max(s[0], w[0])) for s in sending for w in working)
    return sum(end - begin for begin, end in sending) / 1e6, common / 1e6


def draw(ranks: Sequence[Spans], titles: Sequence[str], path: Path, view: View) -> None:
    """Draws the spans, a row for each kind and rank, one rank under the other, each with its title."""
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
