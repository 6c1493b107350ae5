"""What a rank has: read in its process, written to a file, compared by the driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.options import Options


def of_table(reader: Any) -> dict[str, np.ndarray]:
    """Keys, rows and slots of an open table, in the order of the keys."""
    with reader.scan(slots=True) as scan:
        keys, rows, slots, _ = scan.read()
    order = np.argsort(keys)
    slot_arrays = {f"slot{i}": slot[order] for i, slot in enumerate(slots)}
    return {"keys": keys[order], "rows": rows[order], **slot_arrays}


def of_job(network: Any) -> dict[str, np.ndarray]:
    """Everything of this rank that can be compared. No collective; the tables must be at rest."""
    found: dict[str, np.ndarray] = {}
    for t, binding in enumerate(network.bindings):
        reader = binding.reader()
        found |= {f"table{t}.{name}": array for name, array in of_table(reader).items()}
        found[f"table{t}.on_disk"] = np.asarray(reader.stats().get("rows_on_disk", 0))
        found["step"] = np.asarray(reader.step)
    optimizer = network.optimizer
    found["dense"] = network.dense.numpy()[None]
    found["iterations"] = np.asarray(int(optimizer.iterations))
    found["rate"] = np.asarray(float(optimizer.learning_rate), np.float32)
    variables = [np.asarray(one.numpy(), np.float64).reshape(-1) for one in optimizer.variables]
    found["variables"] = np.concatenate(variables) if variables else np.zeros(0)
    return found


def looked_up(network: Any, options: Options, pools: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of all ids by the layers. Of sharded tables all ranks ask together."""
    return {f"table{t}.looked_up": network.look_up(t, pools[t]) for t in range(len(options.tables))}


def write(folder: str | Path, label: str, rank: int, arrays: dict[str, np.ndarray]) -> None:
    """Writes a snapshot, whole or not at all."""
    path = Path(folder) / f"{label}-rank{rank}.npz"
    partial = path.with_suffix(".partial")
    with partial.open("wb") as stream:
        np.savez(stream, **arrays)
    os.replace(partial, path)


def read(folder: str | Path) -> dict[str, dict[int, dict[str, np.ndarray]]]:
    """All snapshots of a run: by label, by rank."""
    found: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for path in sorted(Path(folder).glob("*-rank*.npz")):
        label, _, rank = path.stem.rpartition("-rank")
        with np.load(path) as arrays:
            found.setdefault(label, {})[int(rank)] = dict(arrays)
    return found
