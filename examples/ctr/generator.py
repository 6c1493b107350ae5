"""`PlantedModel`: generates click data in the shape of Criteo, with Zipf ids, from a planted model with a known AUC.

Every batch is a pure function of the seed and the batch number, computed by TensorFlow ops alone. So any rank can make
any batch, nothing is stored, and Python's interpreter lock does not slow it down.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from support import metrics

# The number of distinct values of each of Criteo's 26 categories, in its seven-day data set.
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
DENSE = 13
_TEST_STREAM = 1 << 40  # the number of the first batch of held-out data
_HEAD = 100  # the number of ids with a weight in each category: as many as a few million samples can teach
_DENSE_SCALE, _ID_SCALE, _BIAS = 0.2, 0.35, -1.3


class PlantedModel:
    """Generates clicks from a planted logistic model of 13 counts and 26 categories.

    The logit is a bias, plus a weighted sum of the standardised logarithms of the counts, plus one weight for each of
    the most frequent ids of a category. The other ids, which are millions, have no weight. A table must store them
    without fitting their noise.

    Args:
        samples: the number of training samples, all ranks together.
        test_samples: the number of held-out samples.
        seed: the seed of the planted weights and of all batches.
        exponent: the exponent of the Zipf distribution of ids, not 1.
    """

    name = "generator"
    features = tuple(f"C{number + 1}" for number in range(len(CARDINALITIES)))
    dense_width = DENSE
    distinct_ids: tuple[int | None, ...] = CARDINALITIES

    def __init__(self, *, samples: int, test_samples: int, seed: int = 0, exponent: float = 1.2) -> None:
        if exponent <= 0 or exponent == 1:
            raise ValueError(f"exponent must be positive and not 1. Received: {exponent}")
        if samples < 1 or test_samples < 2:
            raise ValueError(
                "there must be at least 1 sample and 2 held-out samples. Received: "
                f"samples={samples}, test_samples={test_samples}"
            )
        self.samples = samples
        self.test_samples = test_samples
        self._seed = seed
        self._exponent = exponent
        draw = np.random.default_rng(seed)
        self._dense_weights = draw.normal(0, _DENSE_SCALE, DENSE).astype(np.float32)
        weights = draw.normal(0, _ID_SCALE, (len(CARDINALITIES), _HEAD + 1)).astype(np.float32)
        weights[:, _HEAD] = 0
        self._id_weights = weights

    def train(self, batch: int, rank: int, ranks: int) -> tuple[tf.data.Dataset, int]:
        """See `ClickData.train`. In step k, the ranks train batches k * ranks to (k + 1) * ranks - 1."""
        steps = self.samples // (batch * ranks)
        if not steps:
            raise ValueError(
                f"{self.samples} samples are fewer than one step of {ranks} ranks x {batch} samples. Use a lower "
                "--batch or a higher --samples"
            )
        numbers = tf.data.Dataset.range(rank, steps * ranks, ranks)
        return numbers.map(lambda number: self.batch(number, batch)[:2]), steps

    def test(self, batch: int) -> tf.data.Dataset:
        """See `ClickData.test`."""
        return self._test(batch).map(lambda inputs, labels, logits: (inputs, labels))

    def planted_auc(self) -> float:
        """Returns the AUC of the planted model on the held-out data. Trained models cannot be expected to exceed it."""
        parts = [(labels.numpy(), logits.numpy()) for _, labels, logits in self._test(8192)]
        return metrics.auc(*map(np.concatenate, zip(*parts, strict=True)))

    def _test(self, batch: int) -> tf.data.Dataset:
        batch = min(batch, self.test_samples)
        count = self.test_samples // batch
        numbers = tf.data.Dataset.range(_TEST_STREAM, _TEST_STREAM + count)
        return numbers.map(lambda number: self.batch(number, batch))

    def batch(self, number: tf.Tensor, size: int) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        """Makes batch `number`: inputs, labels, float32[size], and the planted logits of the labels, float32[size]."""
        dense, values, labels, logits = self.draw(number, size)
        keys = _scatter_bits(values, tf.range(len(CARDINALITIES), dtype=tf.int64))
        return {"dense": dense, "ids": keys}, labels, logits

    def draw(self, number: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Draws batch `number`.

        Returns:
            The dense inputs, float32[size, 13]; the value of each category, int64[size, 26], counted from 0, the most
            frequent one; the labels; and their planted logits.
        """
        seed = tf.stack([tf.constant(self._seed, tf.int64), tf.cast(number, tf.int64)])
        streams = tf.random.split(seed, 3)
        uniform = tf.random.stateless_uniform([size, len(CARDINALITIES)], streams[0], dtype=tf.float64)
        normal = tf.random.stateless_normal([size, DENSE], streams[1])

        values = self._zipf(uniform)
        flat = tf.range(len(CARDINALITIES), dtype=tf.int64) * (_HEAD + 1) + tf.minimum(values, _HEAD)
        weights = tf.gather(tf.constant(self._id_weights.reshape(-1)), flat)
        logits = _BIAS + tf.linalg.matvec(normal, tf.constant(self._dense_weights)) + tf.reduce_sum(weights, axis=1)
        chance = tf.random.stateless_uniform([size], streams[2])
        labels = tf.cast(chance < tf.sigmoid(logits), tf.float32)
        # Like Criteo's integers, the counts have a long tail. Their logarithms are the features.
        counts = tf.floor(tf.exp(normal + 2.0))
        return tf.math.log1p(counts) - 2.0, values, labels, logits

    def _zipf(self, uniform: tf.Tensor) -> tf.Tensor:
        """Returns Zipf ranks from 0, int64, by inversion of the continuous power law on [1, cardinality + 1)."""
        power = 1.0 - self._exponent
        span = np.power(np.asarray(CARDINALITIES, np.float64) + 1.0, power) - 1.0
        rank = tf.pow(uniform * span + 1.0, 1.0 / power)
        return tf.minimum(tf.cast(rank, tf.int64), tf.constant(CARDINALITIES, tf.int64)) - 1


def _scatter_bits(value: tf.Tensor, feature: tf.Tensor) -> tf.Tensor:
    """Returns keys of 64 bits that look like hashes of strings: splitmix64, one-to-one within a feature."""
    x = tf.bitcast(value + feature * (1 << 40), tf.uint64)
    x += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64)))
        x *= tf.constant(factor, tf.uint64)
    return tf.bitcast(tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(31, tf.uint64))), tf.int64)
