"""One rank of the test that a checkpoint is restored by other ranks, whatever the placement of their tables.

Arguments: a JSON object, see `Options`; the folder for results, which is not used: the options name the folders.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank
from restart_program import ITEMS, WIDTH, make_model
from restart_program import Options as ModelOptions

import tf_sparse_ps as tsps
from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.checkpoints import tables, variables
from tf_sparse_ps.job.table_binding import number_of
from tf_sparse_ps.table.scan import Block

BATCH, MORE = 8, 4  # samples of each rank; steps after a restore
# Keys that were trained, keys that were not, and keys that no batch ever has.
ASKED = np.arange(ITEMS, dtype=np.int64).reshape(-1, WIDTH + 1)
BEYOND = ASKED[:5] + 10**12


@dataclasses.dataclass
class Options:
    """The options of a run.

    Attributes:
      how: "save": train and save; "restore": restore each checkpoint, train after the last; "assign": start with
        the contents of `given`, in another way than by a restore, and train.
      checkpoints: The directories of the checkpoints.
      results: A folder for each checkpoint: for "state.npz", the contents; for "trained.npz", in the last folder, the
        contents in the end.
      given: The path of a "state.npz".
      steps: The number of steps before a save. Steps after a restore begin with this number.
      placement, tiered, memory: The options of the tables, as in `restart_program.py`.
    """

    how: str
    checkpoints: list[str]
    results: list[str]
    given: str = ""
    steps: int = 0
    placement: str = "replicated"
    tiered: str = ""
    memory: int | str = "5.5MiB"


def train(model: Any, steps: range) -> None:
    """Makes the steps of these numbers, on this rank's batches."""
    for step in steps:
        random = np.random.default_rng([this_rank.rank(), step])
        x = random.integers(0, ITEMS // 2, (BATCH, WIDTH))
        model.train_on_batch(x, random.normal(size=(BATCH, 1)).astype(np.float32))


def everything(model: Any) -> dict[str, Any]:
    """Returns rows and slots of all nodes' tables, in the order of keys; steps, variables, and looked-up rows."""
    ranks = tsps.collectives.current()
    result: dict[str, Any] = {}
    for binding in tables.of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        parts = ranks.allgather_object((binding.node, ranks.local_rank == 0, [keys, rows, *slots]), "test.tables")
        leaders = [arrays for _, leads, arrays in parts if leads]
        if binding.placement == "replicated":
            for other_arrays in leaders[1:]:  # their order may differ
                for a, b in zip(leaders[0], other_arrays, strict=True):
                    np.testing.assert_array_equal(a[np.argsort(leaders[0][0])], b[np.argsort(other_arrays[0])])
            leaders = leaders[:1]
        whole = [np.concatenate(arrays) for arrays in zip(*leaders, strict=True)]
        order = np.argsort(whole[0])
        assert len(np.unique(whole[0])) == len(order), "a key is on two nodes"
        for number, array in enumerate(whole):
            result[f"{binding.config.name}.{number}"] = array[order]
    for layer in ("users", "items"):
        asked = np.concatenate([ASKED, BEYOND]) if layer == "users" else ASKED
        result[f"{layer}.looked up"] = np.asarray(tf.cast(model.get_layer(layer)(asked), tf.float32))
    result["step of the tables"] = np.asarray(tables.committed_step())
    for number, entry in enumerate(entries_of(model)):
        result[f"variable.{number:03d}.{entry.kind}"] = entry.variable.numpy()
    return result


def entries_of(model: Any) -> list[variables.Entry]:
    """Returns the dense variables without metrics."""
    return [entry for entry in variables.collect(model, model.optimizer, {}) if entry.kind != "metric"]


def assign(model: Any, saved_state: dict[str, Any]) -> None:
    """Sets the saved contents by the methods that set rows and variables. It is called before the first step."""
    train(model, range(1))  # makes slots, and gives all ranks the same variables
    for binding in tables.of(model):
        name = binding.config.name
        keys, rows, *slots = [
            saved_state[f"{name}.{number}"] for number in range(sum(name + "." in key for key in saved_state) - 1)
        ]
        content = number_of("assigned", name, int(saved_state["step of the tables"]))
        binding.replace([Block(keys, rows, tuple(slots), {})], content, whole=True)
        binding.leader_wrote_values = False
    this_job = job.current()
    step = int(saved_state["step of the tables"])
    if this_job.is_leader:
        with eager_ops("setting the step") as ops:
            ops.set_step(this_job.group_path, tf.constant(step, tf.int64))
    tsps.collectives.current().barrier("test.assigned")
    this_job.step.assign(step)
    for number, entry in enumerate(entries_of(model)):
        entry.variable.assign(saved_state[f"variable.{number:03d}.{entry.kind}"])


def write(model: Any, folder: str, name: str) -> None:
    """Writes the contents on rank 0. The variables of other ranks are not looked at."""
    contents = everything(model)
    if this_rank.rank() == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        np.savez(Path(folder) / name, **contents)


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    tsps.init()
    _keras.keras.utils.set_random_seed(7)
    # What is evicted, and which keys share counts, depends on the placement and on the number of machines.
    model = make_model(
        ModelOptions("", placement=options.placement, tiered=options.tiered, memory=options.memory, policies=False)
    )
    steps_made = options.steps
    if options.how == "save":
        train(model, range(steps_made))
        checkpointer = tsps.Checkpointer(options.checkpoints[0], model, model.optimizer)
        checkpointer.save()
        checkpointer.wait()
        write(model, options.results[0], "state.npz")
    elif options.how == "restore":
        for path, folder in zip(options.checkpoints, options.results, strict=True):
            assert tsps.Checkpointer(path, model, model.optimizer).restore() is not None
            write(model, folder, "state.npz")
    else:
        with np.load(options.given) as arrays:
            assign(model, dict(arrays))
        write(model, options.results[0], "state.npz")
    if options.how != "save":
        assert int(model.optimizer.iterations) == steps_made
        train(model, range(steps_made, steps_made + MORE))
        write(model, options.results[-1], "trained.npz")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
