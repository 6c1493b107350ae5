"""The policies of a table: what they are, and how one differs from those that a job had before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_changes(table: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each policy that differs.

    Args:
      table: The name of the table.
      before, now: Results of `TableConfig.policies`.
    """
    return [
        f"table {table!r}: the {policy} was {_shown(before.get(policy))}, and is {_shown(now.get(policy))}"
        for policy in sorted({*before, *now})
        if before.get(policy) != now.get(policy)
    ]


def _shown(policy: Mapping[str, Any] | None) -> str:
    return "none" if policy is None else ", ".join(f"{name}={value}" for name, value in policy.items())
