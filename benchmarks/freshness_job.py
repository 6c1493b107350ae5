"""The job of the freshness suite: it trains, in phases with and without `callbacks.Export`.

    python -m benchmarks.freshness_job FOLDER

It publishes to FOLDER/published, and writes FOLDER/figures.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tf_sparse_ps as tsps
from benchmarks import harness
from tf_sparse_ps.serving.version import Version, complete

_DIM, _FIELDS, _BATCH = 64, 8, 64
_EXPONENT = 1.2
_FILL = 100_000  # ids of a step that fills the table
_WAIT_S = 90.0


class _StepTimes(keras.callbacks.Callback):
    """Notes the time of each step. It must come before Export."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the time."""
        self.times.append(time.time())


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows, every, phases, phase_s = (20_000, 2.0, 2, 5.0) if options.quick else (2_000_000, 5.0, 4, 25.0)
    published = options.folder / "published"

    model = keras.Sequential(
        [
            keras.Input([_FIELDS], dtype="int64"),
            tsps.Embedding(None, _DIM, name="ids"),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.01)), "mse")
    everything = np.arange(rows).reshape(-1, _FIELDS)
    model.fit(everything, np.ones([len(everything), 1]), batch_size=_FILL // _FIELDS, verbose=0)
    warmup, times = 300, _StepTimes()
    (ids,) = harness.zipf_ids(rows, _FIELDS * _BATCH * 40_000, 1, exponent=_EXPONENT)
    samples, labels = ids.reshape(-1, _FIELDS), np.zeros([len(ids) // _FIELDS, 1], np.float32)
    used = 0

    def train(steps: int, *callbacks: keras.callbacks.Callback) -> float:
        """Returns the steps per second. The wait for the last version does not count."""
        nonlocal used
        part = slice(used * _BATCH, (used + steps) * _BATCH)
        used += steps
        first = len(times.times)
        model.fit(
            samples[part], labels[part], batch_size=_BATCH, shuffle=False, verbose=0, callbacks=[times, *callbacks]
        )
        return (steps - 1) / (times.times[-1] - times.times[first])

    rate = train(warmup)
    steps = min(int(rate * phase_s), (40_000 - warmup) // phases)
    base = tsps.export(model, published / "1")
    until = time.monotonic() + _WAIT_S
    while not (options.folder / "seen").exists() or not (options.folder / "seen").read_text():
        if time.monotonic() > until:
            raise RuntimeError(f"the server has not loaded version 1 within {_WAIT_S} s")
        time.sleep(0.2)
    first_step = Version(base).manifest.step - warmup  # the table's step before the first of `times`
    export = tsps.callbacks.Export(published, every_seconds=every, keep=1000)
    rates: dict[str, list[float]] = {"not publishing": [], "publishing": []}
    for phase in range(phases):
        if phase % 2 == 0:
            rates["not publishing"].append(train(steps))
        else:
            rates["publishing"].append(train(steps, export))
    time.sleep(2 * every)  # the last version arrives

    versions, known = [], {file.stat().st_ino for file in Path(base).rglob("*.serving")}
    before = warmup
    for _, folder in sorted(complete(published))[1:]:
        step = Version(folder).manifest.step - first_step
        files = [file.stat() for file in folder.rglob("*.serving")]
        size = sum(status.st_size for status in files if status.st_ino not in known)
        known |= {status.st_ino for status in files}
        changed = len(np.unique(samples[before * _BATCH : step * _BATCH]))
        versions.append({"step": step, "bytes": size, "changed": changed, "changed_bytes": changed * _DIM * 4})
        before = step
    figures = {
        "rows": rows,
        "dim": _DIM,
        "every": every,
        "steps_per_second": rates,
        "step_times": [(first_step + number + 1, at) for number, at in enumerate(times.times) if number >= warmup],
        "versions": versions,
    }
    (options.folder / "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
