"""Compiles the C++ of tf_sparse_ps, for setup.py, the C++ tests and the sanitizers.

    python tools/native.py                          compiles the shared objects into tf_sparse_ps/
    python tools/native.py --variant=crash          adds fault points, into build/native/crash/tf_sparse_ps/
    python tools/native.py --variant=debug test     compiles and runs the C++ tests
    python tools/native.py bench ARGUMENTS          compiles and runs cc/bench
    python tools/native.py core                     compiles the objects of cc/core, which need no TensorFlow
    python tools/native.py --variant=debug compile-test     compiles the C++ tests

Objects are in build/native/VARIANT/. They are compiled again only if their source, an included header or their command
line has changed. This module does not import TensorFlow; it finds TensorFlow's headers and library by path.

The compiler reads up to GROUP_SIZE sources of a folder as one source, because it spends most of its time on headers,
which neighbouring sources share. Names in anonymous namespaces must therefore be unique in their folder.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TENSORFLOW_RANGE = ((2, 15), (2, 21))
GROUP_SIZE = 6

# There is no -march, because a wheel must run everywhere. Hot loops choose their instructions at load time
# (target_clones). Fused multiply-add is off, because results must not depend on the processor, or the nodes of a job
# would drift apart. -fno-math-errno changes no value, and without it no loop with a square root is vectorized.
COMMON = shlex.split(
    "-std=c++17 -fPIC -pthread -fvisibility=hidden -ffp-contract=off -fno-fast-math -fno-math-errno -Wall -Wextra -Icc"
)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A set of compiler flags. The objects of each variant are in a separate folder."""

    compile: str
    link: str = ""
    env: tuple[tuple[str, str], ...] = ()


VARIANTS = {
    "release": Variant("-O3 -DNDEBUG", "-s"),
    "portable": Variant("-O3 -DNDEBUG", "-s"),  # the same, compiled by tools/old_glibc/cxx.py
    "crash": Variant("-O3 -DNDEBUG -DTFSPS_FAULT_POINTS"),
    # These variants compile loops for one set of instructions only (cc/core/base/simd.h).
    "baseline": Variant("-O3 -DNDEBUG -DTFSPS_FAULT_POINTS -DTFSPS_SIMD_BASELINE"),
    "avx2": Variant("-O3 -DNDEBUG -DTFSPS_FAULT_POINTS -DTFSPS_SIMD_AVX2"),
    "avx512": Variant("-O3 -DNDEBUG -DTFSPS_FAULT_POINTS -DTFSPS_SIMD_AVX512"),
    "debug": Variant("-O1 -g -DTFSPS_FAULT_POINTS"),
    "asan": Variant(
        "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined "
        "-DTFSPS_FAULT_POINTS",
        "-fsanitize=address,undefined",
        (
            ("ASAN_OPTIONS", "detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1"),
            ("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1"),
        ),
    ),
    "tsan": Variant(
        "-O1 -g -fsanitize=thread -DTFSPS_FAULT_POINTS",
        "-fsanitize=thread",
        (("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0"),),
    ),
}


# What tools/build_backend.py sets from pip's --config-settings: the variant in a wheel, and the folder of a TensorFlow
# that is not in the environment for which the package is built.
package_variant = "release"
tensorflow_folder: Path | None = None

# The shared objects of the package, and their folders in it.
EXTENSIONS = {"_ops_lib": ".", "_table": ".", "libtsps_serving": "lib"}


class BuildError(SystemExit):
    """The build failed. The message contains the remedy."""


# --- TensorFlow, by path ---------------------------------------------------------------------------------------------


def tensorflow_package() -> Path | None:
    """Returns `tensorflow_folder`, else the folder of the installed `tensorflow`, or None.

    The outer environment comes first: in pip's isolated build, `purelib` still names it, but sys.path does not.
    """
    if tensorflow_folder is not None:
        return tensorflow_folder
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    for folder in folders:
        package = Path(folder) / "tensorflow"
        if (package / "include/tensorflow/c/kernels.h").is_file():
            return package
    return None


