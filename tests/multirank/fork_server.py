"""Runs Python programs in processes that have already imported TensorFlow.

Importing TensorFlow and Keras takes seconds of processor time. A fork server imports them once and then forks one
process per program:

    server = ForkServer.of_this_process()
    process = server.start(Path("program.py"), ["argument"], environment)
    print(process.stdout.read(), process.wait())
    print(run_forked("import tensorflow as tf; print(tf.__version__)").stdout)

TensorFlow's runtime does not run in the server, which has one thread: `main` checks that before each fork. A forked
program ends like any interpreter, with its `atexit` functions and the destructors of C++. However, its modules are not
freed: that would take 1.6 s of processor time, most of the time of a short program.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

HERE = Path(__file__).resolve().parent
# These take effect when Python starts or TensorFlow is imported. A program gets the server's values.
AT_IMPORT = {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
_LONGEST_REQUEST = 1 << 20
_STARTING_S = 120.0


class ForkedProcess:
    """A program that the server runs. It has those parts of `subprocess.Popen` that tests use.

    Attributes:
      pid: The process id. The process is a child of the server.
      stdout: The output of the program to stdout and stderr, if that is a pipe.
      returncode: The exit status, or minus the signal that ended the program; None while it runs.
    """

    def __init__(self, pid: int, control: socket.socket, stdout: IO[str] | None = None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._control = control

    def poll(self) -> int | None:
        """Returns `returncode` without waiting."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the program and returns its status.

        Raises:
          subprocess.TimeoutExpired: The program still runs after `timeout` seconds.
        """
        if self.returncode is None:
            ready, _, _ = select.select([self._control], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            status = self._control.recv(16)
            self._control.close()
            self.returncode = int(status) if status else -signal.SIGKILL  # if there is no status, the server was killed
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the program unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL to the program unless it has ended."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that has imported TensorFlow and forks a process for each program."""

    _shared: ForkServer | None = None

    @classmethod
    def of_this_process(cls) -> ForkServer:
        """Returns the server of this process, and starts it if it does not run."""
        if cls._shared is None or cls._shared._process.poll() is not None:
            cls._shared = cls()
            atexit.register(cls._shared.close)
        return cls._shared

    def __init__(self) -> None:
        self._requests, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        with requests:
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "fork_server.py"), str(requests.fileno())],
                env=environment | AT_IMPORT,
                pass_fds=[requests.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )

    def start(self, program: Path | str, arguments: Sequence[str], environment: dict[str, str]) -> ForkedProcess:
        """Runs a program in a forked process.

        Args:
          program: A Python file, whose folder comes first in the program's `sys.path`; or the Python code itself.
            `PYTHONPATH` of `environment` follows.
          arguments: The arguments of the program.
          environment: The whole environment of the program.

        Raises:
          ValueError: `environment` and the server have different values of a variable of `AT_IMPORT`.
          RuntimeError: The server does not answer. The text has its output.
        """
        reading, writing = os.pipe()
        try:
            pid, control = self._fork(program, arguments, environment, (writing, writing))
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return ForkedProcess(pid, control, os.fdopen(reading, encoding="utf-8", errors="replace"))

    def run(
        self, program: Path | str, environment: dict[str, str], arguments: Sequence[str] = (), timeout_s: float = 240.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in a forked process to its end. Arguments and errors are those of `start`.

        Raises:
          subprocess.TimeoutExpired: The program still runs after `timeout_s` seconds. It is killed.
        """
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            pid, control = self._fork(program, arguments, environment, (stdout.fileno(), stderr.fileno()))
            process = ForkedProcess(pid, control)
            try:
                status = process.wait(timeout_s)
            finally:
                process.kill()
            for file in (stdout, stderr):
                file.seek(0)
            return subprocess.CompletedProcess([str(program)], status, stdout.read(), stderr.read())

    def _fork(
        self, program: Path | str, arguments: Sequence[str], environment: dict[str, str], output: tuple[int, int]
    ) -> tuple[int, socket.socket]:
        """Returns the process id, and the socket that gets the status."""
        if other := {name for name, value in AT_IMPORT.items() if environment.get(name, value) != value}:
            raise ValueError(f"a forked program cannot have its own {', '.join(sorted(other))}")
        request = {
            "file" if isinstance(program, Path) else "code": str(program),
            "arguments": list(arguments),
            "environment": environment,
            "folder": os.getcwd(),
        }
        control, its_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_control:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [its_control.fileno(), *output])
        ready, _, _ = select.select([control], [], [], _STARTING_S)
        pid = control.recv(16) if ready else b""
        if not pid:
            control.close()
            self._log.seek(0)
            raise RuntimeError(f"the fork server did not start a process:\n{self._log.read()[-10000:]}")
        return int(pid), control

    def close(self) -> None:
        """Ends the server, and sends SIGTERM to the programs that still run."""
        self._requests.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def run_forked(
    program: Path | str, arguments: Sequence[str] = (), *, timeout_s: float = 240.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a forked process to its end, in this process's environment with these variables changed.

    The program imports tf_sparse_ps from where this process would. For the rest see `ForkServer.run`.
    """
    return ForkServer.of_this_process().run(program, _like_here(environment), arguments, timeout_s)


def start_forked(program: Path | str, arguments: Sequence[str] = (), **environment: str) -> ForkedProcess:
    """Starts a program as `run_forked` does. For the rest see `ForkServer.start`."""
    return ForkServer.of_this_process().start(program, arguments, _like_here(environment))


def _like_here(changed: dict[str, str]) -> dict[str, str]:
    package = importlib.util.find_spec("tf_sparse_ps")
    assert package is not None
    assert package.origin is not None
    return {**os.environ, **AT_IMPORT, "PYTHONPATH": str(Path(package.origin).parents[1]), **changed}


# --- the server ------------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Forks a process per request.

    Returns:
      In a forked process: the request. In the server: None, after the client has closed its socket.
    """
    children: dict[int, tuple[int, socket.socket]] = {}  # pid and socket for the status, by pidfd
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in children:
                poll.unregister(descriptor)
                os.close(descriptor)
                pid, control = children.pop(descriptor)
                _, status = os.waitpid(pid, 0)
                with control, contextlib.suppress(OSError):
                    control.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 3)
            if not message:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGTERM)
                return None
            threads = len(os.listdir("/proc/self/task"))
            assert threads == 1, f"the fork server has {threads} threads: a forked process would lack them"
            control, output = socket.socket(fileno=descriptors[0]), descriptors[1:]
            pid = os.fork()
            if pid == 0:
                for other, (_, its_control) in children.items():
                    os.close(other)
                    its_control.close()
                control.close()
                requests.close()
                for target, source in enumerate(output, 1):
                    os.dup2(source, target)
                    os.close(source)
                return json.loads(message)
            for source in output:
                os.close(source)
            control.send(str(pid).encode())
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid, control
            poll.register(pidfd, select.POLLIN)


def _run(request: dict[str, Any], paths: list[str]) -> None:
    """Becomes the program."""
    import numpy as np

    np.random.seed()  # otherwise, all forked programs would draw the same numbers
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    file = request.get("file")
    sys.argv = [file or "-c", *request["arguments"]]
    first = [str(Path(file).parent)] if file else []
    first += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = first + [path for path in paths if path not in first]
    if file:
        runpy.run_path(file, run_name="__main__")
    else:
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(request["code"], "<string>", "exec"), module.__dict__)


def _status_of(request: dict[str, Any], paths: list[str]) -> int:
    """Runs the program and returns its exit status, as Python would."""
    try:
        _run(request, paths)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """Ends the process as the interpreter does, without freeing its modules."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).exit(status)
    raise AssertionError("exit() returned")


def main() -> None:
    """Serves; in forked processes: runs a program."""
    paths = sys.path[1:]
    requests = socket.socket(fileno=int(sys.argv[1]))
    import tensorflow as tf

    assert tf.keras.layers.Dense  # imports Keras, which TensorFlow imports at its first use
    # A garbage collection in a forked program would take 0.4 s and copy most of this process's memory.
    gc.collect()
    gc.freeze()
    request = _serve(requests)
    if request is not None:
        _end(_status_of(request, paths))


if __name__ == "__main__":
    main()
