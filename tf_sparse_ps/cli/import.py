"""`tf-sparse-ps import`: reads a file of rows or of a model into a table that no job writes."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tf_sparse_ps import rows as row_files
from tf_sparse_ps.cli.command import PATH, Command, json_option
from tf_sparse_ps.cli.display import print_json


@click.command("import", cls=Command)
@click.argument("file", type=PATH)
@click.option(
    "--into",
    type=PATH,
    required=True,
    metavar="PATH",
    help="A new .tfsps file, a directory of checkpoints, or a table or group of a stopped named job.",
)
@click.option("--table", metavar="NAME", help="The table, if --into has several.")
@click.option("--variable", metavar="NAME", help="The weight, variable or table, if FILE has several.")
@click.option("--no-slots", is_flag=True, help="Take the rows alone, also if FILE has slots.")
@json_option
def command(file: Path, into: Path, table: str | None, variable: str | None, no_slots: bool, as_json: bool) -> int:
    """Reads rows of FILE into a file, a checkpoint or the table of a stopped job.

    FILE ends with .parquet, .npz, .csv, .keras or .h5, or is the prefix of a checkpoint of TensorFlow, or a path as for
    `export`. All of it is checked before a row is written.
    """
    written = row_files.import_rows(
        os.fspath(file), into, table=table, variable=variable, slots=not no_slots, progress=not as_json
    )
    if as_json:
        print_json({"file": os.fspath(file), "into": os.fspath(into), "rows": written})
    else:
        click.echo(f"{into} has {written:,} rows of {file}")
    return 0