def tensorflow_version(package: Path) -> str:
    """Returns the version in the metadata next to the package (`tensorflow`, `tensorflow_cpu`, ...)."""
    for metadata in package.parent.glob("tensorflow*-*.dist-info"):
        name, _, version = metadata.name.removesuffix(".dist-info").partition("-")
        if name in ("tensorflow", "tensorflow_cpu", "tensorflow_rocm", "tensorflow_cpu_aws"):
            return version
    raise BuildError(f"{package.parent} has no metadata of a TensorFlow distribution. Install TensorFlow with pip")


def require_tensorflow() -> Path:
    """Returns the folder of the installed `tensorflow`, whose version must be supported."""
    package = tensorflow_package()
    low, high = (".".join(map(str, bound)) for bound in TENSORFLOW_RANGE)
    if package is None:
        raise BuildError(f"tf_sparse_ps cannot be built without TensorFlow. Install TensorFlow {low} to {high}")
    version = tensorflow_version(package)
    if not TENSORFLOW_RANGE[0] <= tuple(int(part) for part in version.split(".")[:2]) <= TENSORFLOW_RANGE[1]:
        raise BuildError(f"tf_sparse_ps needs TensorFlow {low} to {high}. Install one of them. Received: {version}")
    return package


# --- compiling -------------------------------------------------------------------------------------------------------


def jobs() -> int:
    """Returns the number of compilers to run at once: MAX_JOBS, else make's -jN, else the available processors."""
    from_make = re.search(r"-j\s*(\d+)", os.environ.get("MAKEFLAGS", ""))
    wanted = os.environ.get("MAX_JOBS") or (from_make[1] if from_make else "")
    return max(1, int(wanted or len(os.sched_getaffinity(0))))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if done.stderr.strip():
        print(done.stderr.rstrip(), file=sys.stderr, flush=True)
    if done.returncode:
        raise BuildError(f"this command failed: {shlex.join(command)}")


def _signature(command: Sequence[str]) -> str:
    """Returns a hash of a command. It ignores the folder of pybind11, which changes with each isolated build of pip."""
    return hashlib.sha256(re.sub(r"[^\0]*/pybind11/include", "", "\0".join(command)).encode()).hexdigest()


def _is_current(output: Path, stamp: Path, signature: str, inputs: Iterable[Path]) -> bool:
    if not output.exists() or not stamp.exists() or stamp.read_text() != signature:
        return False
    built = output.stat().st_mtime_ns
    return all(path.exists() and path.stat().st_mtime_ns <= built for path in inputs)


def _dependencies(depfile: Path) -> list[Path]:
    """Returns the files in a Makefile rule that the compiler wrote with -MMD."""
    if not depfile.exists():
        return []
    _, _, files = depfile.read_text().replace("\\\n", " ").partition(":")
    return [ROOT / name.replace("\0", " ") for name in files.replace("\\ ", "\0").split()]


@dataclasses.dataclass(frozen=True)
class Unit:
    """Sources that are compiled together.

    Attributes:
        name: the path of the object in the folder of objects, without its suffix.
        sources: the sources.
        flags: flags in addition to those of the variant.
    """

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...] = ()


