"""`Command`, the class of all commands, which reports their errors; options and types that they share."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import click

from tf_sparse_ps.errors import InvalidArgumentError, LaunchError, TableError
from tf_sparse_ps.urls import is_url


class Command(click.Command):
    """A command that reports warnings, and an error of tables, files or the launcher, in a line each."""

    def invoke(self, context: click.Context) -> Any:
        """Runs the command, and returns its exit status."""

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            click.echo(f"{context.command_path}: {message}", err=True)

        try:
            with warnings.catch_warnings():
                warnings.showwarning = show
                status = super().invoke(context)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (TableError, OSError) as error:
            click.echo(f"{context.command_path}: {error}", err=True)
            return 2
        except LaunchError as error:
            click.echo(f"tf-sparse-ps: {error}", err=True)
            return error.status
        return status


class _Path(click.Path):
    """A path. Those that cannot be read get the library's own error."""

    def __init__(self, *, urls: bool) -> None:
        """`urls`: URLs are allowed, and stay as they are."""
        super().__init__(path_type=Path, readable=False)
        self._urls = urls

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_url(value):
            if self._urls:
                return value
            raise click.BadParameter(
                f"must be a path. Received: {value!r}. `tf-sparse-ps checkpoint` and `tf-sparse-ps follow` take URLs. "
                "For other commands, copy the files to this machine",
                ctx,
                param,
            )
        return super().convert(value, param, ctx)


PATH, PATH_OR_URL = _Path(urls=False), _Path(urls=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def make_model(name: str, argument: str) -> Any:
    """Returns the model that a function returns. Modules of the working directory are found.

    Args:
      name: MODULE:FUNCTION.
      argument: What the function is given as, for the message.

    Raises:
      InvalidArgumentError: There is no such function, or it returns no model.
    """
    module_name, _, function = name.partition(":")
    wrong = (
        f"{argument} must be MODULE:FUNCTION, such as train:make_model, of a function without arguments. "
        f"Received: {name!r}"
    )
    if not module_name or not function:
        raise InvalidArgumentError(wrong)
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidArgumentError(f"{wrong} ({error})") from error
    try:
        make = getattr(module, function)
        inspect.signature(make).bind()
    except (AttributeError, TypeError) as error:
        raise InvalidArgumentError(f"{wrong} ({error})") from error
    model = make()
    if not hasattr(model, "get_layer"):
        raise InvalidArgumentError(f"{argument}: {name} must return a Keras model. It returned {model!r}")
    return model


def mistake(message: str) -> NoReturn:
    """Ends the command, because its arguments do not fit together. The exit status is 2."""
    raise click.UsageError(message, ctx=click.get_current_context(silent=True))


def check_every(every: float) -> None:
    """Ends the command if --every is no number of seconds to wait between two looks."""
    if not 0.05 <= every < math.inf:
        mistake(f"--every must be a number of seconds of at least 0.05. Received: {every}")


def positive_integer(value: str | int) -> int:
    """Returns the number that an argument is. Raises BadParameter if it is below 1 or no integer."""
    if not str(value).isdecimal() or (number := int(value)) < 1:
        raise click.BadParameter(f"must be an integer of at least 1. Received: {value!r}")
    return number


table_option = click.option("--table", metavar="NAME", help="The table, if PATH has several.")
