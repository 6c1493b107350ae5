"""Pages and docstrings keep those rules of writing that a program can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT

SOURCES = sorted((ROOT / "tf_sparse_ps").rglob("*.py"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
COLUMNS = 100
FIRST_SCREEN_LINES = 40
WORDS_OF_DOCS = 43_200

# Docstrings must not begin with these: a fragment about something unnamed, or a clause without a subject.
FRAGMENT = re.compile(
    r"(?:Of|What|As|Where|From now on|Within|Beside|Behind|By|Under|For what|That|Which|Whose|How it|It|There|This one|"
    r"The same|Likewise|Nothing)\b(?!-)"
)
# The field's word, and a pattern of the words that were written in its place. Each pattern must match an example.
RETIRED = {
    "resume, continue": (r"\b(?:go|goes|going|gone) on\b(?! (?:disk|a device))", "training goes on"),
    "after": (r"\b(?:the batch|the rows?|those|what (?:is|comes)) behind\b", "the batch behind it"),
    "predict": (r"\bforetell", "nobody can foretell"),
    "again, from initial values": (r"\banew\b", "start anew"),
    "alternately": (r"\bby turns\b", "by turns"),
    "lookup": (r"(?<!-)\blook-ups?\b(?!-)", "a look-up"),
    "informed, named": (r"\b(?:is|are) told\b", "is told"),
    "available": (r"\bat hand\b", "no GPU was at hand"),
    "local rank": (r"\branks? of (?:one|its|their|the same) number\b|\brank's number\b", "the ranks of its number"),
}


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a page that can be wrapped: no code, table, picture or setup of a program."""
    in_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and not line.lstrip().startswith(("```", "|", "![", "<!-- setup")):
            yield number, line


def test_docstrings_begin_with_a_thing_or_a_verb() -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in SOURCES
        for line, text in docstrings(path)
        if FRAGMENT.match(text)
    ]
    assert not fragments, "\n".join(fragments)


@pytest.mark.parametrize("instead", RETIRED)
def test_retired_words_do_not_occur(instead: str) -> None:
    pattern, example = RETIRED[instead]
    retired_words = re.compile(pattern, re.IGNORECASE)
    assert retired_words.search(example), "the pattern finds nothing"
    hits = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for path in [*TEXTS, *SOURCES]
        for text in [path.read_text()]
        for match in retired_words.finditer(text)
    ]
    assert not hits, f"write: {instead}\n" + "\n".join(hits)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_pages_are_wrapped(page: Path) -> None:
    # A link cannot be broken, so a line that is only a link, in a list or not, may be longer.
    wide = [
        f"{page.name}:{number}: {len(line)} columns"
        for number, line in prose(page)
        if len(line) > COLUMNS and not re.fullmatch(r"\s*(?:[-*] )?\(?\[[^]]*\]\(\S+\)\S*|\[\S+\]: \S+|.*<\S+>.*", line)
    ]
    assert not wide, "\n".join(wide)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_first_screen_has_a_program_or_the_page_says_why_not(page: Path) -> None:
    screen = "\n".join(page.read_text().splitlines()[:FIRST_SCREEN_LINES])
    assert "```" in screen or re.search(r"<!-- no program: .{10,} -->", screen)


def test_the_docs_are_short() -> None:
    assert sum(len(page.read_text().split()) for page in PAGES) <= WORDS_OF_DOCS
