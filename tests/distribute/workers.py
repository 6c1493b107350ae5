"""Starts workers of a MultiWorkerMirroredStrategy on this machine, and always cleans up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fork_server import AT_IMPORT, ForkedProcess, ForkServer
from free_ports import free_ports

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


class Workers:
    """Running workers.

    Attributes:
      folder: The folder for the program's results, which is its last argument.
      tables: One folder of tables for each node.
      processes: The processes in the order of their task ids.
    """

    def __init__(self, folder: Path, tables: list[Path], processes: list[ForkedProcess]) -> None:
        """Starts to collect the output."""
        self.folder, self.tables, self.processes = folder, tables, processes
        self._lines: list[str] = []
        self._readers = [threading.Thread(target=self._read, args=(process,), daemon=True) for process in processes]
        for reader in self._readers:
            reader.start()

    @property
    def output(self) -> str:
        """The last part of the output of all workers."""
        return "".join(list(self._lines))[-20000:]

    def wait(self, timeout_s: float) -> list[int]:
        """Waits for the end of all workers and returns their exit statuses.

        Raises:
          TimeoutError: Some workers still run. The text contains the output.
        """
        deadline = time.monotonic() + timeout_s
        try:
            statuses = [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"workers still run after {timeout_s} s:\n{self.output}") from None
        for reader in self._readers:
            reader.join(10)
        return statuses

    def wait_for(self, text: str, timeout_s: float, count: int = 1) -> None:
        """Waits until `text` has been printed `count` times.

        Raises:
          TimeoutError: The text was not printed. The message contains the output.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(reader.is_alive() for reader in self._readers):
            if sum(text in line for line in list(self._lines)) >= count:
                return
            time.sleep(0.02)
        raise TimeoutError(f"{text!r} was not printed {count} times within {timeout_s} s:\n{self.output}")

    def _read(self, process: ForkedProcess) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)


def environment(tables: Path) -> dict[str, str]:
    """Returns the environment of a program of this folder."""
    paths = [REPOSITORY, HERE, REPOSITORY / "tests" / "multirank"]
    return {
        **{name: value for name, value in os.environ.items() if name not in ("TFSPS_JOB", "TF_CONFIG")},
        "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
        **AT_IMPORT,
        "TFSPS_DIR": str(tables),
        "CUDA_VISIBLE_DEVICES": "",
    }


@contextlib.contextmanager
def started(program: str, *args: str, nodes: Sequence[int], env: dict[str, str] | None = None) -> Iterator[Workers]:
    """Runs `program` of this folder as the workers of a cluster. Afterwards it ends them and deletes their files.

    Args:
      program: A file in this folder. It is called with `args` and the folder for results.
      args: The first arguments.
      nodes: The node of each worker. Workers of one node share a folder of tables.
      env: Variables to add to the environment.
    """
    tables = [Path(tempfile.mkdtemp(prefix="tsps-test-", dir="/dev/shm")) for _ in range(max(nodes) + 1)]
    folder = Path(tempfile.mkdtemp(prefix="tsps-test-"))
    addresses = _free_addresses(len(nodes))
    processes = []
    try:
        for number, node in enumerate(nodes):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
            worker_environment = {**environment(tables[node]), "TF_CONFIG": json.dumps(config), **(env or {})}
            server = ForkServer.of_this_process()
            processes.append(server.start(HERE / program, [*args, str(folder)], worker_environment))
        yield Workers(folder, tables, processes)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(10)
        for path in (folder, *tables):
            shutil.rmtree(path, ignore_errors=True)


def _free_addresses(n: int) -> list[str]:
    """Returns addresses with ports that are free at this moment."""
    return [f"127.0.0.1:{port}" for port in free_ports(n)]
