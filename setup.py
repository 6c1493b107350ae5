"""Builds the shared objects with tools/native.py; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

import native


class BuildNative(build_ext):
    """Leaves compiling to tools/native.py, whose objects are shared by every build of this checkout."""

    def get_ext_filename(self, fullname: str) -> str:
        package, _, name = fullname.rpartition(".")
        return os.fspath(native.extension_path(name, Path(*package.split("."), native.EXTENSIONS[name])))

    def run(self) -> None:
        if self.inplace:  # replaces each file in one step: running processes keep the one they have mapped
            native.build_package("release")
        else:
            super().run()

    def build_extension(self, ext: Extension) -> None:
        package, _, name = ext.name.rpartition(".")
        native.build_extension(name, Path(self.build_lib).resolve().joinpath(*package.split(".")))


setup(
    ext_modules=[Extension(f"tf_sparse_ps.{name}", sources=[]) for name in native.EXTENSIONS],
    cmdclass={"build_ext": BuildNative},
)
