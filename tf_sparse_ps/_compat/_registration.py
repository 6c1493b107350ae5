"""Registers the layers and the optimizer of this package with Keras, so that Keras can load files that contain them.

Keras finds the class of a saved object by its registered name. A class is registered when its module is imported, and
Keras 3 does not import the module that a file names. But `import tf_sparse_ps` imports neither these modules nor
TensorFlow. Therefore this module imports them: at once if TensorFlow and Keras are imported, otherwise right after the
later of the two. It imports nothing in a process that does not use TensorFlow.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_AWAITED = ("tensorflow", "keras", "tf_keras")
_MODULES = ("tf_sparse_ps.layers", "tf_sparse_ps.training.distributed_optimizer")


def register_classes() -> None:
    """Imports the modules of all Keras classes, now or as soon as TensorFlow and Keras are imported."""
    if _both_imported():
        _import_modules()
    else:
        sys.meta_path.insert(0, _ImportWatch())


def _both_imported() -> bool:
    return "tensorflow" in sys.modules and not sys.modules.keys().isdisjoint({"keras", "tf_keras"})


def _import_modules() -> None:
    if _backend() != "tensorflow":
        return
    try:
        for module in _MODULES:
            importlib.import_module(module)
    except ImportError as error:  # a program that imports Keras may use only `tf_sparse_ps.table`, so this is no error
        warnings.warn(
            f"tf_sparse_ps: Keras cannot load models with tables in this process: {error}. Programs without such "
            "models can ignore this",
            stacklevel=2,
        )


def _backend() -> str:
    import tensorflow as tf  # already imported

    return str(tf.keras.backend.backend())


class _ImportWatch(importlib.abc.MetaPathFinder):
    """A finder that finds no module itself, and observes when TensorFlow and Keras have been imported.

    TensorFlow and Keras import each other, and modules of this package import them. The finder acts when the outermost
    of these imports has ended.
    """

    def __init__(self) -> None:
        self._running: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of the other finders, with a loader that reports the begin and the end of the import."""
        if name not in _AWAITED and not name.startswith("tf_sparse_ps."):
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _ReportingLoader(spec.loader, self._begun, self._ended)
                return spec
        return None

    def _begun(self, name: str) -> None:
        self._running.add(name)

    def _ended(self, name: str, imported: bool) -> None:
        self._running.discard(name)
        if imported and not self._running and self in sys.meta_path and _both_imported():
            sys.meta_path.remove(self)
            _import_modules()


class _ReportingLoader(importlib.abc.Loader):
    """Wraps a loader, with calls before and after a module's execution. The module keeps the wrapped loader."""

    def __init__(self, loader: Any, begun: Callable[[str], None], ended: Callable[[str, bool], None]) -> None:
        self._loader, self._begun, self._ended = loader, begun, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Makes the module with the wrapped loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Executes the module with the wrapped loader, and reports the begin and the end."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        imported = False
        self._begun(module.__name__)
        try:
            self._loader.exec_module(module)
            imported = True
        finally:
            self._ended(module.__name__, imported)
