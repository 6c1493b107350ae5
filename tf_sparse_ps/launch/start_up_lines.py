"""`StartUpFilter`: removes the lines that TensorFlow writes to stderr when it is imported (tested with 2.15 and 2.21).

TF_CPP_MIN_LOG_LEVEL does not silence all of them, because TensorFlow writes some before it reads the variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_ABSL = rb"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
_REBUILD = rb"To enable the following instructions: "
_START_UP = re.compile(
    re.escape(_ABSL) + rb"$"
    rb"|(?:[IWE]\d{4} [\d:. ]+|\d{4}-\d\d-\d\d [\d:.]+: [IWE] )\S*?(?:"
    rb"port\.cc:\d+\] oneDNN custom operations are on\."
    rb"|cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized "
    rb"|cudart_stub\.cc:\d+\] Could not find cuda drivers"
    rb"|cuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu(?:FFT|DNN|BLAS) factory"
    rb"|computation_placer\.cc:\d+\] computation placer already registered"
    rb"|cuda_(?:executor|platform)\.cc:\d+\] failed call to cuInit"
    rb"|utils\.cc:\d+\] TF-TRT Warning: Could not find TensorRT)"
    rb"|" + re.escape(_REBUILD) + rb".* rebuild TensorFlow with the appropriate compiler flags\.$"
)
# The beginning of such a line, whose rest was not read yet.
_BEGIN = re.compile(rb"[IWE]\d{0,4}|[IWE]\d{4} .*|\d{1,4}|\d{4}-[-\d]{0,5}|\d{4}-\d\d-\d\d .*")


def is_start_up(line: bytes) -> bool:
    """Returns whether a line, without its end, is one of TensorFlow's start-up lines."""
    return _START_UP.match(line) is not None


class StartUpFilter:
    """Passes bytes on without start-up lines. It holds back only a line that may become one, until the line ends."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        """Sets the function that gets the bytes."""
        self._take, self._held, self._at_begin = take, b"", True

    def __call__(self, part: bytes) -> None:
        """Takes the next bytes."""
        *lines, rest = (self._held + part).split(b"\n")
        passed = []
        for line in lines:
            if not (self._at_begin and is_start_up(line.rstrip(b"\r"))):
                passed.append(line + b"\n")
            self._at_begin = True
        self._held = rest if self._at_begin and _may_become_start_up(rest) else b""
        if rest and not self._held:
            passed.append(rest)
            self._at_begin = False
        if passed:
            self._take(b"".join(passed))

    def end(self) -> None:
        """Handles the end of the bytes."""
        if self._held:
            self._take(self._held)
            self._held = b""


def _may_become_start_up(rest: bytes) -> bool:
    is_known_text = any(text.startswith(rest) or rest.startswith(text) for text in (_ABSL, _REBUILD))
    return bool(rest) and len(rest) < 4096 and (is_known_text or _BEGIN.fullmatch(rest) is not None)
