"""Wheels need an old glibc and libstdc++ only, and one Python of each version builds them."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import cxx
import pytest

import wheels

SYMBOLS = """
Symbol table '.dynsym' contains 9 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.14 (3)
     2: 00000000000a1b20    17 FUNC    GLOBAL DEFAULT   13 wait@@GLIBCXX_3.4.30
     3: 00000000000a1b40    21 FUNC    GLOBAL DEFAULT   13 wait@GLIBCXX_3.4.11
     4: 00000000000a1b50    21 FUNC    GLOBAL DEFAULT   13 wait@GLIBCXX_3.4.9
     5: 00000000000a1c50    30 FUNC    WEAK   DEFAULT   13 path@@GLIBCXX_3.4.26
     6: 0000000000000010     8 TLS     GLOBAL DEFAULT   20 once@@GLIBCXX_3.4.11
     7: 0000000000221b40  0x28 OBJECT  WEAK   DEFAULT   22 vtable@@CXXABI_1.3
     8: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS CXXABI_1.3
"""


def compiled(folder: Path, name: str, source: str) -> Path:
    """Compiles a shared library. Returns its path."""
    (folder / f"{name}.c").write_text(source)
    library = folder / f"{name}.so"
    subprocess.run(["gcc", "-shared", "-fPIC", folder / f"{name}.c", "-o", library], check=True)
    return library


def packed(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """Packs files as a wheel. Returns its path."""
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return folder / name


def test_the_stub_has_the_newest_permitted_version_of_each_symbol() -> None:
    source, script = cxx.stub_sources(SYMBOLS)
    assert script == "CXXABI_1.3 { vtable; };\nGLIBCXX_3.4.11 { wait; once; };\n"
    assert re.findall(r"^\.type (.*)$", source, re.MULTILINE) == [
        "wait, @function",
        "once, @tls_object",
        "vtable, @object",
    ]
    assert ".size vtable, 40\n" in source


def test_symbols_of_a_newer_glibc_or_libstdcxx_are_named() -> None:
    needed = SYMBOLS.replace(
        "00 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.14", "00 FUNC GLOBAL DEFAULT UND f@GLIBC_2.28"
    )
    assert wheels.newer_symbols(needed) == []
    newer = ["stat@GLIBC_2.33", "wait@GLIBCXX_3.4.30", "x@CXXABI_1.3.13"]
    lines = "".join(f"    9: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND {name} (5)\n" for name in newer)
    assert wheels.newer_symbols(needed + lines + " UND unwind@GCC_3.0 (2)\n UND TF_NewStatus\n") == newer


def test_a_wheel_that_needs_a_newer_glibc_is_refused(tmp_path: Path) -> None:
    old = compiled(tmp_path, "old", "int f(void) { return 1; }").read_bytes()
    versions = tmp_path / "versions"
    versions.write_text("GLIBC_2.99 { f; };")
    newer = ["gcc", "-shared", "-Wl,-soname,libc.so.6", f"-Wl,--version-script={versions}", "-o", tmp_path / "newer.so"]
    subprocess.run([*newer, "-fPIC", tmp_path / "old.c"], check=True)
    (tmp_path / "new.c").write_text("int f(void); int g(void) { return f(); }")
    command = ["gcc", "-shared", "-fPIC", tmp_path / "new.c", tmp_path / "newer.so", "-o", tmp_path / "new.so"]
    subprocess.run(command, check=True)
    files = {f"p/{name}.so": old for name in ("_ops_lib", "_table.cpython-311", "libtsps_serving")}
    wheels.check_symbols(packed(tmp_path, "good.whl", files))
    files["p/_ops_lib.so"] = (tmp_path / "new.so").read_bytes()
    with pytest.raises(SystemExit, match=r"p/_ops_lib\.so in bad\.whl needs newer symbols .*: f@GLIBC_2\.99"):
        wheels.check_symbols(packed(tmp_path, "bad.whl", files))


def test_a_wheel_with_tensorflows_library_is_refused(tmp_path: Path) -> None:
    library = compiled(tmp_path, "library", "int f(void) { return 1; }").read_bytes()
    names = ("p/_ops_lib.so", "p/_table.cpython-311.so", "p/lib/libtsps_serving.so")
    foreign = "p.libs/libtensorflow_framework.so.2"
    wheel = packed(tmp_path, "foreign.whl", dict.fromkeys([*names, foreign], library))
    with pytest.raises(SystemExit, match=r"three shared objects .*libtensorflow_framework"):
        wheels.check_symbols(wheel)


def test_wheels_of_different_builds_are_refused(tmp_path: Path) -> None:
    first = packed(tmp_path, "first.whl", {"p/_ops_lib.so": b"1", "p/_table.cpython-310.so": b"1"})
    same = packed(tmp_path, "same.whl", {"p/_ops_lib.so": b"1", "p/_table.cpython-311.so": b"2"})
    other = packed(tmp_path, "other.whl", {"p/_ops_lib.so": b"2", "p/_table.cpython-312.so": b"3"})
    wheels.check_same_ops([first, same])
    with pytest.raises(SystemExit, match=r"first\.whl and other\.whl differ in p/_ops_lib\.so"):
        wheels.check_same_ops([first, same, other])


def test_interpreters_are_found_by_their_version() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert wheels.find_pythons([sys.executable]) == {version: sys.executable}
    with pytest.raises(SystemExit, match="are both Python"):
        wheels.find_pythons([sys.executable, sys.executable])
    with pytest.raises(SystemExit, match=r"Received: /nowhere/python, no interpreter"):
        wheels.find_pythons(["/nowhere/python"])
    with pytest.raises(SystemExit, match=r"Received: true, no interpreter"):
        wheels.find_pythons(["true"])
