"""One export or import of the suite `rows`, in a process of its own. Prints its seconds and MiB of memory as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from benchmarks import harness


def main() -> None:
    """Runs `export SOURCE FILE` or `import FILE TARGET`."""
    # The modules, pyarrow among them, are loaded before the clock runs.
    import pyarrow.parquet  # noqa: F401

    from tf_sparse_ps.rows import export_rows, import_rows  # measured from here on, not while they load

    action, first, second = sys.argv[1:]
    began_with, most, end = harness.anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not end.wait(0.01):
            most = max(most, harness.anonymous_bytes())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    began = time.perf_counter()
    if action == "export":
        export_rows(first, second, progress=False)
    else:
        import_rows(first, Path(second), progress=False)
    seconds = time.perf_counter() - began
    end.set()
    watching.join()
    print(json.dumps({"seconds": seconds, "mib": (most - began_with) / 2**20}))


if __name__ == "__main__":
    main()
