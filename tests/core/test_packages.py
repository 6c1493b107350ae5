"""The packages of cc/core include each other as docs/architecture.md says, one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "cc" / "core"
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([\w, ]*) ?\|$")
LINES = 400


def packages() -> dict[str, set[str]]:
    """Of each package in the document's table, those it may include."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("## Packages of the core", 1)[1].split("\n## ", 1)[0]
    rows = [row for row in map(ROW.match, section.splitlines()) if row]
    return {row[1]: set(row[2].replace(",", " ").split()) for row in rows}


def test_every_folder_is_in_the_table() -> None:
    assert sorted(packages()) == sorted(one.name for one in CORE.iterdir())
    assert not [one.name for one in CORE.iterdir() if one.is_file()]


def test_the_table_has_no_circle() -> None:
    below = packages()
    while below:
        lowest = [name for name, includes in below.items() if not includes & set(below)]
        assert lowest, f"a circle among {sorted(below)}"
        below = {name: includes for name, includes in below.items() if name not in lowest}


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_package_includes_only_what_the_table_says(package: str) -> None:
    allowed = packages()[package] | {package}
    for source in sorted((CORE / package).iterdir()):
        for included in re.findall(r'#include "(.*?)"', source.read_text()):
            homes = {f"core/{home}" for home in allowed}
            assert included.rpartition("/")[0] in homes, f"{source.relative_to(ROOT)} includes {included}"


def test_no_file_is_longer_than_a_reader_likes() -> None:
    lengths = {str(one.relative_to(ROOT)): len(one.read_text().splitlines()) for one in CORE.rglob("*.*")}
    assert {name: lines for name, lines in lengths.items() if lines > LINES} == {}
