"""The PEP 517 backend: that of setuptools, which also requires TensorFlow if it is not installed.

A fixed `build-system.requires = ["tensorflow"]` would install a second TensorFlow into every isolated build. This
backend requires TensorFlow only if the environment for which the package is built has none. It never changes the
TensorFlow of that environment.

tools/wheels.py builds wheels for several Pythons with these settings (pip's --config-settings):

    variant=NAME          compiles this variant of tools/native.py
    tensorflow=FOLDER     compiles with this package `tensorflow`, which may be one for another Python
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta

sys.path.insert(0, str(Path(__file__).resolve().parent))

import native

build_editable = build_meta.build_editable
build_sdist = build_meta.build_sdist
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def _configure(config_settings: Any) -> dict[str, Any]:
    """Applies the settings of this project. Returns the other ones, which are those of setuptools."""
    settings = dict(config_settings or {})
    variant, folder = settings.pop("variant", ""), settings.pop("tensorflow", "")
    if variant and variant not in native.VARIANTS:
        raise native.BuildError(f"variant must be one of {', '.join(native.VARIANTS)}. Received: {variant}")
    if folder and not (Path(folder) / "include/tensorflow/c/kernels.h").is_file():
        raise native.BuildError(f"tensorflow must be a folder with TensorFlow's headers. Received: {folder}")
    native.package_variant = variant or native.package_variant
    native.tensorflow_folder = Path(folder) if folder else native.tensorflow_folder
    return settings


def _with_tensorflow(requirements: list[str]) -> list[str]:
    if native.tensorflow_package() is None:
        (low_major, low_minor), (high_major, high_minor) = native.TENSORFLOW_RANGE
        requirements = [
            *requirements,
            f"tensorflow-cpu>={low_major}.{low_minor},<{high_major}.{high_minor + 1}",
        ]
    return requirements


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Returns the requirements of setuptools, and TensorFlow if it is missing."""
    settings = _configure(config_settings)
    return _with_tensorflow(build_meta.get_requires_for_build_wheel(settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """Writes the metadata of the wheel. Returns the name of their folder."""
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, _configure(config_settings))


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Builds a wheel. Returns the name of its file."""
    return build_meta.build_wheel(wheel_directory, _configure(config_settings), metadata_directory)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Returns the requirements of setuptools, and TensorFlow if it is missing."""
    return _with_tensorflow(build_meta.get_requires_for_build_editable(config_settings))
