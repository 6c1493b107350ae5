"""Registers the Keras classes of this package (layers, optimizer) with Keras, so that it can load files that hold them.

Keras finds the class of a saved object by its registered name, and a class has none until its module is imported;
Keras 3 does not import the module that the file names. But `import tf_sparse_ps` imports neither these modules nor
TensorFlow. So they are imported from here: at once if TensorFlow and Keras are there, else after the import that brings
the last of the two. Nothing is imported on account of this in a process that uses no TensorFlow.
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
    except ImportError as error:  # it was Keras that was to be imported, perhaps beside `tf_sparse_ps.table` alone
        warnings.warn(f"tf_sparse_ps: Keras cannot load models with tables in this process: {error}", stacklevel=2)


def _backend() -> str:
    import tensorflow as tf  # it is imported already

    return str(tf.keras.backend.backend())


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Finds nothing by itself; notes when TensorFlow and Keras, which others find, have been imported.

    They import each other, and modules of this package import them: what began first ends last, and nothing is done
    before that.
    """

    def __init__(self) -> None:
        self._running: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders say, with a loader that tells."""
        if name not in _AWAITED and not name.startswith("tf_sparse_ps."):
            return None
        for finder in [one for one in sys.meta_path if one is not self]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _TellingLoader(spec.loader, self._begun, self._ended)
                return spec
        return None

    def _begun(self, name: str) -> None:
        self._running.add(name)

    def _ended(self, name: str, imported: bool) -> None:
        self._running.discard(name)
        if imported and not self._running and self in sys.meta_path and _both_imported():
            sys.meta_path.remove(self)
            _import_modules()


class _TellingLoader(importlib.abc.Loader):
    """Another loader, with calls before and after a module's execution. The module is left with the other one."""

    def __init__(self, loader: Any, begun: Callable[[str], None], ended: Callable[[str, bool], None]) -> None:
        self._loader, self._begun, self._ended = loader, begun, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The other loader's."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """The other loader's, between the calls."""
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
