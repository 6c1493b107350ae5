"""`tf-sparse-ps follow`: copies new versions to a serving machine. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tf_sparse_ps.config.plain_numbers import positive_integer
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.serving.follow import Follower
from tf_sparse_ps.serving.sources import source
from tf_sparse_ps.serving.upload import Uploader


def main(arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
      arguments: The arguments after `tf-sparse-ps follow`.

    Returns:
      The exit status: 0, or 2 if a version could not be copied or selected.

    Raises:
      SystemExit: The arguments have a mistake, with status 2; or help was asked for.
    """
    parser = argparse.ArgumentParser(
        "tf-sparse-ps follow",
        description="Copies new versions to a serving machine, only the files that it lacks. It runs until it is "
        "ended, unless --once or a selection is given.",
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="a directory of versions: a path or a URL, such as s3://b/serve"
    )
    parser.add_argument(
        "directory", metavar="DEST", help="the directory that servers watch; or a URL, from where they follow in turn"
    )
    parser.add_argument("--keep", type=positive_integer, default=3, metavar="N", help="versions to keep (default: 3)")
    parser.add_argument("--every", type=float, default=5.0, metavar="S", help="seconds between looks (default: 5)")
    parser.add_argument("--once", action="store_true", help="look once, copy what is new, and end")
    select = parser.add_mutually_exclusive_group()
    select.add_argument("--pin", type=int, metavar="N", help="make version N the newest one until --unpin, and end")
    select.add_argument("--unpin", action="store_true", help="copy newer versions again, and end")
    select.add_argument(
        "--rollback", action="store_true", help="remove the newest version, do not copy it again, and end"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each version")
    options = parser.parse_args(list(arguments))
    selects = options.pin is not None or options.unpin or options.rollback
    if "://" in options.directory and selects:
        parser.error(f"versions are selected where servers map them. Received: {options.directory}")
    try:
        if "://" in options.directory:
            return _follow(Uploader(source(options.source), options.directory, keep=options.keep), options)
        follower = Follower(source(options.source), Path(options.directory), keep=options.keep)
        if options.pin is not None:
            follower.pin(options.pin)
        elif options.unpin:
            follower.unpin()
        elif options.rollback:
            print(f"{options.directory} has version {follower.roll_back()} as its newest")
        else:
            return _follow(follower, options)
    except (TableError, OSError) as error:
        print(f"tf-sparse-ps follow: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _follow(follower: Follower | Uploader, options: argparse.Namespace) -> int:
    """Copies new versions. Errors of the source do not end it unless --once is given."""
    told = ""
    while True:
        try:
            copied = follower.copy_newest()
            told = ""
        except (TableError, OSError) as error:
            if options.once:
                raise
            if str(error) != told:
                told = str(error)
                print(f"tf-sparse-ps follow: {error}. Trying again", file=sys.stderr, flush=True)
            copied = None
        if copied is not None:
            version, size = copied
            facts = {"version": os.fspath(version), "bytes": size}
            text = f"{version} is there; {size / 1e6:.1f} MB were copied"
            print(json.dumps(facts) if options.json else text, flush=True)
        if options.once:
            return 0
        time.sleep(options.every)