class Builder:
    """Compiles and links one variant in its folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variant = VARIANTS[name]
        self.folder = ROOT / "build/native" / name
        self.compiler = shlex.split(os.environ.get("CXX") or "g++")
        self.flags = [*COMMON, *shlex.split(self.variant.compile), *shlex.split(os.environ.get("CXXFLAGS", ""))]

    @functools.cached_property
    def tensorflow(self) -> Path:
        return require_tensorflow()

    @functools.cached_property
    def tensorflow_flags(self) -> list[str]:
        flags = ["-isystem", str(self.tensorflow / "include")]
        if self.name == "tsan":  # Eigen's queues use fences, which ThreadSanitizer does not support
            flags += ["-Wno-tsan"]
        # The version is in the command line, so that everything is compiled again for another TensorFlow.
        return [*flags, f"-DTFSPS_TENSORFLOW_HEADERS={tensorflow_version(self.tensorflow)}"]

    def _source(self, unit: Unit) -> Path:
        """Returns the file that the compiler reads for a unit: its only source, or a file that includes all sources."""
        if len(unit.sources) == 1:
            return unit.sources[0]
        source = self.folder / "obj" / f"{unit.name}.cc"
        text = "".join(f'#include "{path.relative_to(ROOT / "cc")}"\n' for path in unit.sources)
        if not source.exists() or source.read_text() != text:
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(text)
        return source

    def objects(self, units: Sequence[Unit]) -> list[Path]:
        """Compiles outdated units, several at a time. Returns the objects in the order of the units."""
        plan = []
        outputs = []
        for unit in units:
            source = self._source(unit)
            output = self.folder / "obj" / f"{unit.name}.o"
            command = [*self.compiler, *self.flags, *unit.flags, "-MMD", "-MF", str(output.with_suffix(".d"))]
            command += ["-c", str(source), "-o", str(output)]
            signature = _signature(command)
            depends = [source, *unit.sources, *_dependencies(output.with_suffix(".d"))]
            stamp = output.with_suffix(".sig")
            outputs.append(output)
            if not _is_current(output, stamp, signature, depends):
                plan.append((unit.sources, output, stamp, signature, command))

        def compile_unit(item: tuple[Sequence[Path], Path, Path, str, list[str]]) -> None:
            _, output, stamp, signature, command = item
            output.parent.mkdir(parents=True, exist_ok=True)
            stamp.unlink(missing_ok=True)
            start = time.time_ns()
            _run(command)
            os.utime(output, ns=(start, start))  # so a header that changes during compilation is newer
            stamp.write_text(signature)

        if plan:
            names = [source.name for sources, *_ in plan for source in sources]
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if names[6:] else "")
            print(f"c++ [{self.name}]: {shown}", flush=True)
            with concurrent.futures.ThreadPoolExecutor(jobs()) as pool:
                futures = [pool.submit(compile_unit, item) for item in plan]
                try:
                    for future in concurrent.futures.as_completed(futures):
                        future.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        return outputs

    def link(self, output: Path, objects: Sequence[Path], flags: Sequence[str]) -> Path:
        """Links if an object is newer. It replaces the old file, which processes may have mapped, by a new one."""
        command = [*self.compiler, *map(str, objects), "-pthread", *shlex.split(self.variant.link), *flags]
        signature = _signature(command)
        stamp = self.folder / "obj" / f"{output.name}.link"
        if not _is_current(output, stamp, signature, objects):
            print(f"link [{self.name}]: {output.name}", flush=True)
            stamp.parent.mkdir(parents=True, exist_ok=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            stamp.unlink(missing_ok=True)
            temporary = output.with_name(f"{output.name}.{os.getpid()}.tmp")
            try:
                _run([*command, "-o", str(temporary)])
                os.replace(temporary, output)
            finally:
                temporary.unlink(missing_ok=True)
            stamp.write_text(signature)
        return output

    # --- targets ---

    def layer(self, name: str, flags: Sequence[str] = (), tag: str = "") -> list[Unit]:
        """Returns the units of a folder of cc/. Only those of core are compiled without TensorFlow's flags.

        Args:
            name: the folder.
            flags: flags for the compiler.
            tag: a folder for the objects, to separate those of several Python versions.
        """
        folders: dict[Path, list[Path]] = {}
        for source in sorted((ROOT / "cc" / name).rglob("*.cc")):
            folders.setdefault(source.parent, []).append(source)
        if not folders:
            raise BuildError(f"{ROOT / 'cc' / name} has no sources")
        if name != "core":
            flags = [*flags, *self.tensorflow_flags]
        size = 1 if name == "tests" else GROUP_SIZE  # helpers of tests often have the same name
        units = []
        for folder, sources in folders.items():
            for i in range(0, len(sources), size):
                name_of_object = Path(tag) / folder.relative_to(ROOT) / sources[i].stem
                units.append(Unit(str(name_of_object), tuple(sources[i : i + size]), tuple(flags)))
        return units

    def core(self) -> list[Path]:
        """Compiles the objects of core, which do not need an installed TensorFlow."""
        return self.objects(self.layer("core"))

    def ops_library(self, output: Path) -> Path:
        """Builds the library of TensorFlow ops, which has no Python symbols."""
        objects = self.objects(self.layer("core") + self.layer("executor") + self.layer("kernels"))
        # The dependency is a file name without an RPATH, because TensorFlow loads its own library before ours. Without
        # the dependency, loading fails on TensorFlow 2.15 and 2.16, which load with RTLD_LOCAL.
        flags = ["-shared", "-Wl,--no-undefined", f"-L{self.tensorflow}", "-l:libtensorflow_framework.so.2"]
        return self.link(output, objects, flags)

    def python_layer(self) -> list[Unit]:
        """Returns the units of cc/python."""
        header = Path(sysconfig.get_path("include")) / "Python.h"
        if not header.exists():
            raise BuildError(f"{header} is missing. Install Python's development files (Debian: python3-dev)")
        import pybind11

        tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        flags = ["-isystem", str(header.parent), "-isystem", pybind11.get_include()]
        flags += [f"-DTFSPS_PYBIND11={pybind11.__version__}"]
        return self.layer("python", flags, tag)

    def table_module(self, output: Path) -> Path:
        """Builds the Python module, which has no TensorFlow symbols."""
        objects = self.objects(self.layer("core") + self.layer("executor") + self.python_layer())
        return self.link(output, objects, ["-shared"])

    def compile_package(self) -> None:
        """Compiles the objects of both shared objects at once, the slowest ones first, so that no processor waits."""
        self.objects(self.python_layer() + self.layer("kernels") + self.layer("executor") + self.layer("core"))

    def tests(self) -> Path:
        """Builds all C++ tests as one binary, so that GoogleTest is linked only once."""
        from googletest import googletest_source

        gtest = googletest_source()
        include = ("-isystem", str(gtest / "include"))
        units = self.layer("core") + self.layer("executor") + self.layer("tests", include)
        for name in ("gtest-all", "gtest_main"):
            units.append(Unit(f"gtest/{name}", (gtest / "src" / f"{name}.cc",), (*include, f"-I{gtest}")))
        return self.link(self.folder / "cc_tests", self.objects(units), [])

    def serving_library(self, output: Path) -> Path:
        """Builds the library of served tables for programs in C. It needs neither TensorFlow nor Python."""
        sources = tuple(sorted((ROOT / "cc/c_api").glob("*.cc")))
        include = f"-I{ROOT / 'tf_sparse_ps/include'}"
        objects = self.core() + self.objects([Unit("cc/c_api/tsps_serving", sources, (include,))])
        return self.link(output, objects, ["-shared", "-Wl,--no-undefined", "-Wl,--gc-sections"])

    def bench(self) -> Path:
        """Builds the C++ benchmarks."""
        objects = self.objects(self.layer("core") + self.layer("executor") + self.layer("bench"))
        return self.link(self.folder / "core_bench", objects, [])

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder, so that only one build uses it at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def extension_path(name: str, folder: Path) -> Path:
    """Returns the path of a shared object of the package. Only the Python module has the interpreter's suffix."""
    return folder / (name + (sysconfig.get_config_var("EXT_SUFFIX") if name == "_table" else ".so"))


