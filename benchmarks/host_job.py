"""Jobs on emulated hosts, whose ranks Horovod or TensorFlow connects.

Ranks are contiguous: the first ones are on host 0, the next ones on host 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import hosts as hosts_lib

ROOT = Path(__file__).absolute().parents[1]  # links are not followed: see benchmarks.against
_POLL_S = 0.05
# If one rank fails, others fail because of it, and report it later. The job waits this long for their reports.
_EXIT_REPORT_S = 3.0
_FIRST_PORT = 29500  # the first port of a host's ranks, if TensorFlow connects them; each host has its own ports


class JobFailed(RuntimeError):
    """A rank ended with an error. The text names the rank and ends with its output."""


@dataclasses.dataclass
class HostJob:
    """A running job.

    Attributes:
        processes: One process per rank, in order; `kill()` ends the rank.
        logs: The file of each rank's output.
    """

    processes: list[subprocess.Popen[str]]
    logs: list[Path]

    def wait(self, timeout_s: float) -> None:
        """Waits until all ranks have ended without an error.

        Raises:
            JobFailed: A rank failed; others may still be running.
            TimeoutError: Some ranks are still running. The text names them.
        """
        deadline = time.monotonic() + timeout_s
        while running := [rank for rank, process in enumerate(self.processes) if process.poll() is None]:
            self._raise_if_failed()
            if time.monotonic() > deadline:
                raise TimeoutError(f"ranks {running} did not end within {timeout_s} s. {self._text(running[0])}")
            time.sleep(_POLL_S)
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        failed = [rank for rank, process in enumerate(self.processes) if process.poll()]
        if not failed:
            return
        end = time.monotonic() + _EXIT_REPORT_S
        while time.monotonic() < end and any(process.poll() is None for process in self.processes):
            time.sleep(_POLL_S)
        raise JobFailed(
            f"rank {failed[0]} of {len(self.processes)} ended first, with {self.processes[failed[0]].returncode}. "
            + self._text(failed[0])
        )

    def _text(self, rank: int) -> str:
        return f"Rank {rank} printed:\n{self.logs[rank].read_text(errors='replace')[-4000:]}"


@contextlib.contextmanager
def started(
    hosts: hosts_lib.Hosts,
    ranks_per_host: int,
    command: Sequence[str],
    *,
    collectives: str = "horovod",
    env: Mapping[str, str] | None = None,
    own_processors: bool = False,
) -> Iterator[HostJob]:
    """Starts a program on all ranks; kills it afterwards where it still runs.

    Args:
        hosts: The hosts that run the job.
        ranks_per_host: The number of ranks on each host.
        command: The command. Its first word is an interpreter, which has Horovod if Horovod connects the ranks.
        collectives: The library that connects the ranks: "horovod" or "tensorflow".
        env: Additions to the environment. The repository is on PYTHONPATH; tables are in the host's /dev/shm.
        own_processors: Whether each rank gets an equal share of this machine's processors for itself. Otherwise the
            ranks compete for them.

    Raises:
        ValueError: There are more ranks than processors to share.
    """
    size = len(hosts.names) * ranks_per_host
    processors = sorted(os.sched_getaffinity(0))
    share = len(processors) // size
    if own_processors and not share:
        raise ValueError(
            f"{size} ranks cannot have their own processors, because this machine has {len(processors)}. Start fewer "
            "ranks"
        )
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="tsps-host-job-") as folder, contextlib.ExitStack() as stack:
        stack.callback(_kill, processes)
        connected = {"horovod": _horovod, "tensorflow": _tensorflow}[collectives]
        connections = stack.enter_context(connected(hosts, ranks_per_host, Path(folder) / "rendezvous"))
        logs = [Path(folder) / f"rank{rank}" for rank in range(size)]
        for rank, log in enumerate(logs):
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "PYTHONUNBUFFERED": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TFSPS_DIR": "/dev/shm/tf_sparse_ps",
                **connections[rank],
                **(env or {}),
            }
            environment.pop("TFSPS_JOB", None)
            with log.open("w") as output:
                share_list = ",".join(map(str, processors[rank * share : (rank + 1) * share]))
                pinned = ["taskset", "--cpu-list", share_list] if own_processors else []
                processes.append(
                    hosts.start([*pinned, *command], host=rank // ranks_per_host, env=environment, output=output)
                )
        yield HostJob(processes, logs)


@contextlib.contextmanager
def _horovod(hosts: hosts_lib.Hosts, ranks_per_host: int, log: Path) -> Iterator[list[dict[str, str]]]:
    """Yields the environment of each rank, while the server runs through which the ranks find each other."""
    server, port = _rendezvous(hosts, ranks_per_host, log)
    size = len(hosts.names) * ranks_per_host
    try:
        yield [
            {
                "HOROVOD_HOSTNAME": hosts.names[rank // ranks_per_host],
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(size),
                "HOROVOD_LOCAL_RANK": str(rank % ranks_per_host),
                "HOROVOD_LOCAL_SIZE": str(ranks_per_host),
                "HOROVOD_CROSS_RANK": str(rank // ranks_per_host),
                "HOROVOD_CROSS_SIZE": str(len(hosts.names)),
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": "eth0",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts_lib.SWITCH_ADDRESS,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            }
            for rank in range(size)
        ]
    finally:
        _kill([server])


@contextlib.contextmanager
def _tensorflow(hosts: hosts_lib.Hosts, ranks_per_host: int, _: Path) -> Iterator[list[dict[str, str]]]:
    """Yields the environment of each rank."""
    workers = [f"{name}:{_FIRST_PORT + local}" for name in hosts.names for local in range(ranks_per_host)]
    yield [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})}
        for rank in range(len(workers))
    ]


def _rendezvous(hosts: hosts_lib.Hosts, ranks_per_host: int, log: Path) -> tuple[subprocess.Popen[str], int]:
    """Starts the server and returns its port."""
    slots = ",".join(f"{name}:{ranks_per_host}" for name in hosts.names)
    command = [sys.executable, "-m", "benchmarks.rendezvous", slots]
    with log.open("w") as output:
        server = hosts.start(command, host=None, env={**os.environ, "PYTHONPATH": str(ROOT)}, output=output)
    while server.poll() is None:
        if (output_text := log.read_text()).endswith("\n") and output_text.split()[-1].isdigit():
            return server, int(output_text.split()[-1])
        time.sleep(_POLL_S)
    raise JobFailed(f"the rendezvous server ended with {server.returncode}:\n{log.read_text()[-4000:]}")


def _kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
