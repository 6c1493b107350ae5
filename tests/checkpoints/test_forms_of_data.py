"""`Checkpoint.dataset` takes functions, datasets and arrays, and a restart resumes at the next batch of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fit_support import BATCH, BATCHES, EXTRA, IDS, SAMPLES, WEIGHT, End, Ended, Y, keras, make_model, must_equal

import tf_sparse_ps as tsps
from tf_sparse_ps.checkpoints.epoch_batches import batches_of


def dataset_of_arrays() -> tf.data.Dataset:
    x = (IDS, EXTRA.astype(np.float32))
    return tf.data.Dataset.from_tensor_slices((x, Y.astype(np.float32))).batch(BATCH)


FORMS: dict[str, Any] = {
    "shuffled": lambda c: c.dataset((IDS, EXTRA), Y, batch_size=BATCH, shuffle=True, seed=4),
    "weighted": lambda c: c.dataset({"ids": IDS, "extra": EXTRA}, Y, WEIGHT, batch_size=BATCH, shuffle=True),
    "dataset": lambda c: c.dataset(dataset_of_arrays()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_restart_in_mid_epoch_equals_an_uninterrupted_run(tmp_path: Path, form: str) -> None:
    def run(folder: str, *others: Any) -> Any:
        model = make_model(named=form == "weighted")
        checkpoint = tsps.callbacks.Checkpoint(tmp_path / folder, every_steps=2, background=False)
        model.fit(FORMS[form](checkpoint), epochs=3, verbose=0, callbacks=[*others, checkpoint])
        return model

    whole = run("whole")
    for at in (BATCHES + 2, 2 * BATCHES + 4):  # the newest checkpoints are of batches 1 and 2 of their epochs
        with pytest.raises(Ended):
            run("broken", End(at))
    must_equal(run("broken"), whole)


@pytest.mark.parametrize("form", FORMS)
def test_a_loop_that_is_started_again_equals_an_uninterrupted_one(tmp_path: Path, form: str) -> None:
    def run(folder: str, last: int = 3 * BATCHES) -> Any:
        model = make_model(named=form == "weighted")
        checkpointer = tsps.Checkpointer(tmp_path / folder, model, model.optimizer)
        checkpointer.restore()
        for _ in checkpointer.epochs(3):
            for batch in FORMS[form](checkpointer):
                model.train_on_batch(*batch)
                checkpointer.save()
                if int(model.optimizer.iterations) == last:
                    checkpointer.wait()
                    return model
        return model

    whole = run("whole")
    run("broken", BATCHES + 2)
    must_equal(run("broken"), whole)


def test_arrays_train_as_those_of_fit(tmp_path: Path) -> None:
    plain, model = make_model(), make_model()
    plain.fit([IDS, EXTRA], Y, BATCH, 2, verbose=0, shuffle=False, sample_weight=WEIGHT)
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, every_steps=100)
    data = checkpoint.dataset((IDS, EXTRA), Y, WEIGHT, batch_size=BATCH)
    model.fit(data, epochs=2, verbose=0, callbacks=[checkpoint])
    must_equal(model, plain)


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    def order(epoch: int, **options: Any) -> list[int]:
        arguments = {"y": None, "sample_weight": None, "batch_size": BATCH, "shuffle": True, "seed": 1, **options}
        batches = list(batches_of(np.arange(SAMPLES), **arguments)(epoch))
        assert [len(batch) for batch in batches] == [8, 8, 8, 8, 6]
        return [int(number) for batch in batches for number in batch]

    assert order(2) == order(2)
    assert sorted(order(2)) == list(range(SAMPLES))
    assert len({tuple(numbers) for numbers in (order(0), order(1), order(1, seed=2))}) == 3
    assert order(3, shuffle=False) == list(range(SAMPLES))


def test_batches_have_the_structure_that_fit_knows() -> None:
    x, y = np.arange(6), np.arange(6.0)
    ragged = tf.ragged.constant([[1], [2, 3], [], [4], [5], [6]])

    def first(*arrays: Any) -> Any:
        values = [*arrays, None, None][:3]
        return next(iter(batches_of(*values, 2, False, 0)(0)))

    assert first(x).numpy().tolist() == [0, 1]
    assert len(first((x, y))) == 1  # inputs without targets
    assert [part.shape for part in first((x, y))[0]] == [(2,), (2,)]
    assert isinstance(first({"a": x}, y)[0], dict)
    assert first(x, y)[1].dtype == keras.backend.floatx()
    assert first(ragged, y)[0].to_list() == [[1], [2, 3]]
    assert first(np.array(["a", "b", "c", "d", "e", "f"]))[1] == b"b"
    assert len(first(x, y, y)) == 3


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((np.arange(4), np.arange(3)), {}, ValueError, r"same number of samples.*'x\[0\]': 4, 'y\[0\]': 3"),
        ((np.arange(0),), {}, ValueError, "at least 1"),
        (([1, 2],), {}, TypeError, "`x` is a list"),
        ((3,), {}, TypeError, "one row per sample. Received: int"),
        ((iter([1]),), {}, TypeError, "must be an array, or a tuple or dict of arrays"),
        ((np.arange(4), None, np.arange(4)), {}, ValueError, "`sample_weight` was given without `y`"),
        ((np.arange(4),), {"batch_size": 0}, ValueError, "batch_size=0"),
        ((np.arange(4),), {"seed": -1}, ValueError, "seed=-1"),
        ((np.arange(4),), {"shuffle": "batch"}, ValueError, "shuffle='batch'"),
        ((tf.data.Dataset.range(4).batch(2),), {"shuffle": True}, ValueError, r"\['shuffle'\] are for arrays"),
        ((lambda epoch: None,), {"batch_size": 3, "seed": 1}, ValueError, r"\['batch_size', 'seed'\] are for arrays"),
        ((tf.data.Dataset.range(4).batch(2).repeat(),), {}, ValueError, "without end"),
        ((tf.sparse.from_dense([[1.0]]),), {}, TypeError, "SparseTensor"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    tmp_path: Path, arguments: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tsps.callbacks.Checkpoint(tmp_path, every_steps=1).dataset(*arguments, **options)
