"""`Check`: the result of one check of `tf-sparse-ps doctor`."""

from __future__ import annotations

from typing import Any, NamedTuple

OK, NOTE, PROBLEM = "ok", "note", "problem"


class Check(NamedTuple):
    """The result of a check.

    Attributes:
      name: What was checked.
      status: `OK`; `NOTE`, if something is slower or smaller than it could be; or `PROBLEM`, if jobs will fail.
      finding: What was found, with values.
      remedy: What to do; "" if nothing has to be done.
      facts: Values for programs.
    """

    name: str
    status: str
    finding: str
    remedy: str = ""
    facts: dict[str, Any] = {}  # noqa: RUF012  a tuple's default, which nobody changes


def in_words(version_range: tuple[tuple[int, int], tuple[int, int]]) -> str:
    """Returns a range of versions in words."""
    low, high = (".".join(map(str, bound)) for bound in version_range)
    return f"{low} to {high}"