def build_extension(name: str, folder: Path, variant: str = "") -> Path:
    """Builds a shared object of the package; of `package_variant`, if no other is named. Returns its path."""
    builder = Builder(variant or package_variant)
    libraries = {
        "_ops_lib": builder.ops_library,
        "_table": builder.table_module,
        "libtsps_serving": builder.serving_library,
    }
    build = libraries[name]
    with builder.lock():
        builder.compile_package()
        return build(extension_path(name, folder / EXTENSIONS[name]))


def build_package(variant: str) -> None:
    """Builds all shared objects next to the Python sources or, for other variants, next to a copy of the sources."""
    package = ROOT / "tf_sparse_ps"
    if variant != "release":
        package = ROOT / "build/native" / variant / "tf_sparse_ps"
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "tf_sparse_ps", package, dirs_exist_ok=True, ignore=ignore)
    for name in EXTENSIONS:
        build_extension(name, package, variant)
    if variant != "release":
        print(f"PYTHONPATH={package.parent}")


def run_tests(variant: str, arguments: Sequence[str]) -> int:
    """Builds and runs the C++ tests, in one process per processor. Returns 0 if all succeed."""
    builder = Builder(variant)
    with builder.lock():
        command = [str(builder.tests()), *arguments]
    shards = jobs()
    # GCC 12's ThreadSanitizer cannot place its shadow memory with the address randomization of recent kernels.
    if variant == "tsan" and shutil.which("setarch"):
        command = ["setarch", platform.machine(), "-R", *command]
    # In a forked process, ThreadSanitizer still has records of all threads of the parent, and it stops the process when
    # a new thread reuses one. So each test has its own process, in which no earlier test has started a thread.
    if variant == "tsan":
        listed = subprocess.run([*command, "--gtest_list_tests"], cwd=ROOT, text=True, capture_output=True, check=True)
        shards = sum(line.startswith("  ") for line in listed.stdout.splitlines())
    with concurrent.futures.ThreadPoolExecutor(jobs()) as pool:
        results = list(pool.map(lambda shard: _run_shard(builder, command, shard, shards), range(shards)))
    # GoogleTest's summary, for all shards
    print(f"[==========] {sum(result.ran for result in results)} tests in {shards} processes ran.")
    print(f"[  PASSED  ] {sum(result.passed for result in results)} tests.", flush=True)
    return next((result.status for result in results if result.status), 0)


