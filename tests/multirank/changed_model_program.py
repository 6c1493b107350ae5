"""One rank of a job whose model changes between a checkpoint and its restore.

Arguments: a JSON object, see `Options`; the folder for results.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import fault_points, tables, variables

keras = _keras.keras
DIM, N_KEYS = 4, 24
ALLOW = ["added_tables", "removed_tables", "added_variables", "removed_variables"]
RENAMES = {"user": "customer"}
OLD, NEW = ("user", "item", "old"), ("customer", "item", "price")
TOWERS = {"customer": "user"}  # the names of towers by those of tables, where they differ


@dataclasses.dataclass
class Options:
    """The options of a run.

    Attributes:
      how: "save": train the old model and save; then train on. "change": restore into the new model and train on;
        "again": restore the new model into itself.
      checkpoints: The directory of the checkpoints.
      placement: "replicated" or "sharded".
      per_node: Whether each node has a directory of its own.
      differ: Whether the ranks first give different values of `allow`.
      save: Whether a changed model is saved after training.
      kill_at: The fault point at which rank 0 kills itself.
    """

    how: str
    checkpoints: str
    placement: str = "replicated"
    per_node: bool = False
    differ: bool = False
    save: bool = True
    kill_at: str = ""


def make_model(names: Sequence[str], placement: str) -> Any:
    """Returns a model with a tower and an output per table. Dense weights differ between ranks."""
    keras.utils.set_random_seed(3)
    place = {"placement": tsps.Sharded()} if placement == "sharded" else {}
    inputs, outputs = keras.Input((2,), dtype="int64"), []
    for name in names:
        config = tsps.TableConfig(name, DIM, **place)
        rows = keras.layers.Flatten()(tsps.Embedding(None, DIM, table=config, name=f"{name}_rows")(inputs))
        tower = TOWERS.get(name, name)
        rows = keras.layers.BatchNormalization(name=f"{tower}_norm")(rows)
        outputs.append(keras.layers.Dense(1, name=f"{tower}_top")(rows))
    model = keras.Model(inputs, outputs)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.05)), ["mse"] * len(outputs))
    for name in names:
        top = model.get_layer(f"{TOWERS.get(name, name)}_top")
        kernel, bias = top.get_weights()
        top.set_weights([kernel + this_rank.rank(), bias])
    return model


def train(model: Any, steps: range) -> None:
    """Makes steps on this rank's batches. Each step has all keys, so that none depends on initial values later."""
    ranks = tsps.collectives.current()
    for step in steps:
        x = np.random.default_rng(step).permutation(N_KEYS).reshape(-1, 2)
        x = x[ranks.rank :: ranks.size]
        y = np.random.default_rng([step, ranks.rank]).normal(size=(len(x), 1)).astype(np.float32)
        model.train_on_batch(x, [y] * len(model.outputs))


def content(model: Any) -> dict[str, Any]:
    """Returns rows and slots of all nodes, and this rank's dense variables, by the names before the change."""
    ranks = tsps.collectives.current()
    result: dict[str, Any] = {}
    for binding in tables.of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        parts = ranks.allgather_object((ranks.local_rank == 0, [keys, rows, *slots]), "test.tables")
        leaders = [arrays for leads, arrays in parts if leads]
        if binding.placement == "replicated":
            leaders = leaders[:1]
        whole = [np.concatenate(arrays) for arrays in zip(*leaders, strict=True)]
        order = np.argsort(whole[0])
        assert len(np.unique(whole[0])) == len(order), "a key is on two nodes"
        name = TOWERS.get(binding.config.name, binding.config.name)
        for number, array in enumerate(whole):
            result[f"{name}.{number}"] = array[order]
        result[f"{name}.trained by"] = np.array(binding.trained_by())
    for entry in variables.collect(model, model.optimizer, {}):
        if entry.kind not in ("metric", "seed"):
            result[entry.name.replace(":0", "")] = entry.variable.numpy()
    result["iterations"] = np.asarray(int(tf.convert_to_tensor(model.optimizer.iterations)))
    result["step of the tables"] = np.asarray(tables.committed_step())
    return result


def write(folder: str, name: str, model: Any) -> None:
    np.savez(Path(folder) / f"{name}-{this_rank.rank()}.npz", **content(model))


def main() -> None:
    options, folder = Options(**json.loads(sys.argv[1])), sys.argv[2]
    ranks = this_rank.init()
    warnings.filterwarnings("ignore", "layer .*keys that were never trained")
    model = make_model(OLD if options.how == "save" else NEW, options.placement)
    directory = f"{options.checkpoints}/{job.current().node}" if options.per_node else options.checkpoints
    checkpointer = tsps.Checkpointer(directory, model, model.optimizer, per_node=options.per_node)
    if options.how == "save":
        checkpointer.restore()
        train(model, range(3))
        checkpointer.save()
        checkpointer.wait()
        write(folder, "saved", model)
        train(model, range(3, 6))
        write(folder, "trained", model)
    else:
        if options.differ:
            try:
                checkpointer.restore(allow=ALLOW if ranks.rank == 0 else ALLOW[1:], renames=RENAMES)
            except ValueError as error:
                print(f"rank {ranks.rank} refuses: {error}", flush=True)

        def act(reached: str) -> None:
            if reached == options.kill_at and ranks.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        fault_points.set_action(act)
        assert checkpointer.restore(allow=ALLOW, renames=RENAMES) is not None
        write(folder, "restored", model)
        report = dataclasses.asdict(checkpointer.report)  # type: ignore[arg-type]
        assert report.pop("path").startswith(directory)
        reports = ranks.allgather_object(report, "test.report")
        assert all(other == report for other in reports)
        (Path(folder) / f"report-{ranks.rank}.json").write_text(json.dumps(report))
        train(model, range(3, 6) if options.how == "change" else range(6, 7))
        write(folder, "trained", model)
        if options.save:
            checkpointer.save()
            checkpointer.wait()
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
