"""What counting alone reaches on the validation items: the least that a model must beat which learns for minutes.

There are two yardsticks, both counted in the training part: the most popular items, and what most often came right
after the last item of a history, a Markov chain of first order. Only what occurs is counted and compared, so a million
items need no table of their pairs, and full ranking no score of every item. Of more actions than fit into memory, those
of a random sample of users are counted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories, histories_before, training_histories
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import Split, Targets
from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.metrics import summarise
from bert4rec.evaluation.protocol import Protocol, rank_among_negatives

USERS_AT_ONCE = 2**14
"""Whose items are paired up at a time: bounds the memory, not the result."""
RIVALS_AT_ONCE = 2**22
"""That are compared with targets at a time; likewise."""
MOST_COUNTED = 2**25
"""Actions; of a larger log, as many users are drawn as have about so many, always the same ones."""
MOST_RANKED = 2**16
"""Targets of a log that is too large to be counted as a whole."""
LEARNED = 1.5
"""What a model must reach in multiples of what popularity reaches, or it is likely to have learned nothing else."""
FEWEST_USERS = 100
"""With fewer, chance alone may put a model below popularity."""


@dataclass(frozen=True)
class Yardsticks:
    """Values of a criterion on the validation items."""

    popular: float
    """Of recommending the most popular items to everybody."""
    following: float
    """Of recommending what most often followed the last item."""

    @classmethod
    def measure(cls, dataset: Dataset, split: Split, criterion: Criterion) -> "Yardsticks":
        """Count and rank: a second for a million actions, and not much more than ten for any number."""
        end, asked = split.training_end("valid"), split.valid
        if (
            dataset.num_actions > MOST_COUNTED
        ):  # The targets are in the order of users, so these are some of all.
            every = -(-len(asked) // MOST_RANKED)
            asked = Targets(asked.users[::every], asked.positions[::every])

        def value(ranker: CountingRanker) -> float:
            ranks = {protocol: ranker.ranks(asked, protocol) for protocol in criterion.protocols}
            return criterion.of({name: summarise(found, [criterion.metric]) for name, found in ranks.items()})

        return cls(*(value(CountingRanker(dataset, end, pairs=pairs)) for pairs in (False, True)))

    def floor(self, users: int) -> float | None:
        """What popularity reaches, if a model that stays below it must have failed; None if it may have its reasons.

        It may where few `users` are asked, and where popularity is hard to beat: where what usually follows the last
        item is not much better either.
        """
        is_certain = users >= FEWEST_USERS and self.following >= LEARNED * self.popular
        return self.popular if is_certain else None


class CountingRanker:
    """Scores an item by how often it followed the last one; between equals, and below that, by popularity."""

    def __init__(self, dataset: Dataset, training_end: NDArray[np.int64], *, pairs: bool) -> None:
        """Count the training part, which ends at `training_end` for each user; without `pairs`, popularity alone."""
        training = _sample(training_histories(dataset, training_end))
        self._dataset, self._stride = dataset, dataset.num_items + 1
        popularity = training.item_counts(dataset.num_items)
        # Below 1, which is what having followed once is worth.
        self._popularity = popularity / (popularity.max() + 1)
        self._ascending = np.sort(self._popularity[1:])
        # Behind all pairs comes one that never occurs, so that every search ends at one.
        found = [np.array([self._stride**2])]
        for first in range(0, len(training) if pairs else 0, USERS_AT_ONCE):
            found.append(self._pairs(training[first : first + USERS_AT_ONCE]))
        self._keys, self._counts = np.unique(np.concatenate(found), return_counts=True)

    def _pairs(self, histories: Histories) -> NDArray[np.int64]:
        """Each item and the one right after it, as one number."""
        rows, items = histories.flat()
        is_followed = rows[:-1] == rows[1:]
        pairs = items[:-1].astype(np.int64) * self._stride + items[1:]
        return np.asarray(pairs[is_followed])

    def ranks(
        self, targets: Targets, protocol: Protocol, candidates: NegativeKind = "popularity"
    ) -> NDArray[np.int32]:
        """The rank of every target, as `rank_targets` finds it from the scores of all items."""
        if protocol == "sampled":
            negatives = self._dataset.negatives(candidates)
            return rank_among_negatives(self._scores, self._dataset, targets, negatives=negatives)
        histories = histories_before(self._dataset, targets.users, targets.positions)
        answers = self._dataset.sequences[targets.positions].astype(np.int64)
        rivals = np.cumsum(histories.lengths + self._pairs_after(self._newest(histories)).lengths)
        blocks = np.split(np.arange(len(targets)), np.flatnonzero(np.diff(rivals // RIVALS_AT_ONCE)) + 1)
        ranks = [self._rank_among_all(histories[rows], answers[rows]) for rows in blocks]
        return np.concatenate(ranks).astype(np.int32)

    def score_all(self, _users: NDArray[np.int64], histories: Histories) -> NDArray[np.float64]:
        """The scores of all items, [users, items + 1] with padding first: a `Scorer`."""
        newest = self._newest(histories)
        scores = np.tile(self._popularity, (len(newest), 1))
        rows, pairs = self._pairs_after(newest).flat()
        scores[rows, self._keys[pairs] - newest[rows]] += self._counts[pairs]
        return scores

    def _rank_among_all(self, histories: Histories, answers: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many other items score at least as high as each answer."""
        newest = self._newest(histories)
        bar = self._score(newest, answers)

        def count(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.bincount(rows, minlength=len(bar))

        # All items by their popularity, those that are lifted above the answer because they followed, less the history.
        rivals = len(self._ascending) - np.searchsorted(self._ascending, bar)
        rows, pairs = self._pairs_after(newest).flat()
        popularity = self._popularity[self._keys[pairs] - newest[rows]]
        is_lifted = (popularity < bar[rows]) & (popularity + self._counts[pairs] >= bar[rows])
        rivals += count(rows[is_lifted])
        if self._dataset.repeats == "exclude":
            rows, items = histories.flat()
            places = np.sort(rows * self._stride + items)
            # Each item once, however often it was chosen: sorting is faster than the hashes of `np.unique`.
            rows, seen = np.divmod(places[np.diff(places, prepend=-1) > 0], self._stride)
            rivals -= count(rows[self._score(newest[rows], seen) >= bar[rows]])
        return rivals - 1  # The answer itself is among them.

    def _scores(
        self, _users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Of `items` [users, K]: a `CandidateScorer`."""
        return self._score(self._newest(histories)[:, None], items)

    def _score(self, newest: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.float64]:
        keys = newest + items
        pairs = np.searchsorted(self._keys, keys)
        counts = np.where(self._keys[pairs] == keys, self._counts[pairs], 0)
        return np.asarray(self._popularity[items] + counts)

    def _newest(self, histories: Histories) -> NDArray[np.int64]:
        """The last item of each history, as the first half of a pair."""
        return histories.padded(1)[:, 0].astype(np.int64) * self._stride

    def _pairs_after(self, newest: NDArray[np.int64]) -> Histories:
        """Which pairs begin with each of these."""
        begin, end = (np.searchsorted(self._keys, newest + first) for first in (0, self._stride))
        return Histories(np.arange(len(self._keys), dtype=np.int32), begin, end)


def _sample(histories: Histories) -> Histories:
    """All rows, or as many random ones as are counted."""
    actions = int(histories.lengths.sum())
    if actions <= MOST_COUNTED:
        return histories
    tickets = np.asarray(np.random.PCG64(0).random_raw(len(histories)))
    return histories[np.flatnonzero(tickets < MOST_COUNTED / actions * 2.0**64)]
