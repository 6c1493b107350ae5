"""Plots results that the suites have written: `python -m benchmarks.plots OUT.png RESULTS.json...`.

Results of `step --peers` and `layers --peers` become a bar chart with a bar for each library. Results of `sizes` become
curves of a step's time over rows, over the width of rows and over ids, with a line for each file. Results of `jobs`
become bars of samples/s and of memory, for each number of ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks import harness, peers, sizes

matplotlib.use("Agg")
from matplotlib import pyplot


def bars(documents: Sequence[Any], path: Path) -> None:
    """Draws lookup and step of each peer, the lower quartiles of its blocks."""
    (document,) = documents
    cases = dict.fromkeys(peers.sizes_of(result["case"]) for result in document["results"])
    names = list(dict.fromkeys(result["variant"] for result in document["results"]))
    size = 9, (0.55 * len(names) + 1) * len(cases)
    figure, panels = pyplot.subplots(len(cases), figsize=size, layout="constrained", squeeze=False)
    for axes, sizes_of_case in zip(panels[:, 0], cases, strict=True):
        for shift, kind in ((-0.2, peers.LOOKUP), (0.2, peers.STEP)):
            values = {
                result["variant"]: harness.quartile(result["blocks"], result["unit"])
                for result in document["results"]
                if result["case"] == peers.case(kind, sizes_of_case)
            }
            heights = [values[name] for name in names]
            drawn = axes.barh([position + shift for position in range(len(names))], heights, 0.4)
            drawn.set_label(kind)
            axes.bar_label(drawn, [f" {harness.number(height)}" for height in heights], fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.08)
        axes.set_title(sizes_of_case)
        axes.legend()
    panels[-1, 0].set_xlabel("ms; less is better")
    figure.savefig(path, dpi=110)


def job_bars(documents: Sequence[Any], path: Path) -> None:
    """Draws samples/s and memory of each framework's jobs, the medians of their turns."""
    (document,) = documents
    medians = {(result["case"], result["variant"]): result["median"] for result in document["results"]}
    names = list(dict.fromkeys(name for _, name in medians))
    ranks = list(dict.fromkeys(case.partition(", ")[0] for case, _ in medians))
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 0.8 * len(names) + 1), layout="constrained", sharey=True)
    width = 0.8 / len(ranks)
    for axes, (name, label, scale) in zip(
        panels,
        (("samples_per_second", "samples/s; more is better", 1), ("pss_mib", "GiB of memory; less is better", 1024)),
        strict=True,
    ):
        for number, count in enumerate(ranks):
            heights = [medians[f"{count}, {name}", variant] / scale for variant in names]
            shift = (number - (len(ranks) - 1) / 2) * width
            drawn = axes.barh([position + shift for position in range(len(names))], heights, width, label=count)
            axes.bar_label(drawn, [f" {harness.number(height)}" for height in heights], fontsize=8)
        axes.set_xlabel(label)
        axes.margins(x=0.2)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[1].legend()
    figure.savefig(path, dpi=110)


def curves(documents: Sequence[Any], path: Path) -> None:
    """Draws a step's milliseconds per million ids."""
    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    shown: list[tuple[str, str, Callable[[Any], bool]]] = [
        ("rows", f"rows of {sizes.NARROW} floats", lambda case: case["dim"] == sizes.NARROW),
        ("dim", f"floats per row, {sizes.ROWS:,} rows", lambda case: _all_but(case, "dim")),
        ("ids", f"ids, {sizes.ROWS:,} rows of {sizes.DIM}", lambda case: _all_but(case, "ids")),
    ]
    for document in documents:
        steps = [result for result in document["results"] if result["variant"] == sizes.STEP_PER_MILLION]
        pages = "huge pages" if any(result["parameters"]["huge_bytes"] for result in steps) else "small pages"
        for axes, (by, label, belongs) in zip(panels, shown, strict=True):
            points = sorted(
                (result["parameters"][by], result["median"]) for result in steps if belongs(result["parameters"])
            )
            axes.plot(*zip(*points, strict=True), "o-", label=pages)
            axes.set_xscale("linear" if by == "dim" else "log")
            axes.set_xlabel(label)
    for axes in panels:
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("a step, ms per million ids")
    panels[0].legend()
    figure.savefig(path, dpi=110)


def _all_but(case: Any, varied: str) -> bool:
    usual = {"rows": sizes.ROWS, "dim": sizes.DIM, "ids": sizes.IDS}
    return all(case[name] == value for name, value in usual.items() if name != varied)


def trade_off(documents: Sequence[Any], path: Path) -> None:
    """Draws the AUC that policies lose by the rows that they leave, as the suite drift measures them."""
    found: dict[str, dict[str, float]] = {}
    for result in documents[0]["results"]:
        name, what = result["variant"].split(": ", 1)
        found.setdefault(name, {})[what] = result["median"]
    rows = "rows at the end"
    unbounded = found.pop("unbounded")[rows]
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for label, prefix in (("eviction, lfu", "lfu"), ("admission", "count")):
        points = sorted(
            (values[rows] / unbounded * 100, values["AUC lost, paired"], name)
            for name, values in found.items()
            if name.startswith(prefix)
        )
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", label=label)
        for x, y, name in points:
            if prefix == "count":
                axes.annotate(name, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows, % of those of a table without policies")
    axes.set_ylabel("AUC lost; less is better")
    axes.legend()
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    arguments = parser.parse_args(argv)
    documents = [json.loads(path.read_text()) for path in arguments.results]
    draw = {"sizes": curves, "jobs": job_bars, "drift": trade_off}.get(documents[0]["results"][0]["suite"], bars)
    draw(documents, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
