"""The contents of a rank: read in its process, written to a file, and compared by the driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.options import Options

# What policies have done to a table since it was made, in the order of `Table.stats()`'s description.
COUNTERS = ("evicted_unused", "evicted_excess", "admitted", "gradients_dropped")


def of_table(reader: Any) -> dict[str, np.ndarray]:
    """Returns keys, rows and slots of an open table, in the order of the keys."""
    with reader.scan(slots=True) as scan:
        keys, rows, slots, metadata = scan.read()
    order = np.argsort(keys)
    slot_arrays = {f"slot{i}": slot[order] for i, slot in enumerate(slots)}
    uses = {"use": metadata["use"][order]} if "use" in metadata else {}
    return {"keys": keys[order], "rows": rows[order], **slot_arrays, **uses}


def of_job(network: Any) -> dict[str, np.ndarray]:
    """Returns everything of this rank that can be compared, without a collective. The tables must be at rest."""
    arrays: dict[str, np.ndarray] = {}
    for t, binding in enumerate(network.bindings):
        reader = binding.reader()
        arrays |= {f"table{t}.{name}": array for name, array in of_table(reader).items()}
        stats = reader.stats()
        arrays[f"table{t}.on_disk"] = np.asarray(stats.get("rows_on_disk", 0))
        arrays[f"table{t}.counters"] = np.array([stats[name] for name in COUNTERS])
        sketch = binding.sketch().stats()["index_seed"] if binding.config.admission else 0
        arrays[f"table{t}.seeds"] = np.array([stats["index_seed"], sketch], np.uint64)
        arrays["step"] = np.asarray(reader.step)
    optimizer = network.optimizer
    arrays["dense"] = network.dense.numpy()[None]
    arrays["iterations"] = np.asarray(int(optimizer.iterations))
    arrays["rate"] = np.asarray(float(optimizer.learning_rate), np.float32)
    variables = [np.asarray(variable.numpy(), np.float64).reshape(-1) for variable in optimizer.variables]
    arrays["variables"] = np.concatenate(variables) if variables else np.zeros(0)
    return arrays


def looked_up(network: Any, options: Options, pools: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns rows of all ids from the layers. All ranks call it together if a table is sharded."""
    return {f"table{t}.looked_up": network.look_up(t, pools[t]) for t in range(len(options.tables))}


def write(folder: str | Path, label: str, rank: int, arrays: dict[str, np.ndarray]) -> None:
    """Writes a snapshot, whole or not at all."""
    path = Path(folder) / f"{label}-rank{rank}.npz"
    partial = path.with_suffix(".partial")
    with partial.open("wb") as stream:
        np.savez(stream, **arrays)
    os.replace(partial, path)


def read(folder: str | Path) -> dict[str, dict[int, dict[str, np.ndarray]]]:
    """Returns all snapshots of a run, by label and by rank."""
    snapshots: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for path in sorted(Path(folder).glob("*-rank*.npz")):
        label, _, rank = path.stem.rpartition("-rank")
        with np.load(path) as arrays:
            snapshots.setdefault(label, {})[int(rank)] = dict(arrays)
    return snapshots
