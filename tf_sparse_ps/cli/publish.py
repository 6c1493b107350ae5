"""`tf-sparse-ps publish`: a version from a checkpoint, without the job that has saved it. Imports TensorFlow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.cli.command import PATH, Command, json_option, make_model, mistake
from tf_sparse_ps.exporting import checkpoint_export
from tf_sparse_ps.exporting.captured_tables import Options
from tf_sparse_ps.serving import table_files
from tf_sparse_ps.serving.version import Version


@click.command(cls=Command)
@click.argument("checkpoint", type=PATH)
@click.argument("version", type=PATH)
@click.option(
    "--base",
    type=PATH,
    metavar="VERSION",
    help="An earlier version, whose graph and files the new one has.",
)
@click.option("--model", metavar="MODULE:FUNCTION", help="A function that returns the built Keras model.")
@click.option("--rows", type=click.Choice(table_files.ROWS), help="How rows are stored. If left out: as in the tables.")
@click.option(
    "--absent",
    type=click.Choice(table_files.ABSENT),
    default="initial",
    help="What keys without a row read (default: initial).",
)
@json_option
def command(
    checkpoint: Path,
    version: Path,
    base: Path | None,
    model: str | None,
    rows: str | None,
    absent: str,
    as_json: bool,
) -> int:
    """Writes a served version from a checkpoint, without the training job.

    CHECKPOINT is a checkpoint, or a directory of them, whose newest whole one is taken. VERSION is the folder of the
    version, which must not exist. One of --base and --model is required.
    """
    if (base is None) == (model is None):
        mistake("give one of --base and --model")
    stored = CheckpointDirectory.read(checkpoint)
    base_version = None if base is None else Version(base)
    built = None if model is None else make_model(model, "--model")
    checkpoint_export.publish(stored, version, base=base_version, model=built, options=Options(rows, absent))
    facts = {"version": os.fspath(version), "step": stored.manifest.table_step}
    click.echo(json.dumps(facts) if as_json else f"{facts['version']} has step {facts['step']}")
    return 0
