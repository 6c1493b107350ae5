"""Compiles and links C++ as GCC does, but for an older glibc and libstdc++ than this machine's.

    CXX="python tools/old_glibc/cxx.py" python tools/native.py --variant=portable

GXX names another GCC than g++. The interpreter must have the package `ziglang`, whose parts this program uses:

- GCC compiles with glibc's headers of the old version, which Zig contains.
- Zig's linker links with stubs of that glibc, so that every symbol has the version that it had there.

GCC's libstdc++ gets a stub, too. It has the symbols up to the version of the old libstdc++, so a newer one is an error
of the linker. newer_libstdcxx.cc defines those that the headers of a newer GCC need.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parent.parent / "build/native/old_glibc"
GLIBC = (2, 28)
# The newest versions of symbols in libstdc++ that PEP 600's policy manylinux_2_28 permits: those of GCC 7.
LIBSTDCXX = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
GXX = os.environ.get("GXX") or "g++"
STUB, NEWER = WORK / "libstdc++.so.6", WORK / "newer_libstdcxx.o"

SECTIONS = {"FUNC": ".text", "OBJECT": ".data", "TLS": '.section .tbss,"awT",@nobits'}
TYPES = {"FUNC": "function", "OBJECT": "object", "TLS": "tls_object"}


def _output(*command: str) -> str:
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout


@functools.cache
def _zig() -> Path:
    try:
        import ziglang  # only this program's interpreter has it
    except ImportError:
        sys.exit(f"{sys.executable} has no Zig. Install it with: {sys.executable} -m pip install ziglang")
    return Path(ziglang.__file__).parent


def _file_of_gcc(name: str) -> str:
    return _output(GXX, f"-print-file-name={name}").strip()


def _search_path() -> list[str]:
    """Returns GCC's folders of headers, without those of this machine's C library."""
    command = [GXX, "-std=c++17", "-E", "-x", "c++", "-v", "/dev/null"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    folders = listed.split("#include <...> search starts here:\n")[1].split("End of search list.")[0].split()
    return [folder for folder in folders if "c++" in folder or "/gcc/" in folder]


def compile_flags() -> list[str]:
    """Returns the flags that replace this machine's C headers by those of the old glibc."""
    headers = _zig() / "lib/libc/include"
    folders = [HERE / "include", *_search_path()]
    folders += [headers / name for name in ("x86-linux-gnu", "generic-glibc", "x86-linux-any", "any-linux-any")]
    if missing := [str(folder) for folder in folders if not Path(folder).is_dir()]:
        sys.exit(f"folders of headers are missing: {', '.join(missing)}. Install ziglang 0.17.1")
    flags = ["-nostdinc", f"-D__GLIBC_MINOR__={GLIBC[1]}", "-include", str(HERE / "prelude.h")]
    return flags + [flag for folder in folders for flag in ("-isystem", str(folder))]


def stub_sources(symbols: str) -> tuple[str, str]:
    """Returns the assembler source and the version script of a library with the permitted symbols.

    Args:
        symbols: What `readelf --dyn-syms --wide` prints of a libstdc++.
    """
    newest: dict[str, tuple[tuple[int, ...], str, str, int]] = {}
    for line in symbols.splitlines():
        match = re.fullmatch(r"\s*\d+: \w+\s+(\w+)\s+(\w+)\s+\w+\s+\w+\s+(\w+) (\S+?)@@?(\w+?)_([\d.]+)\s*", line)
        if match is None or match[2] not in TYPES or match[3] == "UND":
            continue
        number = tuple(map(int, match[6].split(".")))
        if number > LIBSTDCXX.get(match[5], ()):
            continue
        found = (number, f"{match[5]}_{match[6]}", match[2], int(match[1], 0))
        newest[match[4]] = max(found, newest.get(match[4], found))
    source, versions = [], dict[str, list[str]]()
    for name, (_, version, kind, size) in newest.items():
        source.append(f"{SECTIONS[kind]}\n.globl {name}\n.type {name}, @{TYPES[kind]}\n.size {name}, {size}\n{name}:")
        source.append(f".skip {max(size, 1) if kind != 'FUNC' else 1}")
        versions.setdefault(version, []).append(name)
    script = "".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in sorted(versions.items()))
    return "\n".join(source) + "\n", script


def _prepare() -> None:
    """Makes the stub of libstdc++ and the object with newer functions, unless they are newer than this folder."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inputs = [Path(_file_of_gcc("libstdc++.so.6")), *HERE.rglob("*.*")]
        newest = max(path.stat().st_mtime_ns for path in inputs)
        if all(path.exists() and path.stat().st_mtime_ns > newest for path in (NEWER, STUB)):
            return
        source, script = stub_sources(_output("readelf", "--dyn-syms", "--wide", str(inputs[0])))
        assembler, versions = WORK / "stub.s", WORK / "stub.map"
        assembler.write_text(source)
        versions.write_text(script)
        flags = ["-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6", f"-Wl,--version-script={versions}"]
        _output(GXX, *flags, str(assembler), "-o", str(STUB))
        flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", *compile_flags()]
        _output(GXX, *flags, "-c", str(HERE / "newer_libstdcxx.cc"), "-o", str(NEWER))


def link_command(arguments: list[str]) -> list[str]:
    """Returns the command that links with the old libraries."""
    target = f"x86_64-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    libraries = [str(NEWER), str(STUB), _file_of_gcc("libgcc.a"), _file_of_gcc("libgcc_s.so.1")]
    # libpthread is a dependency, because with an old glibc, mutexes do nothing in a process without it.
    return [str(_zig() / "zig"), "cc", "-target", target, *arguments, *libraries, "-lpthread"]


def main() -> None:
    """Replaces this process by the compiler or the linker."""
    arguments = sys.argv[1:]
    if "-c" in arguments:
        command = [GXX, *compile_flags(), *arguments]
    else:
        _prepare()
        command = link_command(arguments)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
