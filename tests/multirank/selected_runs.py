"""Selects the runs of a rank program that the selected tests need. A launch makes no other runs.

The daily tests of a file use a few runs, and the nightly tests use the rest. Neither launch repeats the other's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def selected_runs(
    request: pytest.FixtureRequest, fixture: str, of_parameters: Callable[[dict[str, Any]], Iterable[str]]
) -> list[str]:
    """Returns the names of the runs that the selected tests of a module need, each once.

    Args:
      request: The request of the fixture that launches.
      fixture: The name of that fixture; only tests that use it count.
      of_parameters: Returns the names that follow from a test's parameters. `@pytest.mark.runs(...)` adds further ones.
    """
    names: dict[str, None] = {}
    for item in request.session.items:
        if item.path == request.path and fixture in getattr(item, "fixturenames", ()):
            mark = item.get_closest_marker("runs")
            names |= dict.fromkeys(mark.args if mark else ())
            names |= dict.fromkeys(of_parameters(item.callspec.params if hasattr(item, "callspec") else {}))
    return list(names)
