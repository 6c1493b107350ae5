"""Lists the ids of all tests with their tiers, and compares two such lists, so that a change loses no test.

    python tools/test_ids.py list > before.txt                     in the tree before a change
    python tools/test_ids.py list > after.txt                      in the tree after the change
    python tools/test_ids.py compare before.txt after.txt [--merged merged.txt]

A line of a list is a tier, `test` or `nightly`, a tab and an id. `merged.txt` has a line `old id -> new id` for every
test that is now a part of another test. `compare` prints the differences. It fails if an id is missing in the second
list and in `merged.txt`.
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
    """A pytest plugin that records the ids and tiers of the collected tests."""

    def __init__(self) -> None:
        self.tiers: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.tiers[item.nodeid] = "nightly" if item.get_closest_marker("nightly") else "test"


def python_tests(tree: Path) -> dict[str, str]:
    """Returns the tier of each pytest id in `tree`/tests."""
    collector = _Collector()
    arguments = ["--collect-only", "-qq", "-m", "", "--rootdir", str(tree), str(tree / "tests")]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(arguments, plugins=[collector])
    if status:
        raise SystemExit(f"pytest could not collect the tests of {tree}:\n{output.getvalue()[-3000:]}")
    return collector.tiers


def cc_tests(tree: Path) -> dict[str, str]:
    """Returns the tier of each GoogleTest id. All C++ tests are in the daily tier."""
    program = tree / "build/native/debug/cc_tests"
    if not program.exists():
        raise SystemExit(f"{program} is missing. Run make cc-test first")
    output = subprocess.run([str(program), "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    tiers, suite = {}, ""
    for line in output.splitlines():
        name = line.partition("#")[0].rstrip()
        if line.startswith("  "):
            tiers[f"cc/{suite}{name.strip()}"] = "test"
        elif name.endswith("."):
            suite = name
    return tiers


def read(file: Path) -> dict[str, str]:
    """Reads a list. Returns the tier of each id."""
    pairs = (line.partition("\t") for line in file.read_text().splitlines())
    return {name: tier for tier, _, name in pairs}


def by_file(ids: list[str]) -> str:
    """Formats ids as one line per file: their number, and the tests if they are few."""
    files: dict[str, list[str]] = collections.defaultdict(list)
    for name in ids:
        file, _, test = name.partition("::")
        files[file].append(test)
    return "\n".join(
        f"  {file}: {len(tests)}" + (f" ({', '.join(sorted(tests))})" if len(tests) <= 3 else "")
        for file, tests in sorted(files.items())
    )


def compare(before: dict[str, str], after: dict[str, str], merged: dict[str, str]) -> int:
    """Prints the differences of two lists. Returns 1 if an id of `before` is missing in `after`."""
    kept = [name for name, tier in before.items() if after.get(name) == tier]
    moved = [name for name, tier in before.items() if tier == "test" and after.get(name) == "nightly"]
    daily = [name for name, tier in before.items() if tier == "nightly" and after.get(name) == "test"]
    replaced = [name for name in before if name not in after and merged.get(name) in after]
    missing = [name for name in before if name not in after and merged.get(name) not in after]
    new = [name for name in after if name not in before]
    for change, ids in (
        ("kept in their tier", kept),
        ("moved to the nightly tier", moved),
        ("moved to the daily tier", daily),
        ("merged into a named test", replaced),
        ("new", new),
        ("MISSING", missing),
    ):
        print(f"{change}: {len(ids)}")
        if ids and ids is not kept:
            print(by_file(ids))
    return 1 if missing else 0


def main() -> int:
    """Runs the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list")
    this_tree = Path(__file__).resolve().parent.parent
    listing.add_argument("--tree", type=Path, default=this_tree, help="tree to list (default: this one)")
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
