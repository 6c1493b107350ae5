"""Finds the sources of GoogleTest, which each test build compiles with its flags, because sanitizers need that.

PyPI has no GoogleTest. The program looks in GTEST_DIR, then for Debian's installed package. Then it downloads this
package with apt and unpacks it in build/, which needs no root and does not change the machine. If all of this fails, it
prints a line that starts with SKIPPED and exits without an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = Path("/usr/src/googletest/googletest")
UNPACKED = ROOT / "build/googletest"


def _download() -> None:
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        return
    folder = UNPACKED / "deb"
    folder.mkdir(parents=True, exist_ok=True)

    def apt(*arguments: str) -> bool:
        return subprocess.run(["apt-get", "-qq", *arguments], cwd=folder, capture_output=True).returncode == 0

    if not apt("download", "googletest") and os.geteuid() == 0 and apt("update"):
        apt("download", "googletest")
    for package in folder.glob("googletest_*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(UNPACKED)], check=True)


def googletest_source() -> Path:
    """Returns the folder that contains src/gtest-all.cc and include/. Exits if it finds none."""
    unpacked = UNPACKED / INSTALLED.relative_to("/")
    wanted = os.environ.get("GTEST_DIR")
    candidates = [Path(wanted)] if wanted else [INSTALLED, unpacked]

    def find() -> Path | None:
        return next((path for path in candidates if (path / "src/gtest-all.cc").is_file()), None)

    folder = find()
    if folder is None and not wanted:
        _download()
        folder = find()
    if folder is None:
        print(
            "SKIPPED: the C++ tests: GoogleTest is not installed, and apt cannot download it. Set GTEST_DIR to its "
            f"folder. Searched: {', '.join(map(str, candidates))}",
            flush=True,
        )
        sys.exit(0)
    return folder


if __name__ == "__main__":
    print(googletest_source())
