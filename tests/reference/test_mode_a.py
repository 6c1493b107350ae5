"""The reference itself agrees with numbers computed by hand and with float64."""

from __future__ import annotations

import numpy as np
import pytest
from mode_a import Rule, Simulation, SparseBatch, local_sums, reduce_dense, reduce_sparse, rounded

pytestmark = pytest.mark.quick


def flat(ranks: list[dict[int, np.ndarray]], reduction: str) -> dict[int, np.ndarray]:
    return reduce_sparse(ranks, reduction, [[rank] for rank in range(len(ranks))], "float32")


def published_example() -> list[SparseBatch]:
    """Keys e f g h i on three ranks, with frequencies 2 1 2 1 3. Rank r's gradient of its n-th key is 10 r + n."""
    e, f, g, h, i = range(5)
    ranks = []
    for rank, keys in enumerate([[e, f, i], [g, i, e], [h, g, i]]):
        grads = np.array([[10 * rank + n] for n in range(len(keys))], np.float32)
        ranks.append(SparseBatch(np.array(keys), grads))
    return ranks


def test_published_example_divides_by_the_ranks_that_had_the_key() -> None:
    reduced = flat([local_sums(batch) for batch in published_example()], "frequency")
    assert {key: grad[0] for key, grad in reduced.items()} == {
        0: (0 + 12) / 2,
        1: 1,
        2: (10 + 21) / 2,
        3: 20,
        4: np.float32(np.float32(2 + 11 + 22) / np.float32(3)),
    }


def test_a_key_counts_once_per_rank() -> None:
    twice = SparseBatch(np.array([7, 7]), np.array([[1.0], [2.0]], np.float32))
    once = SparseBatch(np.array([7]), np.array([[5.0]], np.float32))
    sums = [local_sums(twice), local_sums(once)]
    assert flat(sums, "frequency")[7] == 4
    assert flat(sums, "average")[7] == 4
    assert flat([*sums, {}], "average")[7] == np.float32(8) / np.float32(3)
    assert flat(sums, "sum")[7] == 8


def test_what_travels_is_the_rounded_sum_of_a_sender() -> None:
    ranks = [{1: np.array([value], np.float32)} for value in (1.0, 2.0**-8, 2.0**-9, 4.0)]
    # 1 + 2^-8 lies halfway between two bfloat16 values and is rounded to the even one; 4 + 2^-9 is rounded down.
    assert reduce_sparse(ranks, "sum", [[0, 1], [2, 3]], "bfloat16")[1] == 1 + 4
    assert reduce_sparse(ranks, "sum", [[0, 1], [2, 3]], "float32")[1] == 5 + 2.0**-8 + 2.0**-9
    assert reduce_sparse(ranks, "frequency", [[0, 1], [2, 3]], "bfloat16")[1] == 5 / 4
    assert rounded(np.array([65519, 65520, 1 + 2.0**-11], np.float32), "float16").tolist() == [65504, np.inf, 1]


@pytest.mark.parametrize(("kind", "tolerance"), [("sgd", 2e-6), ("adagrad", 2e-6), ("adam", 2e-5)])
def test_float32_stays_near_float64(kind: str, tolerance: float) -> None:
    random = np.random.default_rng(1)
    rule, weight = Rule(kind), np.zeros(64, np.float32)
    exact, slots = np.zeros(64), [np.full(64, 0.1), np.zeros(64), np.zeros(64)]
    for step in range(1, 201):
        grad = random.normal(size=64).astype(np.float32)
        weight = rule.update("w", weight, grad, 0.05, step)
        g = grad.astype(np.float64)
        if kind == "sgd":
            exact -= 0.05 * g
        elif kind == "adagrad":
            slots[0] += g * g
            exact -= 0.05 * g / np.sqrt(slots[0] + 1e-7)
        else:
            slots[1] += (g - slots[1]) * 0.1
            slots[2] += (g * g - slots[2]) * 0.001
            exact -= 0.05 * slots[1] / (1 - 0.9**step) / (np.sqrt(slots[2] / (1 - 0.999**step)) + 1e-7)
    assert np.abs(weight - exact).max() <= tolerance * np.abs(exact).max()


def test_ranks_without_a_table_leave_it_alone() -> None:
    job = Simulation([np.zeros(1)], [{1: np.ones(2)}], "sgd", "frequency", 0.5, [[0, 1]])
    job.train([[np.ones(1)], [np.zeros(1)]], [[None], [None]])
    assert job.tables[0][1].tolist() == [1, 1]
    assert job.dense[0].tolist() == [-0.25]


def test_ranks_count_by_their_weights() -> None:
    grads = [np.array([1.0]), np.array([np.nan]), np.array([5.0])]
    assert reduce_dense(grads, [3, 0, 1]).tolist() == [2]
    assert reduce_dense(grads, [0, 0, 0]).tolist() == [0]
    assert reduce_dense(grads[::2], [1, 1]).tolist() == [3]


def test_a_rank_of_weight_0_has_no_keys() -> None:
    job = Simulation([np.zeros(1)], [{1: np.ones(1), 2: np.ones(1)}], "sgd", "frequency", 1.0, [[0], [1], [2]])
    batch = [SparseBatch(np.array([1]), np.array([[4.0]])), SparseBatch(np.array([1]), np.array([[2.0]]))]
    lost = SparseBatch(np.array([1, 2]), np.array([[np.nan], [np.nan]]))
    job.train([[np.ones(1)]] * 3, [[batch[0]], [lost], [batch[1]]], [2.0, 0.0, 0.5])
    assert {key: row[0] for key, row in job.tables[0].items()} == {1: 1 - 3, 2: 1}
