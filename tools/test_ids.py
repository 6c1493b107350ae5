"""Lists the ids of all tests with their tiers, and compares two such lists, so that no check is lost on the way.

    python tools/test_ids.py list > before.txt                     in the tree before a change
    python tools/test_ids.py list > after.txt                      in the tree after it
    python tools/test_ids.py compare before.txt after.txt [--merged merged.txt]

A line of a list is a tier, `test` or `nightly`, a tab and an id. `merged.txt` has a line `old id -> new id` for every
test that is now a part of another one. `compare` prints what moved, and fails if an id is gone and not named there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pytest


class _Collector:
    """A pytest plugin that keeps the ids and tiers of what was collected."""

    def __init__(self) -> None:
        self.tiers: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.tiers[item.nodeid] = "nightly" if item.get_closest_marker("nightly") else "test"


def python_tests(tree: Path) -> dict[str, str]:
    """Returns the tier of each pytest id below `tree`/tests."""
    collector = _Collector()
    arguments = ["--collect-only", "-qq", "-m", "", "--rootdir", str(tree), str(tree / "tests")]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(arguments, plugins=[collector])
    if status:
        raise SystemExit(f"pytest could not collect the tests of {tree}:\n{output.getvalue()[-3000:]}")
    return collector.tiers


def cc_tests(tree: Path) -> dict[str, str]:
    """Returns the tier of each GoogleTest id; all C++ tests run every day."""
    program = tree / "build/native/debug/cc_tests"
    if not program.exists():
        raise SystemExit(f"{program} is missing: run make cc-test first")
    output = subprocess.run([str(program), "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    found, suite = {}, ""
    for line in output.splitlines():
        name = line.partition("#")[0].rstrip()
        if line.startswith("  "):
            found[f"cc/{suite}{name.strip()}"] = "test"
        elif name.endswith("."):
            suite = name
    return found


def read(file: Path) -> dict[str, str]:
    """Reads a list."""
    pairs = (line.partition("\t") for line in file.read_text().splitlines())
    return {name: tier for tier, _, name in pairs}


def by_file(ids: list[str]) -> str:
    """One line per file: how many of `ids` it has, and which, unless they are many."""
    files: dict[str, list[str]] = collections.defaultdict(list)
    for one in ids:
        file, _, test = one.partition("::")
        files[file].append(test)
    return "\n".join(
        f"  {file}: {len(tests)}" + (f" ({', '.join(sorted(tests))})" if len(tests) <= 3 else "")
        for file, tests in sorted(files.items())
    )


def compare(before: dict[str, str], after: dict[str, str], merged: dict[str, str]) -> int:
    """Prints what became of the ids of `before`; returns 1 if one is gone."""
    kept = [one for one, tier in before.items() if after.get(one) == tier]
    moved = [one for one, tier in before.items() if tier == "test" and after.get(one) == "nightly"]
    daily = [one for one, tier in before.items() if tier == "nightly" and after.get(one) == "test"]
    replaced = [one for one in before if one not in after and merged.get(one) in after]
    gone = [one for one in before if one not in after and merged.get(one) not in after]
    new = [one for one in after if one not in before]
    for what, ids in (
        ("kept in their tier", kept),
        ("moved to the nightly tier", moved),
        ("moved to the daily tier", daily),
        ("merged into a named test", replaced),
        ("new", new),
        ("GONE", gone),
    ):
        print(f"{what}: {len(ids)}")
        if ids and ids is not kept:
            print(by_file(ids))
    return 1 if gone else 0


def main() -> int:
    """Lists or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list")
    listing.add_argument("--tree", type=Path, default=Path(__file__).resolve().parent.parent, help="default: this one")
    comparing = actions.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--merged", type=Path)
    options = parser.parse_args()
    if options.action == "list":
        tree = options.tree.resolve()
        for name, tier in sorted({**python_tests(tree), **cc_tests(tree)}.items()):
            print(f"{tier}\t{name}")
        return 0
    merged = {}
    if options.merged is not None:
        pairs = (line.partition(" -> ") for line in options.merged.read_text().splitlines() if line)
        merged = {old: new for old, _, new in pairs}
    return compare(read(options.before), read(options.after), merged)


if __name__ == "__main__":
    sys.exit(main())
