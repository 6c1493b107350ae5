"""`main`: runs a command of `tf-sparse-ps`. The module of a command is imported when the command is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from tf_sparse_ps._version import __version__

# For each command, its line in `tf-sparse-ps --help`. The module of the same name has `command`.
COMMANDS = {
    "run": "Starts the ranks of a job.",
    "ls": "Lists the groups of tables on this machine.",
    "top": "Shows what the jobs of this machine do, live.",
    "metrics": "Serves what the jobs of this machine count, for Prometheus.",
    "inspect": "Shows what a group, table, file, checkpoint or version contains.",
    "verify": "Reads all of a path, and checks all checksums.",
    "get": "Prints the rows of keys.",
    "diff": "Compares two tables, files, checkpoints or versions.",
    "export": "Writes rows to a Parquet, NumPy or CSV file.",
    "import": "Reads rows of a file into a file, a checkpoint or a table.",
    "clean": "Removes the tables of jobs that were killed.",
    "doctor": "Checks this machine and its software.",
    "plan": "Plans the tables of a job before its first run.",
    "checkpoint": "Lists, verifies, compares and rewrites checkpoints.",
    "publish": "Writes a served version from a checkpoint.",
    "follow": "Copies new served versions to this machine.",
}


class LazyGroup(click.Group):
    """A group of commands, each in a module of its own that is imported when it is needed."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Returns the names of the commands, in the order of `--help`."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Imports a command."""
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tf_sparse_ps.cli.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="tf-sparse-ps")
def command_line() -> None:
    """Shared embedding tables for TensorFlow: starts jobs, and looks after their tables, checkpoints and versions.

    The exit status is 0, or 1 for a finding (a damaged file, a difference), 2 for a mistake in the arguments or an
    input that cannot be read, and 130 after Ctrl-C.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `tf-sparse-ps`.

    Args:
      arguments: The words of the command line; None: those of this process.

    Returns:
      The exit status.

    Raises:
      SystemExit: The arguments have a mistake (status 2).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = command_line.main(words, prog_name="tf-sparse-ps", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(2) from None
    except (click.Abort, KeyboardInterrupt):
        return 130
    return int(status or 0)
