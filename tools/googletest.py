"""Finds GoogleTest's sources, which are compiled with the flags of each test build (sanitizers need that).

PyPI has no GoogleTest. In this order: GTEST_DIR; Debian's package where it is installed; the same package downloaded
with apt and unpacked under build/, which needs no root and changes nothing on the machine. Where there is none, a line
that starts with SKIPPED says so and the program ends without an error.
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
    """The folder that holds src/gtest-all.cc and include/."""
    unpacked = UNPACKED / INSTALLED.relative_to("/")
    wanted = os.environ.get("GTEST_DIR")
    candidates = [Path(wanted)] if wanted else [INSTALLED, unpacked]

    def first() -> Path | None:
        return next((path for path in candidates if (path / "src/gtest-all.cc").is_file()), None)

    found = first()
    if found is None and not wanted:
        _download()
        found = first()
    if found is None:
        print(
            "SKIPPED: the C++ tests: GoogleTest is neither installed nor to be had with apt "
            f"(looked in {', '.join(map(str, candidates))}; GTEST_DIR names another place)",
            flush=True,
        )
        sys.exit(0)
    return found


if __name__ == "__main__":
    print(googletest_source())