@dataclasses.dataclass(frozen=True)
class ShardResult:
    """The exit status of a process that ran a part of the C++ tests, and its counts of tests."""

    status: int
    ran: int
    passed: int


def _run_shard(builder: Builder, command: list[str], shard: int, shards: int) -> ShardResult:
    env = {**os.environ, **dict(builder.variant.env)}
    env |= {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}
    last = ""
    ran = passed = 0
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if match := re.match(r"\[=+\] (\d+) tests? .*ran\.", line):
                ran = int(match[1])
            elif match := re.match(r"\[  PASSED  \] (\d+) tests?", line):
                passed = int(match[1])
            elif line.startswith(("[ RUN ", "[---")):  # the last test, in case that the process dies
                last = line.strip()
            elif line.strip() and not line.startswith(("[       OK ", "[=====", "Running main", "Note: ")):
                print(line, end="", flush=True)
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise BuildError(f"the C++ tests [{builder.name}] were killed by {name} in or after: {last}")
    if process.returncode and not ran:  # a sanitizer ended it
        print(f"the C++ tests [{builder.name}] ended with status {process.returncode} in or after: {last}", flush=True)
    return ShardResult(process.returncode, ran, passed)


def main() -> int:
    """Runs the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="?", choices=("package", "core", "test", "compile-test", "bench"), default="package"
    )
    parser.add_argument("--variant", choices=VARIANTS, default="release")
    options, rest = parser.parse_known_args()
    start = time.monotonic()
    if options.what == "test":
        return run_tests(options.variant, rest)
    if options.what == "bench":
        builder = Builder(options.variant)
        with builder.lock():
            program = builder.bench()
        return subprocess.run([str(program), *rest], cwd=ROOT).returncode
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if options.what != "package":
        builder = Builder(options.variant)
        build = builder.core if options.what == "core" else builder.tests
        with builder.lock():
            build()
        return 0
    build_package(options.variant)
    print(f"c++ [{options.variant}]: up to date ({time.monotonic() - start:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
