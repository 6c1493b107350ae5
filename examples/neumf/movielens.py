"""Reads the leave-one-out MovieLens-1M files of He et al. 2017, and samples negatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Batch = tuple[dict[str, NDArray[np.int64]], NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class LeaveOneOut:
    """Positive pairs for training, and for every user one held-out item among negatives.

    Attributes:
        users: the users of the training pairs, int64[pairs].
        items: the items of the training pairs, int64[pairs].
        test_users: the users of the test cases, int64[cases].
        candidates: the items of the test cases, int64[cases, 1 + negatives]; column 0 is the held-out item.
        user_count: the number of users, which are 0 to user_count - 1.
        item_count: the number of items, which are 0 to item_count - 1.
    """

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    test_users: NDArray[np.int64]
    candidates: NDArray[np.int64]
    user_count: int
    item_count: int


def load(folder: str | Path, stem: str = "ml-1m") -> LeaveOneOut:
    """Reads STEM.train.pairs.tsv (user, item) or STEM.train.rating, STEM.test.rating and STEM.test.negative.

    Raises:
        ValueError: a file is missing, or its lines have another format.
    """
    folder = Path(folder)
    training = folder / f"{stem}.train.pairs.tsv"
    if not training.is_file():
        training = folder / f"{stem}.train.rating"  # the name in the authors' repository
    pairs = _integers(training, (0, 1))
    test = _integers(folder / f"{stem}.test.rating", (0, 1))
    negatives = _negatives(folder / f"{stem}.test.negative", test)
    candidates = np.concatenate([test[:, 1:], negatives], axis=1)
    return LeaveOneOut(
        users=pairs[:, 0],
        items=pairs[:, 1],
        test_users=test[:, 0],
        candidates=candidates,
        user_count=int(max(pairs[:, 0].max(), test[:, 0].max())) + 1,
        item_count=int(max(pairs[:, 1].max(), candidates.max())) + 1,
    )


class NegativeSampler:
    """Samples each epoch: all positives in a new order, with new negatives that are not in the user's training set.

    All ranks use the same order. Of N ranks, each takes every N-th pair and draws the negatives of its pairs.

    Args:
        data: the training pairs.
        negatives: the number of negatives per positive.
        batch: the samples per step of this rank.
        rank: this rank.
        ranks: the number of ranks.
        seed: the seed, the same on all ranks.
    """

    def __init__(
        self, data: LeaveOneOut, *, negatives: int = 4, batch: int, rank: int = 0, ranks: int = 1, seed: int = 0
    ) -> None:
        self.steps = data.users.size // ranks * (1 + negatives) // batch
        if not self.steps:
            raise ValueError(
                f"{data.users.size} pairs with {negatives} negatives each are fewer than one step of {ranks} ranks x "
                f"{batch} samples. Use a lower --batch"
            )
        self._data = data
        self._negatives = negatives
        self._batch = batch
        self._rank = rank
        self._ranks = ranks
        self._seed = seed
        # The pairs as sorted codes, in which a binary search finds a pair. A matrix of users x items would be larger.
        self._known = np.unique(data.users * data.item_count + data.items)

    def epoch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Returns this rank's users, items and labels of an epoch, shuffled: `steps * batch` of each."""
        order = np.random.default_rng((self._seed, number)).permutation(self._data.users.size)
        pairs = order[self._rank :: self._ranks][: self._data.users.size // self._ranks]
        draw = np.random.default_rng((self._seed, number, 1 + self._rank))
        users, positives = self._data.users[pairs], self._data.items[pairs]
        repeated = np.repeat(users, self._negatives)
        items = np.concatenate([positives, self._unseen(repeated, draw)])
        users = np.concatenate([users, repeated])
        labels = np.zeros(users.size, np.float32)
        labels[: positives.size] = 1
        shuffled = draw.permutation(users.size)[: self.steps * self._batch]
        return users[shuffled], items[shuffled], labels[shuffled]

    def batches(self, epochs: int) -> Iterator[Batch]:
        """Yields the batches of all epochs."""
        for number in range(epochs):
            users, items, labels = self.epoch(number)
            for start in range(0, labels.size, self._batch):
                part = slice(start, start + self._batch)
                yield {"user": users[part], "item": items[part]}, labels[part]

    def _unseen(self, users: NDArray[np.int64], draw: np.random.Generator) -> NDArray[np.int64]:
        """Draws a uniform item for each of `users`, again and again until the user does not have it."""
        items = draw.integers(self._data.item_count, size=users.size)
        pending = np.arange(users.size)
        while pending.size:
            codes = users[pending] * self._data.item_count + items[pending]
            place = np.minimum(np.searchsorted(self._known, codes), self._known.size - 1)
            pending = pending[self._known[place] == codes]
            items[pending] = draw.integers(self._data.item_count, size=pending.size)
        return items


def places(scores: NDArray[np.floating], candidates: NDArray[np.integer]) -> NDArray[np.int64]:
    """Returns the number of candidates before the held-out item, column 0, in each row.

    As in the published evaluation, a negative that is the held-out item itself does not count. The files have 156 such
    negatives. A tie counts as before the held-out item, so a model with equal scores has no hit.

    Args:
        scores: the scores of the candidates, [cases, 1 + negatives].
        candidates: the items, [cases, 1 + negatives].
    """
    before = (scores[:, 1:] >= scores[:, :1]) & (candidates[:, 1:] != candidates[:, :1])
    return np.count_nonzero(before, axis=1)


def _integers(path: Path, columns: tuple[int, ...]) -> NDArray[np.int64]:
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    try:
        return np.loadtxt(path, np.int64, delimiter="\t", usecols=columns, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: expected tab-separated integers: {error}") from error


def _negatives(path: Path, test: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reads lines `(user,item)<TAB>item...`, which must be in the order of the test file."""
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    with path.open() as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    cases = [f"({user},{item})" for user, item in test.tolist()]
    if [line[0] for line in lines] != cases:
        raise ValueError(f"{path}: the (user,item) cases are not those of the test file in the same order")
    try:
        return np.array([line[1:] for line in lines], np.int64)
    except ValueError as error:
        raise ValueError(f"{path}: expected the same number of integers in every line: {error}") from error
