"""One rank that runs README's example unchanged, on data with something to learn, and reports the result.

Argument: the folder for results, one RANK.json each.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

README = Path(__file__).resolve().parents[2] / "README.md"
SAMPLES, FIELDS, IDS = 16_001, 26, 500  # an odd number of samples, which two ranks cannot share equally


def example() -> str:
    """Returns the first Python block of README."""
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return blocks[0]


def main() -> None:
    """Runs the example with `ids` and `labels`."""
    draw = np.random.default_rng(0)
    ids = draw.zipf(1.3, (SAMPLES, FIELDS)) % IDS + np.arange(FIELDS) * IDS
    labels = draw.normal(0, FIELDS**-0.5, FIELDS * IDS)[ids].sum(1).astype(np.float32)
    ids[:, 0] = np.arange(SAMPLES)  # identifies the sample
    keys = np.unique(ids[:, 1:])
    report: dict[str, Any] = {}
    rows: list[Any] = []  # of the keys, before and after training

    def fit(model: Any, x: Any, y: Any, **options: Any) -> Any:
        table = model.layers[0].bindings[0].reader()
        rows.append(table.lookup(keys))
        history = keras_fit(model, x, y, **options)
        rows.append(table.lookup(keys))
        report["samples"] = x[:, 0].tolist()
        return history

    keras_fit, _keras.keras.Model.fit = _keras.keras.Model.fit, fit
    names: dict[str, Any] = {"ids": ids.astype(np.int64), "labels": labels}
    exec(compile(example(), str(README), "exec"), names)

    model, ranks = names["model"], tsps.collectives.current()
    report["variance"] = float(labels.var())
    report["loss"] = float(model.evaluate(ids, labels, verbose=0))
    report["moved"] = float(np.abs(rows[1] - rows[0]).mean() / np.abs(rows[0]).mean())
    report["dense"] = [weight.tolist() for weight in model.layers[-1].get_weights()]
    (Path(sys.argv[1]) / f"{ranks.rank}.json").write_text(json.dumps(report))
    ranks.barrier("test.end")


if __name__ == "__main__":
    main()
