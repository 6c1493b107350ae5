"""One rank of the test that all ranks save models with sharded tables, and any number of ranks loads them.

Arguments: "save" or "load", the folder of the files; the folder for results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import sharded_saving_support as support
import tensorflow as tf
from sharded_saving_support import ANY, BOUNDED, SERVED, SPREAD, keras

import tf_sparse_ps as tsps
from tf_sparse_ps import job


def save(folder: Path, *, bounded: bool) -> None:
    """Trains a model, records the contents of its tables, and saves it in each way, from all ranks."""
    ranks = tsps.collectives.current()
    model = support.make(SPREAD, bounded=bounded)
    support.train(model, ranks.rank)
    before = support.content(model)
    if ranks.rank == 0:
        folder.mkdir(parents=True)
        np.savez(folder / "content.npz", **before)
    ranks.barrier("test.noted")
    for name in (BOUNDED if bounded else ANY) + SERVED:
        support.save(model, folder / name)
        assert ranks.rank == 0 or (folder / name).exists() or (folder / f"{name}.index").exists(), name
        print(f"{name} is saved", flush=True)
    if bounded:
        for name in ("words", "items"):
            (matrix,) = support.layer_of(model, name).get_weights()
            np.testing.assert_array_equal(matrix[before[f"{name}.keys"]], before[f"{name}.rows"])
            np.testing.assert_array_equal(matrix[support.ASKED], before[f"{name}.looked_up"])
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(folder / "managed"), max_to_keep=1)
        for _ in range(3):
            assert manager.save() == manager.latest_checkpoint
        ranks.barrier("test.managed")
        assert tf.train.latest_checkpoint(str(folder / "managed")) == str(folder / "managed" / "ckpt-3")
        assert len(list((folder / "managed").glob("*.index"))) == 1
        checkpoint = keras.callbacks.ModelCheckpoint(str(folder / "best.keras"))
        model.fit(support.ASKED, np.ones((300, 1), np.float32), verbose=0, callbacks=[checkpoint])
        trained = support.content(model)
        assert not np.array_equal(trained["words.rows"], before["words.rows"])
        for name in ("words", "items"):
            layer = support.layer_of(model, name)
            layer.set_weights([matrix := 2 * layer.get_weights()[0]])
            np.testing.assert_array_equal(layer.get_weights()[0], matrix)
    support.train(model, ranks.rank)  # training must not collide with what was saved
    ranks.barrier("test.saved")
    assert not [path.name for path in folder.rglob(".*")]


def load(folder: Path, *, bounded: bool) -> None:
    """Loads the model from each file, into sharded tables and into others, and trains it."""
    ranks = tsps.collectives.current()
    for name in BOUNDED if bounded else ANY:
        for placement in (SPREAD, "replicated") if name != "model.keras" else (SPREAD,):
            label = f"{name}, {placement}"
            model = support.load(folder / name, placement, bounded=bounded)
            (binding,) = support.layer_of(model, "words").bindings
            spread = len(job.current().leaders) > 1 and placement == SPREAD
            assert (binding.placement == "sharded") == spread, label
            if name != "model.h5":  # this format has matrices only
                unseen = bounded or name == "model.keras"
                support.must_equal(support.content(model), folder / "content.npz", label, unseen=unseen)
            else:
                with np.load(folder / "content.npz") as noted:
                    for table in support.TABLES:
                        looked_up = np.asarray(support.layer_of(model, table)(support.ASKED))
                        np.testing.assert_array_equal(looked_up, noted[f"{table}.looked_up"], err_msg=label)
            updates = int(model.optimizer.iterations)
            if name == "model.keras":
                assert updates == 4, updates
            support.train(model, ranks.rank)
            assert int(model.optimizer.iterations) == updates + 4
            print(f"{name} is loaded {'spread' if spread else 'replicated'}", flush=True)


def main() -> None:
    ranks = tsps.init()  # a single rank is started without a launcher
    action, folder = sys.argv[1], Path(sys.argv[2])
    for bounded in (False, True):
        (save if action == "save" else load)(folder / f"bounded-{bounded}", bounded=bounded)
    ranks.barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
