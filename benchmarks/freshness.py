"""The freshness suite: the time from a training step until a server behind a slow link has it.

On host 0 a job trains and publishes every few seconds, and an HTTP server shares the versions. On host 1
`tf-sparse-ps follow` copies them, and a process calls `update()`. benchmarks/hosts.py emulates the hosts and the link
of `--mbit`. Phases with and without publishing alternate.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, hosts

_JOB_S = 420.0
_ADDRESS, _PORT = "10.77.0.1", 8000  # host 0
_FOLLOW = "import sys; from tf_sparse_ps.cli import main; sys.exit(main())"


def run(options: harness.Options) -> list[harness.Result]:
    """Measures freshness, bytes and steps per second.

    Raises:
        hosts.HostsUnavailable: Hosts cannot be emulated. The text names what is missing.
    """
    if reason := hosts.unavailable():
        raise hosts.HostsUnavailable(reason)
    mbit = options.cluster.mbit_per_s
    with tempfile.TemporaryDirectory(prefix="tsps-freshness-", dir="/var/tmp") as name:
        folder = Path(name)
        published, served = folder / "published", folder / "served"
        published.mkdir()
        served.mkdir()
        root = os.fspath(Path(__file__).absolute().parents[1])
        env = os.environ | {"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "2"}
        python = sys.executable
        url = f"http://{_ADDRESS}:{_PORT}"
        http = [python, "-m", "benchmarks.file_server", os.fspath(published), _ADDRESS, str(_PORT)]
        follow = [python, "-c", _FOLLOW, "follow", url, os.fspath(served), "--every", "0.2", "--keep", "3"]
        job = [python, "-m", "benchmarks.freshness_job", name, *(["--quick"] if options.quick else [])]
        with hosts.emulated(2, mbit_per_s=mbit) as network, open(folder / "log", "w") as log:
            network.start(http, host=0, env=env, output=log)
            network.start(follow, host=1, env=env, output=log)
            server = [python, "-m", "benchmarks.freshness_server", os.fspath(served), os.fspath(folder / "seen")]
            network.start(server, host=1, env=env, output=log)
            process = network.start(job, host=0, env=env, output=log)
            if process.wait(_JOB_S):
                raise RuntimeError(f"the job failed:\n{(folder / 'log').read_text()[-4000:]}")
        seen = [json.loads(line) for line in (folder / "seen").read_text().splitlines()]
        return _report(json.loads((folder / "figures.json").read_text()), seen, mbit)


def _report(figures: dict[str, Any], seen: list[list[float]], mbit: float) -> list[harness.Result]:
    times = {int(step): time for step, time in figures["step_times"]}
    late = sorted(time - times[int(step)] for step, time in seen if int(step) in times)
    versions = figures["versions"]
    of_changes = [version["bytes"] / version["changed_bytes"] for version in versions]
    written = sum(version["bytes"] for version in versions) / sum(version["changed_bytes"] for version in versions)
    rows, dim = figures["rows"], figures["dim"]
    case = f"{rows:,} x {dim}, a version every {figures['every']:g} s, {mbit:g} Mbit/s"

    def single(title: str, values: dict[str, list[float]], unit: str) -> list[harness.Result]:
        return harness.summarize("freshness", f"{case}: {title}", values, peer=None, unit=unit)

    return [
        *single("from a step to the server", {"p50": [float(np.percentile(late, 50))]}, "s"),
        *single("from a step to the server", {"p99": [float(np.percentile(late, 99))]}, "s"),
        *single("versions", {"published": [len(versions)], "served": [len(late)]}, ""),
        *single("changed rows of a version", {"of all": [v["changed"] / rows * 100 for v in versions]}, "%"),
        *single("bytes / bytes of changed rows", {"each version": of_changes, "all versions": [written]}, ""),
        *harness.summarize(
            "freshness", f"{case}: training", figures["steps_per_second"], peer="not publishing", unit="steps/s"
        ),
    ]
