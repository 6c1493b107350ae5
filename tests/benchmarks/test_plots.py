"""Plots of results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

plots = pytest.importorskip("benchmarks.plots", reason="needs matplotlib")
from benchmarks import harness, peers, sizes  # noqa: E402


def document(path: Path, results: list[harness.Result]) -> str:
    path.write_text(json.dumps({"results": [dataclasses.asdict(result) for result in results]}))
    return str(path)


def test_peers_are_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[float]] = []
    barh = plots.pyplot.Axes.barh
    monkeypatch.setattr(
        plots.pyplot.Axes,
        "barh",
        lambda *arguments, **options: drawn.append(arguments[2]) or barh(*arguments, **options),
    )
    results = [
        result
        for name, blocks in (("ours", [4.0, 2.0, 3.0]), ("theirs", [9.0, 9.0, 9.0]))
        for case in (peers.LOOKUP, peers.STEP)
        for result in harness.summarize("step", case, {name: blocks}, peer=None, unit="ms")
    ]
    assert plots.main([str(tmp_path / "p.png"), document(tmp_path / "r.json", results)]) == 0
    assert drawn == [[2.5, 9.0], [2.5, 9.0]]  # lower quartiles
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_sizes_are_curves_with_a_line_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[tuple[int, ...], str]] = []
    plot = plots.pyplot.Axes.plot
    monkeypatch.setattr(
        plots.pyplot.Axes,
        "plot",
        lambda *arguments, **options: drawn.append((arguments[1], options["label"])) or plot(*arguments, **options),
    )
    cases = [(sizes.ROWS, sizes.NARROW, sizes.IDS), (10, sizes.NARROW, sizes.IDS), (sizes.ROWS, sizes.DIM, 7)]
    files = []
    for huge in (0, 1 << 21):
        results = [
            harness.Result("sizes", "c", sizes.STEP_PER_MILLION, 3.0, 2.0, 4.0, "ms", None, parameters)
            for parameters in ({"rows": r, "dim": d, "ids": i, "huge_bytes": huge} for r, d, i in cases)
        ]
        files.append(document(tmp_path / f"{huge}.json", results))
    assert plots.main([str(tmp_path / "p.png"), *files]) == 0
    xs_of_panels = [(10, sizes.ROWS), (sizes.NARROW,), (7,)]
    assert drawn == [(xs, pages) for pages in ("small pages", "huge pages") for xs in xs_of_panels]


def test_jobs_are_bars_for_each_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[list[float], str]] = []
    barh = plots.pyplot.Axes.barh
    monkeypatch.setattr(
        plots.pyplot.Axes,
        "barh",
        lambda *arguments, **options: drawn.append((arguments[2], options["label"])) or barh(*arguments, **options),
    )
    results = [
        result
        for ranks, rate in (("1 rank", 1.0), ("2 ranks", 3.0))
        for figure, unit in (("samples_per_second", "/s"), ("pss_mib", "MiB"))
        for result in harness.summarize(
            "jobs", f"{ranks}, {figure}", {"ours": [1024 * rate], "theirs": [2048 * rate]}, peer="ours", unit=unit
        )
    ]
    assert plots.main([str(tmp_path / "p.png"), document(tmp_path / "r.json", results)]) == 0
    assert drawn == [
        ([1024, 2048], "1 rank"),
        ([3072, 6144], "2 ranks"),
        ([1, 2], "1 rank"),
        ([3, 6], "2 ranks"),
    ]
