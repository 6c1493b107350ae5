"""Without `every_steps` and `every_seconds`, `Checkpoint` saves at the ends of epochs, with any input of `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fit_support import BATCH, BATCHES, EXTRA, IDS, End, Ended, Y, keras, make_model, must_equal

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.errors import StateError

MESSAGE = "Checkpoint saves at the ends of epochs only"


class Batches(keras.utils.PyDataset if _keras.IS_KERAS_3 else keras.utils.Sequence):  # type: ignore[misc]
    """The batches as an object that Keras indexes."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, number: int) -> Any:
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return (IDS[rows], EXTRA[rows]), Y[rows]


def generator() -> Any:
    number = 0
    while True:
        rows = slice(number % BATCHES * BATCH, (number % BATCHES + 1) * BATCH)
        yield (IDS[rows], EXTRA[rows].astype(np.float32)), Y[rows].astype(np.float32)
        number += 1


def dataset() -> tf.data.Dataset:
    arrays = ((IDS, EXTRA.astype(np.float32)), Y.astype(np.float32))
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


INPUTS: dict[str, dict[str, Any]] = {
    "arrays": {"x": [IDS, EXTRA], "y": Y, "batch_size": BATCH, "shuffle": False},
    "dataset": {"x": dataset()},
    "indexed": {"x": Batches(), "shuffle": False},
    "generator": {"x": generator, "steps_per_epoch": BATCHES},
    "unknown": {"x": dataset().filter(lambda *_: True)},
}


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))


def run(folder: Path, arguments: dict[str, Any], *others: Any, **options: Any) -> Any:
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(folder, keep=9, background=False, **options)
    if callable(arguments["x"]):  # a generator is used up, so each run makes one
        arguments = {**arguments, "x": arguments["x"]()}
    model.fit(**arguments, epochs=3, verbose=0, callbacks=[*others, checkpoint])
    return model


@pytest.mark.parametrize("name", INPUTS)
def test_a_restart_resumes_at_the_first_epoch_that_has_not_ended(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path / "whole", INPUTS[name])
    assert steps(tmp_path / "whole") == [0, BATCHES, 2 * BATCHES, 3 * BATCHES]
    assert capfd.readouterr().err.count(MESSAGE) == 1
    with pytest.raises(Ended):
        run(tmp_path / "broken", INPUTS[name], End(BATCHES + 3))
    assert steps(tmp_path / "broken") == [0, BATCHES]
    must_equal(run(tmp_path / "broken", INPUTS[name]), whole)
    assert f"step {BATCHES}, batch 0 of epoch 1" in capfd.readouterr().err


def test_the_callbacks_dataset_saves_at_ends_of_epochs_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, keep=9)
    model.fit(checkpoint.dataset(dataset()), epochs=2, verbose=0, callbacks=[checkpoint])
    assert steps(tmp_path) == [0, BATCHES, 2 * BATCHES]
    assert MESSAGE not in capfd.readouterr().err


def test_another_fit_of_the_process_continues_after_an_exception(tmp_path: Path) -> None:
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, keep=9)
    for others in ([End(BATCHES + 2)], []):
        try:
            model.fit(dataset(), epochs=2, verbose=0, callbacks=[*others, checkpoint])
        except Ended:
            assert others
    assert steps(tmp_path) == [0, BATCHES, 2 * BATCHES + 2]  # the second epoch began again


@pytest.mark.parametrize("every", [{"every_steps": 2}, {"every_seconds": 2}])
def test_other_intervals_need_the_callbacks_dataset(tmp_path: Path, every: dict[str, Any]) -> None:
    (name,) = every
    remedy = rf"has {name}, and fit was not given.*Give fit checkpoint\.dataset\(\.\.\.\), or leave {name} out"
    with pytest.raises(ValueError, match=remedy):
        run(tmp_path, INPUTS["arrays"], **every)
    assert steps(tmp_path) == []


def test_a_checkpoint_of_mid_epoch_is_refused_with_another_input(tmp_path: Path) -> None:
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, every_steps=2, background=False)
    with pytest.raises(Ended):
        model.fit(checkpoint.dataset(dataset()), verbose=0, callbacks=[checkpoint, End(3)])
    with pytest.raises(StateError, match=r"is of batch 2 of epoch 0, and fit was not given checkpoint\.dataset"):
        run(tmp_path, INPUTS["arrays"])


def test_ranks_with_different_numbers_of_batches_can_be_evened_out(tmp_path: Path) -> None:
    model = make_model()
    even = tsps.callbacks.EqualSteps(dataset())
    checkpoint = tsps.callbacks.Checkpoint(tmp_path, keep=9)
    model.fit(even.dataset, epochs=2, verbose=0, callbacks=[even, checkpoint])
    assert steps(tmp_path) == [0, BATCHES, 2 * BATCHES]
