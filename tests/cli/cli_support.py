"""What the tests of the command line share: results of commands, and the validation of their JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "tf_sparse_ps" / "cli" / "schemas"


class Done(NamedTuple):
    """What a command has returned and printed."""

    status: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """The JSON document."""
        return json.loads(self.out)


Run = Callable[..., Done]


def validate(name: str, document: Any) -> None:
    """Raises ValidationError unless a document is as the schema of a command says."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
