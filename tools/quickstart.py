"""Runs the programs and commands of docs/quickstart.md in an environment with an installed wheel and no compiler.

    env -i PATH=VENV/bin:FOLDER VENV/bin/python tools/quickstart.py

tools/wheel_smoke.sh runs this program with the environment of a wheel.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/docs"))

from pages import ROOT, blocks  # needs the line above

PAGE = ROOT / "docs/quickstart.md"
COMPILERS = ("cc", "c++", "cpp", "gcc", "g++", "clang", "clang++", "nvcc", "ld")
TIMEOUT_S = 300


def programs_and_commands() -> tuple[dict[str, str], list[str]]:
    """Returns the programs of the page by their names, and the commands that run each of them."""
    programs: dict[str, str] = {}
    for block in blocks(PAGE, "python"):
        programs[block.program] = programs.get(block.program, "") + block.code + "\n"
    lines = [line for block in blocks(PAGE, "sh") for line in block.code.splitlines()]
    commands = [line for name in programs for line in [line for line in lines if name in line] or [f"python {name}"]]
    return programs, commands


def main() -> None:
    """Runs the commands in a new folder, and prints a line with their time."""
    if found := [name for name in COMPILERS if shutil.which(name)]:
        sys.exit(f"this environment must have no compiler on PATH. Found: {', '.join(found)}")
    programs, commands = programs_and_commands()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tfsps-quickstart-") as folder:
        for name, code in programs.items():
            (Path(folder) / name).write_text(code)
        environment = {**os.environ, "TFSPS_DIR": f"{folder}/tables"}
        for command in commands:
            done = subprocess.run(
                shlex.split(command),
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                sys.exit(f"{command} ended with status {done.returncode}:\n{done.stdout[-6000:]}")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow-cpu", "keras")]
    python = ".".join(map(str, sys.version_info[:3]))
    seconds = time.monotonic() - start
    print(f"quick start: {len(commands)} commands under Python {python} with {', '.join(versions)} ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
