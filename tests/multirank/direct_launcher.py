"""Starts the ranks of a job as `horovodrun --gloo` or `tf-sparse-ps run` does, in less time.

    python direct_launcher.py horovod HOSTS RANKS PROGRAM ARGUMENTS...
    python direct_launcher.py tensorflow HOSTS RANKS PROGRAM ARGUMENTS...

With TensorFlow's collectives, each of HOSTS is a folder in TFSPS_DIR: its ranks see no other tables.

This process imports TensorFlow and tf_sparse_ps once, and forks the ranks. Nothing runs at that time, not even a
thread. It does not import packages that a program may import on some ranks only, such as `tsps.callbacks`. It prefixes
the output of each rank with the rank's number. If a rank fails, it terminates the other ranks, and kills them five
seconds later. Its status is that of the first rank that failed.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from free_ports import free_ports
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from tf_sparse_ps.collectives.key_value_server import KeyValueServer, Values

_GRACE_S = 5.0
_SECRET = "of the job of a test"
_print = threading.Lock()


def serve(slots: list[Any]) -> int:
    """Starts a process with the job's key-value store, which ends with this process; returns the port.

    Args:
      slots: For Horovod: the slots of its rendezvous server, which is the store. For TensorFlow's collectives: empty.
    """
    port_in, port_out = os.pipe()
    launcher = os.getpid()
    if os.fork() == 0:
        if slots:
            server = RendezvousServer()
            os.write(port_out, str(server.start()).encode())
            server.init(slots)
        else:
            os.write(port_out, str(KeyValueServer("127.0.0.1", 0, Values(), {"tsps": _SECRET.encode()}).port).encode())
        os.close(port_out)
        os.close(1)  # a reader of the launcher's output must not wait for this process
        os.close(2)
        while os.getppid() == launcher:
            time.sleep(0.1)
        os._exit(0)
    os.close(port_out)
    with os.fdopen(port_in) as stream:
        return int(stream.read())


class Rank:
    """A rank of the job.

    Attributes:
      status: The exit status, as from `os.waitstatus_to_exitcode`; None while the rank runs.
    """

    def __init__(self, number: int, environment: dict[str, str], program: str, arguments: list[str]) -> None:
        """Forks the rank; in the child this does not return.

        Args:
          number: The rank.
          environment: The variables to add to this process's environment.
          program: A Python file.
          arguments: The arguments of the program.
        """
        self.status: int | None = None
        self._readers = []
        pipes = [os.pipe(), os.pipe()]
        self._pid = os.fork()
        if self._pid == 0:
            for target, (read, write) in enumerate(pipes, 1):
                os.close(read)
                os.dup2(write, target)
                os.close(write)
            _become(environment, program, arguments)
        for (read, write), name in zip(pipes, ("stdout", "stderr"), strict=True):
            os.close(write)
            self._readers.append(threading.Thread(target=_forward, args=(read, f"[{number}]<{name}>:"), daemon=True))

    def read(self) -> None:
        """Starts to forward the rank's output. It must be called after the last fork, which copies no thread."""
        for reader in self._readers:
            reader.start()

    def poll(self) -> int | None:
        """Returns the status; None while the rank runs."""
        if self.status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def signal(self, number: int) -> None:
        """Sends a signal, if the rank runs."""
        if self.poll() is None:
            os.kill(self._pid, number)

    def join(self) -> None:
        """Waits for the end of the rank's output, which a child of the rank may keep open."""
        for reader in self._readers:
            reader.join(_GRACE_S)


def _become(environment: dict[str, str], program: str, arguments: list[str]) -> None:
    import numpy as np  # TensorFlow has imported it already

    np.random.seed()  # otherwise, all ranks would draw the same numbers
    os.environ |= environment
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")
    sys.exit(0)


def for_horovod(slot: Any, port: int) -> dict[str, str]:
    """Returns a rank's environment.

    Args:
      slot: Horovod's description of the rank.
      port: The port of the rendezvous server.
    """
    return {
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def for_tensorflow(slots: list[Any], port: int) -> list[dict[str, str]]:
    """Returns the ranks' environments.

    Args:
      slots: Horovod's descriptions of the ranks.
      port: The port of the key-value store.
    """
    workers = [f"127.0.0.1:{port_number}" for port_number in free_ports(len(slots))]
    environments = []
    for slot in slots:
        folder = Path(os.environ["TFSPS_DIR"])
        if slot.local_size < slot.size:
            folder = folder / slot.hostname
            folder.mkdir(exist_ok=True)
        task = {"type": "worker", "index": slot.rank}
        environments.append(
            {
                "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
                "TFSPS_KEY_VALUES": f"127.0.0.1:{port}",
                "TFSPS_SECRET": _SECRET,
                "TFSPS_DIR": str(folder),
            }
        )
    return environments


def _forward(descriptor: int, prefix: str) -> None:
    with open(descriptor, errors="replace") as stream:
        for line in stream:
            with _print:
                sys.stdout.write(prefix + line.rstrip("\n") + "\n")
                sys.stdout.flush()


def end(ranks: list[Rank]) -> None:
    """Terminates the ranks that run; kills those that do not end."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.02)
    for rank in ranks:
        rank.signal(signal.SIGKILL)


def main() -> int:
    """Runs a job; returns its status."""
    engine, hosts, size, (program, *arguments) = sys.argv[1], parse_hosts(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    slots = get_host_assignments(hosts, size, size)
    port = serve(slots if engine == "horovod" else [])
    environments = [for_horovod(slot, port) for slot in slots] if engine == "horovod" else for_tensorflow(slots, port)
    import tensorflow as tf  # after the fork of the server, which does not need it

    import tf_sparse_ps as tsps

    assert tf.keras.layers.Dense  # imports Keras, which TensorFlow imports at its first use
    assert tsps.Embedding
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not go along"
    ranks = [Rank(number, environment, program, arguments) for number, environment in enumerate(environments)]
    signal.signal(signal.SIGTERM, lambda *_: end(ranks))
    for rank in ranks:
        rank.read()
    failed: Rank | None = None
    running = True
    while running:
        running = any(rank.poll() is None for rank in ranks)
        failed = next((rank for rank in ranks if rank.poll()), None)
        if failed is not None:
            print(f"Process {ranks.index(failed)} exit with status code {failed.status}.", flush=True)
            end(ranks)
        time.sleep(0.02)
    for rank in ranks:
        rank.join()
    status = next((rank.status for rank in [failed, *ranks] if rank is not None and rank.status), 0)
    return 1 if status < 0 else status


if __name__ == "__main__":
    sys.exit(main())
