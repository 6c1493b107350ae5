"""One rank of the test that a sharded table is trained like a table that every node has.

Arguments: rows of a batch; the folder for results.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import _table
from tf_sparse_ps.config.placement import Sharded

keras = tf.keras
IDS, DIM, WIDTH, STEPS = 4000, 4, 5, 12
MEMORY = 1_840_000  # 1.5 MiB are buffers
KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "adagrad": (lambda: keras.optimizers.Adagrad(0.1), {}, {}),
    "adam": (
        lambda: keras.optimizers.Adam(0.01, clipvalue=0.5),
        {"dtype": "bfloat16", "rounding": "nearest"},
        {"sparse_reduction": "average"},
    ),
    "sgd": (lambda: keras.optimizers.SGD(1e-4), {"key_limit": IDS}, {"sparse_reduction": "sum", "wire": "bfloat16"}),
    "tiered": (lambda: keras.optimizers.Adagrad(0.1), {}, {}),
}


def content(layer: Any) -> list[Any]:
    """Returns keys, rows and slots of this node's group, in the order of the keys."""
    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    _, rows, slots = reader.entries(keys)
    return [keys, rows, *slots]


def together(parts: list[list[Any]]) -> list[Any]:
    """Returns the content of all nodes, in the order of the keys."""
    whole = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    order = np.argsort(whole[0], kind="stable")
    return [array[order] for array in whole]


def equal(a: list[Any], b: list[Any]) -> bool:
    """Whether two contents are equal."""
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def train(kind: str, path: Path) -> None:
    """Trains two tables that begin with the same rows and get the same gradients. One of them is sharded."""
    ranks, (make, table, options) = tsps.collectives.current(), KINDS[kind]
    random = np.random.default_rng(ranks.rank)
    config = {"initializer": keras.initializers.Constant(0.5), "seed": 7, **table}
    replicated = tsps.TableConfig(f"replicated_{kind}", DIM, **config)
    if kind == "tiered":
        config["storage"] = tsps.Tiered(path / "disk", memory=MEMORY)
    sharded = tsps.TableConfig(f"sharded_{kind}", DIM, placement=Sharded(), **config)
    limit = config.get("key_limit")
    inputs = keras.Input((WIDTH,), dtype="int64")
    there = tsps.Embedding(limit, DIM, table=replicated)
    spread = tsps.Embedding(limit, DIM, table=sharded)
    # The model calls each layer twice.
    sums = keras.layers.Add()([there(inputs), spread(inputs), there(inputs[:, ::-1]), spread(inputs[:, ::-1])])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(sums)))
    model.compile(tsps.DistributedOptimizer(make(), **options), "mse")
    rows = int(sys.argv[1])
    x = random.zipf(1.2, (STEPS * rows, WIDTH)) % IDS
    y = random.normal(size=(STEPS * rows, 1)).astype(np.float32)
    model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, validation_data=(x[:rows], y[:rows]))
    assert np.array_equal(there(x[:64]), spread(x[:64])), kind
    own_content = content(spread)
    nodes, node = spread.bindings[0].nodes, spread.bindings[0].node
    assert (_table.owners(own_content[0], nodes) == node).all(), "a node has rows that are not its own"
    leader = ranks.local_rank == 0
    parts = [
        part for part in ranks.allgather_object(own_content if leader else None, f"test.{kind}") if part is not None
    ]
    assert len(parts) == nodes
    assert len(own_content[0]) > 0
    assert equal(together(parts), content(there)), kind


def main() -> None:
    this_rank.init()
    path = Path(sys.argv[2])
    for kind in KINDS:
        train(kind, path)
    tsps.collectives.current().barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
