"""The drift suite: 90 days in which 2 % of the keys are replaced each day, with and without eviction and admission.

A logistic regression on three ids per sample: the logit is the sum of their rows. Keys have random effects, and follow
Zipf's law with exponent 1.05. Each day the model first predicts the samples of the day, and then trains on them. All
variants see the same samples, so their areas under the ROC curve (AUC) are compared day by day.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

import tf_sparse_ps as tsps
from benchmarks import harness

FEATURES, REPLACED = 3, 0.02
WARM_UP_DAYS = 10  # not compared: the tables fill


@dataclasses.dataclass(frozen=True)
class Stream:
    """The samples of all days. Attributes: the number of keys at a time, of samples per day, and of steps per day."""

    keys: int
    samples: int
    steps: int
    days: int

    def all_days(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Yields the ids, int64[samples, FEATURES], and the labels, float32[samples], of each day."""
        random = np.random.default_rng(5)
        shares = np.arange(1, self.keys + 1) ** -1.05
        cumulated = np.cumsum(shares / shares.sum())
        key_of_rank = np.arange(self.keys, dtype=np.int64)
        effects = random.normal(0, 1, self.keys)
        next_key = self.keys
        for day in range(self.days):
            if day > 0:
                replaced = random.choice(self.keys, int(REPLACED * self.keys), replace=False)
                key_of_rank[replaced] = next_key + np.arange(len(replaced))
                effects[replaced] = random.normal(0, 1, len(replaced))
                next_key += len(replaced)
            ranks = np.minimum(np.searchsorted(cumulated, random.random((self.samples, FEATURES))), self.keys - 1)
            logits = effects[ranks].sum(1)
            labels = random.random(self.samples) < 1 / (1 + np.exp(-logits))
            yield key_of_rank[ranks], labels.astype(np.float32)

    @property
    def keys_in_all(self) -> int:
        """The number of keys of all days together."""
        return self.keys + (self.days - 1) * int(REPLACED * self.keys)


class Variant:
    """A table under a policy, and what is measured of it."""

    def __init__(self, folder: Path, name: str, **policies: object) -> None:
        config = tsps.TableConfig(
            "t", 1, initializer="zeros", optimizer=tsps.optimizers.Adagrad(learning_rate=0.1), **policies
        )
        self.name, self.folder = name, folder / name.replace(" ", "-")
        self.table = tsps.Table.create(self.folder / "t", config)
        self.aucs: list[float] = []
        self.rows: list[int] = []
        self.bytes: list[int] = []
        self.step_ms: list[float] = []

    def day(self, ids: npt.NDArray[np.int64], labels: npt.NDArray[np.float32], steps: int) -> None:
        """Predicts a day, and then trains on it."""
        self.aucs.append(_auc(self._logits(ids), labels))
        for batch_ids, batch_labels in zip(np.array_split(ids, steps), np.array_split(labels, steps), strict=True):
            errors = 1 / (1 + np.exp(-self._logits(batch_ids))) - batch_labels
            gradients = np.repeat(errors, FEATURES)[:, np.newaxis].astype(np.float32)
            keys = batch_ids.reshape(-1)
            began = time.process_time()
            self.table.apply_gradients(keys, gradients)
            self.step_ms.append((time.process_time() - began) * 1e3)
        self.rows.append(len(self.table))
        self.bytes.append(sum(file.stat().st_blocks * 512 for file in self.folder.rglob("*") if file.is_file()))

    def _logits(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return self.table.lookup(ids.reshape(-1)).reshape(-1, FEATURES).sum(1)


def _auc(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> float:
    """Returns the probability that a positive sample has a higher score than a negative one."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # equal scores have their mean rank
    positive = labels > 0
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def run(options: harness.Options) -> list[harness.Result]:
    """Trains all variants on the same stream."""
    stream = Stream(20_000, 2_000, 5, 15) if options.quick else Stream(1_500_000, 40_000, 20, 90)
    bound = stream.keys_in_all // 10
    policies: dict[str, dict[str, object]] = {
        "unbounded": {},
        "lru": {"eviction": tsps.Eviction(max_rows=bound)},
        "lfu": {"eviction": tsps.Eviction(max_rows=bound, policy="lfu", half_life=10 * stream.steps)},
        "unused for 10 days": {"eviction": tsps.Eviction(10 * stream.steps)},
    }
    for part in (2, 4):  # for the plot
        lower = tsps.Eviction(max_rows=bound // part, policy="lfu", half_life=10 * stream.steps)
        policies[f"lfu, a {'half' if part == 2 else 'quarter'} of the bound"] = {"eviction": lower}
    for count in (2, 3, 5):
        admission = tsps.Admission(count, stream.keys_in_all, half_life=10 * stream.steps)
        policies[f"count {count}"] = {"admission": admission}
    with tempfile.TemporaryDirectory(prefix="tf_sparse_ps-drift-", dir="/dev/shm") as folder:
        os.chmod(folder, 0o700)
        variants = [Variant(Path(folder), name, **policy) for name, policy in policies.items()]  # type: ignore[arg-type]
        for ids, labels in tqdm(
            stream.all_days(), total=stream.days, desc="drift", unit=" days", delay=2, disable=None
        ):
            for variant in variants:
                variant.day(ids, labels, stream.steps)
        case = f"{stream.days} days, {stream.keys:,} keys at a time, {stream.keys_in_all:,} in all, max_rows {bound:,}"
        return [result for variant in variants for result in _results(case, variant, variants[0])]


def _results(case: str, variant: Variant, peer: Variant) -> list[harness.Result]:
    warm_up = min(WARM_UP_DAYS, len(variant.aucs) // 2)
    lost = [before - after for before, after in zip(peer.aucs[warm_up:], variant.aucs[warm_up:], strict=True)]
    most_rows = max(variant.rows[warm_up:])
    full = next(day for day, rows in enumerate(variant.rows) if rows >= 0.99 * most_rows)
    error = float(np.std(lost) / len(lost) ** 0.5)

    def result(what: str, value: float, unit: str, low: float = 0, high: float = 0) -> harness.Result:
        return harness.Result("drift", case, f"{variant.name}: {what}", value, low or value, high or value, unit, None)

    mean_lost = float(np.mean(lost))
    results = [
        result("AUC on the next day", float(np.mean(variant.aucs[warm_up:])), ""),
        result("rows at the end", variant.rows[-1], "rows", min(variant.rows[warm_up:]), most_rows),
        result(f"bytes at the end to day {full + 1}, when it was full", variant.bytes[-1] / variant.bytes[full], "x"),
        result("step, processor time", float(np.median(variant.step_ms)), "ms"),
    ]
    if variant is not peer:
        results.insert(1, result("AUC lost, paired", mean_lost, "", mean_lost - error, mean_lost + error))
    return results
