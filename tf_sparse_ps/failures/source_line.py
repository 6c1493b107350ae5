"""The line of the user's program that the main thread executes."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading

_LONGEST = 80
_LIBRARY_FOLDERS = tuple(
    {
        os.path.join(os.path.realpath(path), "")
        for path in (
            os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        )
    }
)


def of_main_thread() -> str:
    """Returns the innermost line outside of libraries, as "line 12 of train.py: model.fit(x, y)"; "" without one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<frozen") and not os.path.realpath(file).startswith(_LIBRARY_FOLDERS):
            text = linecache.getline(file, frame.f_lineno).strip()
            text = text[:_LONGEST] + "..." * (len(text) > _LONGEST)
            return f"line {frame.f_lineno} of {os.path.basename(file)}" + (f": {text}" if text else "")
        frame = frame.f_back
    return ""
