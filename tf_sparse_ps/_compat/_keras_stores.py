"""The stores that Keras gives a layer to save to and to load from, as files of which parts can be written and read.

Keras 2 gives the layer a group of the HDF5 file, Keras 3 an object around one, whose items are whole arrays. Checked
with Keras 3.15 and Keras 2.15; where it is something else, arrays are whole.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps._compat import _keras

_ENTRY, _STORE = "_h5_entry_group", "H5IOStore"


def _group(store: Any) -> Any:
    """The HDF5 group, or None."""
    group = getattr(store, _ENTRY, None) if type(store).__name__ == _STORE else store
    return group if hasattr(group, "create_dataset") else None


def new_arrays(store: Any, wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> dict[str, Any] | None:
    """Makes arrays in the file, to be filled part by part.

    Args:
      store: In which something has been stored before.
      wanted: Shape and type of each, by name.

    Returns:
      Them by name, or None: the store takes whole arrays.
    """
    group = _group(store)
    if group is None:
        return None
    return {name: group.create_dataset(name, shape, dtype) for name, (shape, dtype) in wanted.items()}


def stored(store: Any, name: str) -> Any:
    """An array of the file, of which parts are read by slices; or a whole one."""
    package = _keras.Layer.__module__.split(".")[0]
    saving_lib = importlib.import_module(f"{package}.src.saving.saving_lib")
    dataset_of = getattr(saving_lib, "safe_get_h5_dataset", None)  # refuses links to other files
    group = _group(store)
    if group is None or group is store or dataset_of is None:
        return store[name]
    return dataset_of(group, name)
