"""`load`: the newest version of a model in a process of one's own. Needs TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError
from tf_sparse_ps.serving import version as versions
from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.serving.version import Used, Version
from tf_sparse_ps.urls import local_path


class _Loaded:
    """A version that is loaded. It never changes."""

    def __init__(self, version: Version) -> None:
        import tensorflow as tf  # the package works without it

        from tf_sparse_ps import _ops  # it imports TensorFlow

        _ops.library.load()
        self.version = version
        # They mark the version as in use, so that it is not removed. The op library opens them at the first call only.
        assets = version.path / versions.ASSETS
        self._tables = [ServingTable.open(assets / table.asset, verify=False) for table in version.tables]
        self.model: Any = tf.saved_model.load(os.fspath(version.path))
        # A tf.function that refuses its inputs never releases its lock, and calls of other threads wait for it forever
        # (Function._call of TensorFlow 2.15 to 2.21). Its concrete functions have no such lock.
        self.serve = self.model.serve.concrete_functions[0] if hasattr(self.model, "serve") else None


class ServedModel:
    """A model that is served from a directory of versions.

    Calls in several threads are safe, also beside `update`: a call uses one version from its beginning to its end.
    """

    def __init__(self, directory: Path) -> None:
        """Callers use `load`."""
        self._directory = directory
        self._loaded = _with_newest(directory, _Loaded)

    @property
    def path(self) -> Path:
        """The folder of the present version."""
        return self._loaded.version.path

    @property
    def step(self) -> int:
        """The training step of the present version."""
        return self._loaded.version.manifest.step

    @property
    def signatures(self) -> Mapping[str, Any]:
        """The signatures of the present version, by name."""
        signatures: Mapping[str, Any] = self._loaded.model.signatures
        return signatures

    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Returns the answers to inputs.

        Args:
          inputs: The arguments of the model, if `tsps.export` was called without `signatures`.
          named_inputs: The arguments of the signature "serving_default".

        Raises:
          TypeError: The inputs do not have the shapes or types of the model.
          InvalidArgumentError: `tsps.export` was called with `signatures`, and there are unnamed inputs.
        """
        loaded = self._loaded
        if not inputs:
            return loaded.model.signatures["serving_default"](**named_inputs)
        if loaded.serve is None:
            raise InvalidArgumentError(
                f"{loaded.version.path} was exported with `signatures`, which take inputs by name. Call the model with "
                f"named inputs, or one of its signatures: {', '.join(loaded.model.signatures)}"
            )
        return loaded.serve(*inputs)

    def update(self) -> bool:
        """Loads the newest version, unless it is the present one. Returns whether it has loaded one.

        Tables map only the files that the present version does not have. Calls that have begun keep their version.

        Raises:
          NotFoundError, DamagedFileError: The newest version cannot be loaded. The present one stays.
        """
        present = self._loaded.version.manifest.id
        newest = _with_newest(self._directory, lambda new: None if new.manifest.id == present else _Loaded(new))
        if newest is None:
            return False
        self._loaded = newest
        return True


def _with_newest(directory: Path, use: Callable[[Version], Used]) -> Used:
    import tensorflow as tf  # the package works without it

    return versions.with_newest(directory, use, (NotFoundError, OSError, tf.errors.NotFoundError))


def load(path: str | os.PathLike[str]) -> ServedModel:
    """Loads the op library and the newest version of a model.

    Args:
      path: A directory of versions with numbers as names, or the folder of one version.

    Example:
      >>> model = tsps.serving.load("serve")
      >>> scores = model(ids)
      >>> model.update()      # from time to time, in any thread

    Raises:
      NotFoundError: There is no version.
      DamagedFileError: It is damaged.
    """
    return ServedModel(Path(local_path(path)))
