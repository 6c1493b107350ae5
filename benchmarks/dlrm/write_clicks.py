"""Writes the clicks of the generator of `make train` to files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from benchmarks.dlrm.clicks import SAMPLE, Clicks
from ctr.generator import CARDINALITIES, PlantedModel

_BATCH = 8192
_TEST = 1 << 40  # the first batch of held-out data, as in the generator


def write(folder: Path, *, samples: int, test_samples: int, rows: int) -> Clicks:
    """Writes clicks of the generator of `make train`.

    Args:
        folder: The folder to make.
        samples, test_samples: The number of training and of held-out samples, multiples of 8192.
        rows: The largest number of rows of a table. Larger ids are taken modulo this number.
    """
    tables = np.minimum(CARDINALITIES, rows)
    model = PlantedModel(samples=samples, test_samples=test_samples)
    draw = tf.function(lambda number: model.draw(number, _BATCH))
    folder.mkdir(parents=True)
    for name, first, count in (("train", 0, samples), ("test", _TEST, test_samples)):
        with (folder / f"{name}.bin").open("wb") as file:
            numbers = range(first, first + count // _BATCH)
            for number in tqdm(numbers, desc=f"clicks, {name}", unit=" batches", delay=2, disable=None):
                dense, values, labels, _ = draw(tf.constant(number, tf.int64))
                batch = np.empty(_BATCH, SAMPLE)
                batch["dense"], batch["ids"], batch["label"] = dense, values % tables, labels
                batch.tofile(file)
    (folder / "tables.json").write_text(json.dumps(tables.tolist()))
    return Clicks(folder)
