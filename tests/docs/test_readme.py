"""README's example is run, on one rank and on two; README's figures are those of the pages that it names."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch import launched
from readme_program import README, SAMPLES, example

HERE = Path(__file__).resolve().parent


def check(report: dict[str, Any]) -> None:
    """The model has learnt, and so have its rows."""
    assert report["loss"] < 0.5 * report["variance"]
    assert report["moved"] > 0.5  # of a row's initial size


def test_the_example_learns_on_one_rank(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(README.parent), "TFSPS_DIR": str(tmp_path / "tables")}
    command = [sys.executable, str(HERE / "readme_program.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=240, stdout=subprocess.DEVNULL)
    report = json.loads((tmp_path / "0.json").read_text())
    assert report["samples"] == list(range(SAMPLES))
    check(report)


@pytest.mark.multirank
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed here")
def test_two_ranks_train_the_example_together_on_different_shards() -> None:
    with launched(str(HERE / "readme_program.py"), hosts="localhost:2", ranks=2, by_horovodrun=True) as job:
        assert job.wait(240) == 0, job.output[-20000:]
        reports = [json.loads((job.folder / f"{rank}.json").read_text()) for rank in range(2)]
    shards = [report["samples"] for report in reports]
    assert len(shards[0]) == len(shards[1]) == SAMPLES // 2
    assert not set(shards[0]) & set(shards[1])
    assert reports[0]["dense"] == reports[1]["dense"]
    for report in reports:
        check(report)


def test_the_example_says_shard() -> None:
    assert "shard" in example()


def numbers(text: str) -> list[str]:
    """Decimal numbers as they are written, `1,234.5` and `.702` included."""
    return re.findall(r"(?<![\w.])(?:\d[\d,]*)?\.?\d+(?![\w])", text)


def value(number: str) -> float:
    return float(number.replace(",", ""))


def is_rounded(number: str, measured: list[float]) -> bool:
    """Whether a number is one of the measured ones, rounded to as many digits as it shows."""
    digits = number.replace(",", "")
    places = len(digits.partition(".")[2])
    step = 10.0**-places if places else 10.0 ** (len(digits) - len(digits.rstrip("0")))
    return any(abs(value(number) - one) <= step / 2 * (1 + 1e-9) for one in measured)


def test_figures_are_those_of_the_results_page() -> None:
    """Every figure of README's table is a figure of docs/results.md, rounded; GiB there are MiB here."""
    results = (README.parent / "docs" / "results.md").read_text()
    measured = [value(number) for number in numbers(results)]
    of_mib = [one / 1024 for one in measured]
    rows = re.findall(r"^\| .* \|$", README.read_text().partition("## Measured")[2].partition("\n## ")[0], re.MULTILINE)
    assert len(rows) > 8
    unknown = []
    for row in rows[1:]:
        what, *cells, _ = row.strip("|").split("|")
        for cell in cells:
            for number in numbers(re.sub(r"`[^`]*`|Keras \d|\(0?\.\d+\)", "", cell)):
                unit = cell.partition(number)[2].split()[:1]
                if not is_rounded(number, of_mib + measured if unit and unit[0].startswith("GiB") else measured):
                    unknown.append(f"{what.strip()}: {number}")
    assert not unknown
