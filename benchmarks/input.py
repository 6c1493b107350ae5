"""The input suite: how long a step of `make train`'s model waits for its batch, on two ranks, by source of the data.

The files of Criteo's and Avazu's format are written from the generator's samples. Beside the share of the wait, the
suite reports a step's time, and its time with batches that were read before: the difference is all that input costs,
because input and training share the machine's cores.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks import harness
from benchmarks.dlrm import write_clicks
from benchmarks.dlrm.clicks import Clicks

_RANKS = 2
_BATCH = 8192  # of all ranks
_FIGURES = {
    "wait for input, share of a step": ("wait", "%"),
    "step": ("step", "ms"),
    "step without input": ("kept", "ms"),
}


def run(options: harness.Options) -> list[harness.Result]:
    """Measures the sources in turns."""
    turns = 1 if options.quick else max(1, options.blocks // 2)
    blocks: dict[str, dict[str, list[float]]] = {name: {} for name in _FIGURES}
    with tempfile.TemporaryDirectory() as folder:
        files = _write_files(Path(folder), samples=_BATCH * (4 if options.quick else 16))
        paths = {"generator": None, **files, **{f"{name}, saved by tf.data": path for name, path in files.items()}}
        with tqdm(total=turns * len(paths), desc="input", unit=" jobs", delay=2, disable=None) as bar:
            for turn in range(turns):
                for source in paths if turn % 2 == 0 else reversed(paths):
                    figures = _job(source, paths[source], Path(folder), quick=options.quick)
                    for name, (figure, _) in _FIGURES.items():
                        blocks[name].setdefault(source, []).append(figures[figure])
                    bar.update()
    return [
        result
        for name, (_, unit) in _FIGURES.items()
        for result in harness.summarize("input", name, blocks[name], peer=None, unit=unit)
    ]


def _job(source: str, path: Path | None, folder: Path, *, quick: bool) -> dict[str, float]:
    data, _, saved = source.partition(", ")
    out = folder / "figures.json"
    command = [sys.executable, "-m", "tf_sparse_ps", "run", "-np", str(_RANKS)]
    command += [sys.executable, "-m", "benchmarks.dlrm.input_job", data, "--out", str(out)]
    command += ["--batch", str(_BATCH // _RANKS), "--steps", "3" if quick else "40"]
    command += ["--path", str(path)] if path else []
    command += ["--save", str(folder / data)] if saved else []
    figures: dict[str, float] = harness.job_figures(command, out)
    return figures


def _write_files(folder: Path, samples: int) -> dict[str, Path]:
    """Writes files in the formats of Criteo and of Avazu. Returns their paths, by the name of the source."""
    clicks = write_clicks.write(folder / "clicks", samples=samples, test_samples=_BATCH, rows=1 << 31)
    paths = {"criteo": folder / "criteo.tsv", "avazu": folder / "avazu.csv"}
    with paths["criteo"].open("w") as criteo, paths["avazu"].open("w") as avazu:
        numbers = range(Clicks.count(clicks.train) // _BATCH)
        for number in tqdm(numbers, desc="text files", unit=" batches", delay=2, disable=None):
            batch = Clicks.read(clicks.train, number, _BATCH)
            counts = np.expm1(batch.dense + 2).round().astype(int)
            for label, integers, ids in zip(batch.labels, counts.tolist(), batch.ids.tolist(), strict=True):
                words = [f"{value * 2654435761 % 2**32:08x}" for value in ids]
                click = str(int(label))
                criteo.write("\t".join([click, *map(str, integers), *words]) + "\n")
                hour = f"141021{integers[0] % 24:02}"
                avazu.write(",".join(["10000169349117863715", click, hour, *words[:21]]) + "\n")
    return paths
