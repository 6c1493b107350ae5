"""The documentation's pages: their blocks of code, their headings and links."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
_FENCE = re.compile(
    r"(?P<comments>(?:^<!-- [^\n]* -->\n)*)^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
      language: Of the fence; empty: a drawing.
      program: Which program of the page it is a part of: its title.
      code: What stands in it.
      line: Its first line's number in the page.
      setup: Python that the page's source has before it, in comments `<!-- setup: ... -->`.
      ranks: On how many ranks its program runs: `<!-- ranks: 2 -->`.
      skipped: Why it is not run: `<!-- not run: ... -->`.
    """

    language: str
    program: str
    code: str
    line: int
    setup: str
    ranks: int
    skipped: str


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of a page in a language."""
    text, found = page.read_text(), []
    for match in _FENCE.finditer(text):
        said = dict.fromkeys(("setup", "ranks", "not run"), "")
        for name, value in re.findall(r"<!-- ([\w ]+): (.*) -->", match["comments"]):
            said[name] += value + "\n"
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(
            Block(
                language=match["language"],
                program=match["title"] or "",
                code=match["code"],
                line=line,
                setup=said["setup"],
                ranks=int(said["ranks"] or 1),
                skipped=said["not run"].strip(),
            )
        )
    return [block for block in found if block.language == language]


def without_code(text: str) -> str:
    """A page without what is code, in blocks and in lines."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


def links(page: Path) -> list[str]:
    """What a page links to, or shows."""
    return re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
