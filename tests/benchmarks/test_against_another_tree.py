"""Comparing two trees in turns: arithmetic, turns, refusals, and one run of a tree against itself."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import against, harness
from benchmarks.turns import Baton

ROOT = Path(__file__).resolve().parents[2]


def figures(unit: str, *blocks: float) -> list[harness.Result]:
    return harness.summarize("s", "c", {"ours": blocks}, peer=None, unit=unit)


def test_times_of_this_tree_are_divided_by_the_others() -> None:
    (ratio,) = against.ratios(figures("ms", 10, 20, 40), figures("ms", 30, 10, 44), figures("ms", 10, 22, 50))
    assert (ratio.other, ratio.this) == (15, 20)  # lower quartiles
    assert ratio.ratio == pytest.approx(4 / 3)
    assert (ratio.low, ratio.high) == (0.5, 3)
    assert ratio.control == pytest.approx(16 / 15)


def test_samples_per_second_are_inverted_so_that_above_one_is_slower() -> None:
    (ratio,) = against.ratios(figures("/s", 100, 200, 300), figures("/s", 50, 100, 200), figures("/s", 200, 200, 200))
    assert (ratio.other, ratio.this) == (250, 150)  # upper quartiles
    assert ratio.ratio == pytest.approx(5 / 3)
    assert (ratio.low, ratio.high) == (1.5, 2)
    assert ratio.control == 1.25


def test_a_tree_that_measured_something_else_is_no_ratio() -> None:
    more = figures("ms", 1, 2) + harness.summarize("s", "another", {"ours": [1, 2]}, peer=None, unit="ms")
    with pytest.raises(ValueError, match=r"of one of them only: \[\('s', 'another', 'ours', 'ms', 2\)\]"):
        against.ratios(figures("ms", 1, 2), more, figures("ms", 1, 2))


def test_the_report_has_both_trees_the_ratio_its_spread_and_the_control() -> None:
    compared = against.ratios(figures("ms", 10, 20), figures("ms", 12, 27), figures("ms", 10, 20))
    assert "| s | c | ours | 12.5 ms | 15.8 ms | **1.260** | 1.20 - 1.35 | 1.000 |" in against.table(compared)


def test_a_run_in_which_a_tree_differs_from_itself_is_not_valid() -> None:
    compared = against.ratios(figures("ms", 10, 20), figures("ms", 12, 27), figures("ms", 12, 23))
    assert against.table(compared).endswith("| 1.180, not valid |")


class Player:
    """Records its name at each of its turns."""

    def __init__(self, name: str, turns: int, order: list[str]) -> None:
        self._name, self._left, self._order = name, turns, order

    @property
    def done(self) -> bool:
        return self._left == 0

    def work(self) -> None:
        self._left -= 1
        self._order.append(self._name)


def test_sides_go_in_every_order_until_all_are_done() -> None:
    order: list[str] = []
    against.play([Player("a", 7, order), Player("b", 7, order), Player("c", 6, order)])
    orders = ["".join(order[i : i + 3]) for i in range(0, 18, 3)]
    assert sorted(orders) == ["abc", "acb", "bac", "bca", "cab", "cba"]
    assert "".join(order[18:]) == "ab"


def test_a_suite_waits_for_its_turn_before_each_block_and_leaves_its_peer_out() -> None:
    order: list[str] = []

    class Turns:
        def next(self) -> None:
            order.append("|")

    results = harness.compare(
        "s",
        "c",
        {"keras": lambda: order.append("k"), "ours": lambda: order.append("o")},
        peer="keras",
        options=harness.Options(blocks=3, turns=Turns()),
        calls=2,
        warmup=1,
    )
    assert "".join(order) == "o" + "|oo" * 3
    assert [(result.variant, len(result.blocks), result.ratio) for result in results] == [("ours", 3, None)]


def test_a_side_that_is_given_no_more_turns_ends() -> None:
    out = io.StringIO()
    baton = Baton(out, io.StringIO("go\n"))
    baton.next()
    with pytest.raises(SystemExit, match="no more turns"):
        baton.next()
    assert out.getvalue() == "ready\nready\n"


def checkout(folder: Path) -> Path:
    """Makes a folder that looks like a tree that was built."""
    for name in (
        "tf_sparse_ps/__init__.py",
        "cc/core/group/group.cc",
        "tf_sparse_ps/_ops_lib.so",
        "tf_sparse_ps/_table.x.so",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    os.utime(folder / "cc/core/group/group.cc", (1, 1))
    return folder


def test_a_source_that_is_newer_than_the_build_is_named(tmp_path: Path) -> None:
    tree = checkout(tmp_path)
    assert against.Tree.at(tree).stale is None
    os.utime(tree / "cc/core/group/group.cc", (1e10, 1e10))
    assert against.Tree.at(tree).stale == tree / "cc/core/group/group.cc"


def test_what_is_no_tree_or_not_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a tree is a checkout of tf_sparse_ps. Received: .*, without"):
        against.Tree.at(tmp_path)
    (checkout(tmp_path) / "tf_sparse_ps/_ops_lib.so").unlink()
    with pytest.raises(ValueError, match=r"has not been built: cd .* tools/native.py"):
        against.Tree.at(tmp_path)


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)


@pytest.mark.parametrize(("suites", "received"), [([], "none"), (["step", "growth"], "step, growth")])
def test_suites_without_turns_are_refused(suites: list[str], received: str) -> None:
    done = benchmarks(*suites, "--against", str(ROOT))
    assert done.returncode == 2
    assert "--against needs suites that have turns: kernels, layers, step, cluster, ranks, tiers." in done.stderr
    assert done.stderr.endswith(f"Received: {received}\n")


@pytest.mark.nightly
def test_a_tree_whose_package_cannot_run_the_suite_is_named_with_the_reason(tmp_path: Path) -> None:
    done = benchmarks("step", "--quick", "--against", str(checkout(tmp_path)))
    assert done.returncode == 1
    assert f"this checkout's benchmarks failed with the tf_sparse_ps of {tmp_path}" in done.stderr
    assert "AttributeError: module 'tf_sparse_ps' has no attribute" in done.stderr


@pytest.mark.nightly
def test_a_tree_beside_itself(tmp_path: Path) -> None:
    """The report names both trees. Three processes measure the same cases in turns."""
    done = benchmarks("step", "--quick", "--blocks", "2", "--against", str(ROOT), "--json", str(tmp_path / "r.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"other: {ROOT}")
    assert f"\nthis:  {ROOT}" in done.stdout
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["hardware"]["this"].startswith(str(ROOT))
    cases = [(result["case"].split(",")[0], result["variant"]) for result in saved["results"]]
    assert cases == [("lookup", "ours, hashed"), ("lookup + backward + Adagrad", "ours")]
    for result in saved["results"]:
        assert result["ratio"] == pytest.approx(result["this"] / result["other"])
        assert result["low"] <= result["high"]
        assert result["control"] > 0
