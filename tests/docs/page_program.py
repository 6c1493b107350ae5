"""One rank that runs a program of a page: its blocks of Python, in order.

Arguments: the page, the program's name, the folder to work in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pages import blocks


def main() -> None:
    """Runs the blocks as one module. Tracebacks name the page and its lines."""
    page, program, folder = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__", "os": os}
    for block in blocks(page, "python"):
        if block.program == program and not block.skipped:
            exec(block.setup, names)
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


if __name__ == "__main__":
    main()
