"""`tf-sparse-ps publish`: a version from a checkpoint, without the job that has saved it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.errors import InvalidArgumentError, TableError
from tf_sparse_ps.exporting import checkpoint_export
from tf_sparse_ps.exporting.captured_tables import Options
from tf_sparse_ps.serving import table_files
from tf_sparse_ps.serving.version import Version


def main(arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
      arguments: The arguments after `tf-sparse-ps publish`.

    Returns:
      The exit status: 0, or 2 if the version could not be written.

    Raises:
      SystemExit: The arguments have a mistake, with status 2; or help was asked for.
    """
    parser = argparse.ArgumentParser(
        "tf-sparse-ps publish", description="Write a served version from a checkpoint, without the training job."
    )
    parser.add_argument(
        "checkpoint", type=Path, help="a checkpoint, or a directory of them, whose newest whole one is taken"
    )
    parser.add_argument("version", type=Path, help="the folder of the version, which must not exist")
    graph = parser.add_mutually_exclusive_group(required=True)
    graph.add_argument(
        "--base", type=Path, metavar="VERSION", help="an earlier version, whose graph and files the new one has"
    )
    graph.add_argument("--model", metavar="MODULE:FUNCTION", help="a function that returns the built Keras model")
    parser.add_argument("--rows", choices=table_files.ROWS, help="how rows are stored; left out: as in the tables")
    parser.add_argument("--absent", choices=table_files.ABSENT, default="initial", help="what keys without a row read")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(list(arguments))
    try:
        checkpoint = CheckpointDirectory.read(options.checkpoint)
        base = None if options.base is None else Version(options.base)
        model = None if options.model is None else _model(options.model)
        checkpoint_export.publish(
            checkpoint, options.version, base=base, model=model, options=Options(options.rows, options.absent)
        )
    except (TableError, OSError) as error:
        print(f"tf-sparse-ps publish: {error}", file=sys.stderr)
        return 2
    facts = {"version": os.fspath(options.version), "step": checkpoint.manifest.table_step}
    print(json.dumps(facts) if options.json else f"{facts['version']} has step {facts['step']}")
    return 0


def _model(name: str) -> Any:
    module_name, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), function)()
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(
            f"--model must be MODULE:FUNCTION, such as train:make_model. Received: {name!r} ({error})"
        ) from error
