"""The planted click model: it is reproducible, its data is shaped like Criteo's, and its own AUC is known."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ctr.generator import CARDINALITIES, PlantedModel
from support import metrics


@pytest.fixture(scope="module")
def generator() -> PlantedModel:
    return PlantedModel(samples=40_000, test_samples=20_000, seed=3)


def test_batch_is_a_function_of_seed_and_number(generator: PlantedModel) -> None:
    def ids(source: PlantedModel, number: int) -> list[list[int]]:
        return source.batch(tf.constant(number, tf.int64), 4)[0]["ids"].numpy().tolist()

    assert ids(generator, 5) == ids(generator, 5)
    assert ids(generator, 5) != ids(generator, 6)
    assert ids(generator, 5) != ids(PlantedModel(samples=1, test_samples=2, seed=4), 5)


def test_ranks_share_the_batches_of_one_rank(generator: PlantedModel) -> None:
    alone, steps = generator.train(batch=1000, rank=0, ranks=1)
    assert steps == 40
    expected = [inputs["ids"].numpy() for inputs, _ in alone]
    shares = [generator.train(batch=1000, rank=rank, ranks=4) for rank in range(4)]
    assert [steps for _, steps in shares] == [10] * 4
    for rank, (dataset, _) in enumerate(shares):
        for step, (inputs, _) in enumerate(dataset):
            np.testing.assert_array_equal(inputs["ids"], expected[4 * step + rank])


def test_ids_are_zipf_over_large_vocabularies_and_use_64_bits(generator: PlantedModel) -> None:
    inputs, labels, _ = generator.batch(tf.constant(0, tf.int64), 20_000)
    ids = inputs["ids"].numpy()
    assert ids.shape == (20_000, 26)
    assert ids.min() < -(1 << 62)
    assert ids.max() > 1 << 62
    for feature, cardinality in enumerate(CARDINALITIES):
        values, counts = np.unique(ids[:, feature], return_counts=True)
        assert len(values) <= cardinality
        if cardinality > 1_000_000:
            assert len(values) > 3000
            assert np.sort(counts)[-1] > 20_000 * 0.1
    assert inputs["dense"].shape == (20_000, 13)
    assert np.isfinite(inputs["dense"]).all()
    assert 0.15 < labels.numpy().mean() < 0.4


def test_planted_auc_is_that_of_the_planted_probabilities(generator: PlantedModel) -> None:
    planted = generator.planted_auc()
    assert 0.75 < planted < 0.9
    # Labels that are drawn again from the planted logits give the same AUC, up to noise. Shuffled logits give one half.
    _, labels, logits = generator.batch(tf.constant(1 << 50, tf.int64), 20_000)
    random = np.random.default_rng(0)
    drawn = (random.random(20_000) < 1 / (1 + np.exp(-logits.numpy()))).astype(np.float32)
    assert metrics.auc(drawn, logits.numpy()) == pytest.approx(planted, abs=0.015)
    assert metrics.auc(labels.numpy(), random.permutation(logits.numpy())) == pytest.approx(0.5, abs=0.015)


def test_held_out_data_is_not_training_data(generator: PlantedModel) -> None:
    train = {row.tobytes() for inputs, _ in generator.train(1000, 0, 1)[0].take(3) for row in inputs["ids"].numpy()}
    test = {row.tobytes() for inputs, _ in generator.test(1000).take(3) for row in inputs["ids"].numpy()}
    assert not train & test


@pytest.mark.parametrize("arguments", [{"exponent": 1.0}, {"samples": 0}, {"test_samples": 0}])
def test_bad_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Received"):
        PlantedModel(**({"samples": 10, "test_samples": 10} | arguments))


def test_fewer_samples_than_a_step_is_an_error(generator: PlantedModel) -> None:
    with pytest.raises(ValueError, match="lower --batch"):
        generator.train(batch=20_000, rank=0, ranks=4)
