"""`tf-sparse-ps export`: writes rows to a file that other programs read."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tf_sparse_ps import rows as row_files
from tf_sparse_ps.checkpoints import erasing
from tf_sparse_ps.cli.command import PATH, Command, json_option, mistake, table_option
from tf_sparse_ps.cli.display import print_json


@click.command("export", cls=Command)
@click.argument("path", type=PATH)
@click.option(
    "--to", "file", type=PATH, required=True, metavar="FILE", help="The file, which ends with .parquet, .npz or .csv."
)
@table_option
@click.option(
    "--keys",
    "key_file",
    type=PATH,
    metavar="FILE",
    help="The keys to write: a text file, one per line, or a NumPy array in a .npy file.",
)
@click.option("--strings", is_flag=True, help="The keys of --keys are strings.")
@click.option("--key-range", nargs=2, type=int, metavar="FIRST END", help="The first key, and the one after the last.")
@click.option("--slots", is_flag=True, help="Write the optimizer's slots, too.")
@json_option
def command(
    path: Path,
    file: Path,
    table: str | None,
    key_file: Path | None,
    strings: bool,
    key_range: tuple[int, int] | None,
    slots: bool,
    as_json: bool,
) -> int:
    """Writes keys, rows and facts of a table in PATH to a file of rows.

    PATH is as for `inspect`, or a file of rows or of a model. FILE is replaced if it exists.
    """
    if strings and key_file is None:
        mistake("--strings needs --keys")
    written = row_files.export_rows(
        os.fspath(path),
        file,
        keys=None if key_file is None else erasing.read_keys(key_file, strings=strings),
        key_range=key_range,
        slots=slots,
        table=table,
        progress=not as_json,
    )
    if as_json:
        print_json({"path": os.fspath(path), "file": os.fspath(file), "rows": written})
    else:
        click.echo(f"{file} has {written:,} rows")
    return 0
