"""`tf-sparse-ps metrics`: serves what the jobs of this machine count, for Prometheus."""

from __future__ import annotations

import importlib.util
import os
import time

import click

from tf_sparse_ps.cli.command import Command, mistake
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.node import job_folder

_WAKE_S = 0.5
PORT = click.IntRange(1, 65535)


def check_package(option: str) -> None:
    """Ends the command if the package is missing that serves metrics.

    Args:
      option: What needs it, for the message.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        mistake(
            f"{option} needs the package prometheus_client, which is not installed. Install it: "
            "pip install 'tf_sparse_ps[metrics]'"
        )


@click.command(cls=Command)
@click.option("--port", type=PORT, default=9400, metavar="P", help="Port (default: 9400).")
@click.option(
    "--address",
    default="127.0.0.1",
    metavar="A",
    help="Address of this machine at which to serve (default: 127.0.0.1). 0.0.0.0: all of its addresses.",
)
def command(port: int, address: str) -> int:
    """Serves the counters of all jobs of this user on this machine to Prometheus, until Ctrl-C.

    The path is /metrics. The jobs are read at each scrape. Everybody who reaches the address can read the names of jobs
    and tables.
    """
    check_package("tf-sparse-ps metrics")
    from tf_sparse_ps.monitoring import exporter  # imported here, because its package is optional

    folder = os.path.abspath(job_folder.default())
    own_groups.paths(folder)  # refuses a folder that cannot be read
    with exporter.serving(folder, port, address) as served:
        click.echo(f"serving http://{address}:{served}/metrics of the jobs in {folder}", err=True)
        while True:  # not one endless wait, which a signal that comes just before it does not end
            time.sleep(_WAKE_S)
