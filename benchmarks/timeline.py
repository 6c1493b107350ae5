"""What the ranks of a job do at the same time: a picture of some steps on two emulated hosts. As root.

`python -m benchmarks.timeline --plot FILE` runs the job of the suite `cluster` on 2 hosts x 2 ranks, records some steps
in all ranks, draws them, and prints for what share of the time in which sparse gradients were on the wire each rank was
inside merging or reducing others, waits for the other rank of its host included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness, host_job, hosts

Spans = list[tuple[str, int, int]]
_JOB_S = 600.0
# Rows of the picture in each rank, from the top; a span is in the first whose word its name has.
_ROWS = {
    "lookup": "lookup",
    "segment sum": "segment sum",
    "dense": "dense ring",
    "rounds": "rounds agreed on",
    "merge and pack": "merge, pack",
    ".nodes": "sparse ring",
    "unpack and reduce": "unpack, reduce",
    "apply": "apply",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description=__doc__)
    parser.add_argument("--mbit", type=float, default=harness.Cluster().mbit_per_s, help="per second and host")
    parser.add_argument("--steps", type=int, default=2, help="drawn (default: 2)")
    parser.add_argument("--plot", type=Path, required=True, help="PNG to write")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    options = parser.parse_args(argv)
    if reason := hosts.unavailable():
        print(f"timeline: {reason}", file=sys.stderr)
        return 1
    ranks = record(options.mbit, options.steps, quick=options.quick)
    for rank, spans in enumerate(ranks):
        sending, worked = overlap(spans)
        share = worked / sending if sending else 0.0
        print(f"rank {rank}: sparse gradients on the wire for {sending:.0f} ms, merging meanwhile {share:.0%}")
    draw(ranks, options.plot)
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


def overlap(spans: Spans) -> tuple[float, float]:
    """Milliseconds in which sparse gradients were on the wire, and those of them in which others were merged."""
    sending = [(begin, end) for name, begin, end in spans if row_of(name) == "sparse ring"]
    working = [(begin, end) for name, begin, end in spans if row_of(name) in ("merge, pack", "unpack, reduce")]
    # Neither overlaps with its own kind: one after another in the loop of rounds.
    common = sum(max(0, min(s[1], w[1]) - max(s[0], w[0])) for s in sending for w in working)
    return sum(end - begin for begin, end in sending) / 1e6, common / 1e6


def row_of(name: str) -> str | None:
    """The row of a span, or None: it is none of a step."""
    return next((row for word, row in _ROWS.items() if word in name), None)


def draw(ranks: Sequence[Spans], path: Path) -> None:
    """Draws the spans, a row for each kind and rank, one rank under the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = list(_ROWS.values())
    start = min(begin for spans in ranks for _, begin, _ in spans)
    figure, axes = pyplot.subplots(len(ranks), 1, sharex=True, figsize=(12, 1.9 * len(ranks)), layout="constrained")
    for rank, (spans, axis) in enumerate(zip(ranks, axes, strict=True)):
        for number, row in enumerate(rows):
            bars = [((begin - start) / 1e6, (end - begin) / 1e6) for name, begin, end in spans if row_of(name) == row]
            axis.broken_barh(bars, (number - 0.4, 0.8), color=f"C{number}", linewidth=0)
        axis.set_yticks(range(len(rows)), rows, fontsize=7)
        axis.invert_yaxis()
        axis.set_title(f"rank {rank}, host {rank // 2}", fontsize=9, loc="left")
        axis.grid(axis="x", alpha=0.3)
    axes[-1].set_xlabel("ms")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
