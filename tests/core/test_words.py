"""Retired words do not come back, in the sense in which other words have replaced them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SOURCES = sorted((ROOT / "tf_sparse_ps").rglob("*.py"))

# The word to write: a pattern of the words that it replaces, and a text that the pattern must find.
RETIRED = {
    "schedule state": (r"\b(?:the|a|its|this) courses?\b|\bclass \w*Course|\bcounterparts?\b", "its counterpart"),
    "in-flight gradients": (
        r"\bletters? (?:are|is|of|under|that|which)\b|\bclass \w*Letters?\b",
        "Letters are under way",
    ),
    "communication thread": (r"\bcouriers?\b|\bclass \w*(?:Courier|Delivery)|\bdeliver(?:y|ies)\b", "The courier"),
    "key-value store": (r"\b(?:the|a|no|on) (?:notice )?boards?\b|\bclass \w*Board", "on the board"),
    "liveness check": (r"\broll[- _]?calls?\b|\bcalls? the\s+roll\b", "calls the\n  roll on"),
    "exit report": (r"\blast[ _]words\b", "last_words"),
    "node discovery": (r"\bplaces of (?:the )?ranks\b|\bplaces\.(?:mine|nodes)\b|\bimport places\b", "import places"),
    "bindings": (r"\bclass \w*Ties\b|\b(?:the|its|our) ties\b|\bties\.\w", "the ties of a table"),
    "cross-node group": (r"\bacross[ _]group\b|\bpeers_across\b", "across_group"),
    "custom training loops": (r"\bloops? of (?:one's|your) own\b", "loops of one's own"),
    "unresponsive ranks": (r"\branks? that (?:never arrives?|do(?:es)? not come)\b", "ranks that never arrive"),
    "processes that are not connected": (r"\b(?:ranks|processes) that have not met\b", "ranks that have not met"),
    "a docstring's subject": (r"^\s*\w+: Of this process\b|\"\"\"Of this process\b", '"""Of this process.'),
}


@pytest.mark.parametrize("instead", RETIRED)
def test_no_page_and_no_source_has_a_retired_word(instead: str) -> None:
    pattern, example = RETIRED[instead]
    compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    assert compiled.search(example), "the pattern must find its example"
    findings = []
    for path in [*PAGES, *SOURCES]:
        text = path.read_text()
        for match in compiled.finditer(text):
            findings.append(
                f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0].strip()!r}"
            )
    assert not findings, f"write: {instead}"
