"""Starts the ranks of a job as `horovodrun --gloo` does, without the seconds that it takes: python direct_launcher.py
HOSTS RANKS COMMAND...

What a rank prints is prefixed with its number; when a rank fails the others are terminated, and five seconds later
killed; the status is that of the first rank that failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

_GRACE_S = 5.0
_lock = threading.Lock()


def start(slot: Any, port: int, command: list[str]) -> subprocess.Popen[str]:
    """Starts a rank.

    Args:
      slot: Horovod's description of the rank.
      port: Of the rendezvous server.
      command: Of the rank.
    """
    environment = {
        **os.environ,
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
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )


def forward(stream: IO[str], prefix: str) -> None:
    """Prints a rank's lines with a prefix, until the stream ends."""
    for line in stream:
        with _lock:
            sys.stdout.write(prefix + line if line.endswith("\n") else f"{prefix}{line}\n")
            sys.stdout.flush()


def end(processes: list[subprocess.Popen[str]]) -> None:
    """Terminates what runs; kills what does not end."""
    for process in processes:
        process.terminate()  # a process that has ended is left alone
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def main() -> int:
    """Runs a job; returns its status."""
    hosts, ranks, command = parse_hosts(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    slots = get_host_assignments(hosts, ranks, ranks)
    server = RendezvousServer()
    port = server.start()
    server.init(slots)
    processes = [start(slot, port, command) for slot in slots]
    signal.signal(signal.SIGTERM, lambda *_: end(processes))
    readers = []
    for rank, process in enumerate(processes):
        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            assert stream is not None
            readers.append(threading.Thread(target=forward, args=(stream, f"[{rank}]<{name}>:"), daemon=True))
            readers[-1].start()
    status = 0
    while any(process.poll() is None for process in processes) or status == 0:
        failed = [rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)]
        if failed and status == 0:
            status = processes[failed[0]].returncode
            print(f"Process {failed[0]} exit with status code {status}.", flush=True)
            end(processes)
        if status == 0 and all(process.poll() == 0 for process in processes):
            break
        time.sleep(0.02)
    for reader in readers:
        reader.join(5.0)  # a child of a rank may hold its output
    return 1 if status < 0 else status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the server's threads go on
