"""The leave-one-out protocol: files, negatives, ranking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neumf import movielens
from support import metrics


@pytest.fixture
def data() -> movielens.LeaveOneOut:
    """Data of 30 users, each with 12 of 40 items. User 0 has all items except one."""
    random = np.random.default_rng(0)
    pairs = [(user, item) for user in range(1, 30) for item in random.permutation(40)[:12].tolist()]
    pairs += [(0, item) for item in range(40) if item != 17]
    users, items = np.array(pairs, np.int64).T
    return movielens.LeaveOneOut(users, items, np.arange(30), np.zeros((30, 5), np.int64), 30, 40)


def known(data: movielens.LeaveOneOut) -> set[tuple[int, int]]:
    return set(zip(data.users.tolist(), data.items.tolist(), strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_no_negative_is_in_the_users_training_set(data: movielens.LeaveOneOut, ranks: int) -> None:
    pairs = known(data)
    for rank in range(ranks):
        sampler = movielens.NegativeSampler(data, batch=1, rank=rank, ranks=ranks)
        for epoch in range(3):
            users, items, labels = sampler.epoch(epoch)
            drawn = set(zip(users[labels == 0].tolist(), items[labels == 0].tolist(), strict=True))
            assert drawn
            assert not drawn & pairs
            assert set(zip(users[labels == 1].tolist(), items[labels == 1].tolist(), strict=True)) <= pairs


def test_the_only_unseen_item_is_found(data: movielens.LeaveOneOut) -> None:
    users, items, labels = movielens.NegativeSampler(data, batch=1).epoch(0)
    of_user_0 = items[(users == 0) & (labels == 0)]
    assert of_user_0.size == 4 * 39
    assert set(of_user_0.tolist()) == {17}


def test_every_positive_comes_once_with_four_negatives_over_all_ranks(data: movielens.LeaveOneOut) -> None:
    shares = [movielens.NegativeSampler(data, batch=1, rank=rank, ranks=3).epoch(0) for rank in range(3)]
    users, items, labels = (np.concatenate(column) for column in zip(*shares, strict=True))
    positives = list(zip(users[labels == 1].tolist(), items[labels == 1].tolist(), strict=True))
    assert len(positives) == len(set(positives)) == data.users.size // 3 * 3
    assert np.count_nonzero(labels == 0) == 4 * len(positives)


def test_negatives_and_order_change_with_the_epoch_and_repeat_with_the_seed(data: movielens.LeaveOneOut) -> None:
    sampler = movielens.NegativeSampler(data, batch=1, seed=5)
    again = movielens.NegativeSampler(data, batch=1, seed=5)
    assert not np.array_equal(sampler.epoch(0)[1], sampler.epoch(1)[1])
    np.testing.assert_array_equal(sampler.epoch(1)[1], again.epoch(1)[1])


def test_batches_are_full_and_equal_in_number_on_all_ranks(data: movielens.LeaveOneOut) -> None:
    counts = []
    for rank in range(2):
        sampler = movielens.NegativeSampler(data, batch=64, rank=rank, ranks=2)
        batches = list(sampler.batches(epochs=2))
        assert all(labels.shape == inputs["user"].shape == inputs["item"].shape == (64,) for inputs, labels in batches)
        assert len(batches) == 2 * sampler.steps
        counts.append(len(batches))
    assert counts[0] == counts[1]


def test_too_large_a_batch_is_an_error(data: movielens.LeaveOneOut) -> None:
    with pytest.raises(ValueError, match="lower --batch"):
        movielens.NegativeSampler(data, batch=100_000)


def published_places(scores: np.ndarray, candidates: np.ndarray) -> list[int]:
    """Places by the authors' evaluation: a dict has one score per item, the negatives first, and is sorted stably."""
    result = []
    for row, items in zip(scores, candidates, strict=True):
        score_of = dict(zip([*items[1:], items[0]], [*row[1:], row[0]], strict=True))
        ranking = sorted(score_of, key=score_of.__getitem__, reverse=True)
        result.append(ranking.index(items[0]))
    return result


def test_places_equal_the_published_evaluation_with_ties_and_the_own_item_among_negatives() -> None:
    random = np.random.default_rng(1)
    candidates = np.array([random.permutation(60)[:21] for _ in range(50)])
    candidates[::5, 7] = candidates[::5, 0]
    quality = random.integers(0, 12, 60) / 4.0
    scores = quality[candidates]  # many ties
    scores[1::5] += random.random((10, 21))
    places = movielens.places(scores, candidates)
    for row, expected in enumerate(published_places(scores, candidates)):
        if row % 5:
            assert places[row] == expected
        else:  # in a dict, the user's item then takes its duplicate's place: some ties precede it, not all
            assert places[row] >= expected
    distinct = random.random(60)[candidates]
    assert movielens.places(distinct, candidates).tolist() == published_places(distinct, candidates)


def test_hit_rate_and_ndcg_of_known_places() -> None:
    hit_rate, ndcg = metrics.hit_rate_and_ndcg(np.array([0, 1, 9, 10]))
    assert hit_rate == 0.75
    assert ndcg == pytest.approx((1 + 1 / np.log2(3) + 1 / np.log2(11)) / 4)


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.train.rating").write_text("0\t3\t5\t978824351\n1\t2\t4\t978300174\n")
    (tmp_path / "x.test.rating").write_text("0\t1\t5\t978824351\n1\t5\t3\t978300174\n")
    (tmp_path / "x.test.negative").write_text("(0,1)\t2\t4\n(1,5)\t5\t6\n")
    data = movielens.load(tmp_path, "x")
    assert data.users.tolist() == [0, 1]
    assert data.items.tolist() == [3, 2]
    assert data.candidates.tolist() == [[1, 2, 4], [5, 5, 6]]
    assert (data.user_count, data.item_count) == (2, 7)


def test_pairs_file_goes_before_ratings(tmp_path: Path) -> None:
    (tmp_path / "x.train.pairs.tsv").write_text("0\t3\n")
    (tmp_path / "x.train.rating").write_text("9\t9\t5\t978824351\n")
    (tmp_path / "x.test.rating").write_text("0\t1\t5\t1\n")
    (tmp_path / "x.test.negative").write_text("(0,1)\t2\n")
    assert movielens.load(tmp_path, "x").users.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.test.rating", None, "no such file"),
        ("x.test.negative", None, "no such file"),
        ("x.test.negative", "(0,7)\t2\n", "not those of the test file"),
        ("x.test.negative", "(0,1)\ttwo\n", "integers"),
        ("x.train.rating", "a\tb\t5\t1\n", "tab-separated integers"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    files = {"x.train.rating": "0\t3\t5\t1\n", "x.test.rating": "0\t1\t5\t1\n", "x.test.negative": "(0,1)\t2\n"}
    for file, content in (files | {name: text}).items():
        if content is not None:
            (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        movielens.load(tmp_path, "x")
    assert name in str(error.value)
