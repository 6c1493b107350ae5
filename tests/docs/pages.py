"""The pages of the documentation: their blocks of code, their headings and links."""

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
      language: The language of the fence; empty: the block is a drawing.
      program: The title of the page's program to which the block belongs.
      code: The text of the block.
      line: The number of its first line in the page.
      setup: Python that the page's source has before it, in comments `<!-- setup: ... -->`.
      ranks: The number of ranks that run its program: `<!-- ranks: 2 -->`.
      skipped: The reason why it is not run: `<!-- not run: ... -->`.
    """

    language: str
    program: str
    code: str
    line: int
    setup: str
    ranks: int
    skipped: str


def blocks(page: Path, language: str) -> list[Block]:
    """Returns the blocks of a page in a language."""
    text, page_blocks = page.read_text(), []
    for match in _FENCE.finditer(text):
        values = dict.fromkeys(("setup", "ranks", "not run"), "")
        for name, value in re.findall(r"<!-- ([\w ]+): (.*) -->", match["comments"]):
            values[name] += value + "\n"
        line = text.count("\n", 0, match.start("code")) + 1
        page_blocks.append(
            Block(
                language=match["language"],
                program=match["title"] or "",
                code=match["code"],
                line=line,
                setup=values["setup"],
                ranks=int(values["ranks"] or 1),
                skipped=values["not run"].strip(),
            )
        )
    return [block for block in page_blocks if block.language == language]


def without_code(text: str) -> str:
    """Returns a page without code, in blocks and in lines."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as MkDocs makes them."""
    anchors_of_page: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchors_of_page.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return anchors_of_page


def links(page: Path) -> list[str]:
    """Returns the targets of a page's links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
