"""What the process that starts the ranks shows of them: their messages and one progress bar."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

VARIABLE = "EXAMPLE_PROGRESS"  # path of the pipe through which rank 0 tells its progress
_PREFIX = re.compile(rb"^(?:\[\d+\]<std(?:err|out)>: ?)*")  # horovodrun's, which rank a line is from
# What TensorFlow writes to stderr when it is imported; nothing else is left out.
_START_UP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    rb"|(?:[IWE]\d{4} [\d:. ]+|\d{4}-\d\d-\d\d [\d:.]+: [IWE] )\S*?(?:"
    rb"port\.cc:\d+\] oneDNN custom operations are on\."
    rb"|cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized "
    rb"|cudart_stub\.cc:\d+\] Could not find cuda drivers"
    rb"|cuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu(?:FFT|DNN|BLAS) factory"
    rb"|computation_placer\.cc:\d+\] computation placer already registered"
    rb"|cuda_(?:executor|platform)\.cc:\d+\] failed call to cuInit"
    rb"|utils\.cc:\d+\] TF-TRT Warning: Could not find TensorRT)"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\.$"
)


def is_start_up(line: bytes) -> bool:
    """Whether a line of stderr, without its end, is one that TensorFlow writes whenever it is imported."""
    return _START_UP.match(_PREFIX.sub(b"", line, count=1)) is not None


class Terminal:
    """Shows what a job writes to stderr, above the bar that its rank 0 asks for.

    Args:
        folder: for the pipe, removed by the caller.
        log: gets every line, those that are not shown, too.
    """

    def __init__(self, folder: Path, log: IO[bytes]) -> None:
        self.pipe = folder / "progress"
        os.mkfifo(self.pipe, 0o600)
        # For reading and writing: then opening it does not wait, and it has no end.
        self._progress = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK)
        self._log = log
        self._bar: Any = None
        self._rest = {"stderr": b"", "progress": b""}

    def show(self, job: subprocess.Popen[bytes]) -> None:
        """Returns when the job's stderr, a pipe, has ended."""
        assert job.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(job.stderr, selectors.EVENT_READ)
            selector.register(self._progress, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._progress in ready:
                    self._take_progress()
                if job.stderr.fileno() in ready:
                    part = os.read(job.stderr.fileno(), 1 << 16)
                    if not part:
                        break
                    self._take_messages(part)
        self._take_messages(b"\n" if self._rest["stderr"] else b"")
        self._take_progress()

    def close(self) -> None:
        """Closes the bar and the pipe."""
        if self._bar is not None:
            self._bar.close()
        os.close(self._progress)

    def _lines(self, source: str, part: bytes) -> list[bytes]:
        *lines, self._rest[source] = (self._rest[source] + part).split(b"\n")
        return lines

    def _take_messages(self, part: bytes) -> None:
        for line in self._lines("stderr", part):
            self._log.write(line + b"\n")
            if not is_start_up(line.rstrip(b"\r")):
                self._say(line.decode(errors="backslashreplace"))
        self._log.flush()

    def _take_progress(self) -> None:
        try:
            part = os.read(self._progress, 1 << 16)
        except BlockingIOError:
            return
        for line in self._lines("progress", part):
            message = json.loads(line)
            if "options" in message:
                self._bar = new_bar(**message["options"])
            elif "text" in message:
                self._say(message["text"])
            elif "done" in message:
                self._bar.set_postfix_str(message["postfix"], refresh=False)
                self._bar.update(message["done"] - self._bar.n)
            else:
                self._bar.close()

    def _say(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)


class RemoteBar:
    """The part of tqdm's interface that `Progress` uses, drawn by the process that started this one."""

    def __init__(self, pipe: str, **options: Any) -> None:
        self._pipe = open(pipe, "w", buffering=1)  # noqa: SIM115 - closed by close()
        self._done = 0
        self._postfix = ""
        self._send(options=options)

    def update(self, n: int) -> None:
        """Advances the bar."""
        self._done += n
        self._send(done=self._done, postfix=self._postfix)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Sets what stands behind the bar, from the next update on."""
        self._postfix = text

    def write(self, text: str, file: Any = None) -> None:
        """Writes a line above the bar."""
        self._send(text=text)

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._send(close=True)
        self._pipe.close()

    def _send(self, **message: Any) -> None:
        self._pipe.write(json.dumps(message) + "\n")


def attached() -> bool:
    """Whether the process that started this one shows what it has to say."""
    return VARIABLE in os.environ


def new_bar(**options: Any) -> Any:
    """A tqdm bar on stderr; behind a pipe, where every refresh is a line in somebody's log, with fewer of them."""
    terminal = sys.stderr.isatty()
    return tqdm(mininterval=0.5 if terminal else 5.0, dynamic_ncols=terminal, **options)


def bar(*, show: bool, **options: Any) -> Any:
    """The bar of a rank: in the terminal of the process that started it, if that is listening."""
    if show and attached():
        return RemoteBar(os.environ[VARIABLE], **options)
    return new_bar(disable=not show, **options)
