"""Writes and reads arrays part by part in the stores that Keras gives a layer to save to and to load from.

Keras 2 gives the layer a group of the HDF5 file. Keras 3 gives it an object around such a group, whose items are whole
arrays. With any other store, arrays are written and read as a whole. Checked with Keras 3.15 and Keras 2.15.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps._compat import _keras

_ENTRY, _STORE = "_h5_entry_group", "H5IOStore"


def _group(store: Any) -> Any:
    """Returns the HDF5 group of a store, or None."""
    group = getattr(store, _ENTRY, None) if type(store).__name__ == _STORE else store
    return group if hasattr(group, "create_dataset") else None


def new_arrays(store: Any, wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> dict[str, Any] | None:
    """Makes arrays in the file, which the caller fills part by part.

    Args:
      store: A store that contains an entry already.
      wanted: The shape and type of each array, by name.

    Returns:
      The arrays by name, or None if the store accepts whole arrays only.
    """
    group = _group(store)
    if group is None:
        return None
    return {name: group.create_dataset(name, shape, dtype) for name, (shape, dtype) in wanted.items()}


def stored(store: Any, name: str) -> Any:
    """Returns an array of the file. If the store allows it, slices of the array are read on demand."""
    package = _keras.Layer.__module__.split(".")[0]
    saving_lib = importlib.import_module(f"{package}.src.saving.saving_lib")
    dataset_of = getattr(saving_lib, "safe_get_h5_dataset", None)  # refuses links to other files
    group = _group(store)
    if group is None or group is store or dataset_of is None:
        return store[name]
    return dataset_of(group, name)
