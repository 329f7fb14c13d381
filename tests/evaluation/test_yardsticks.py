"""What counting reaches: answers that can be checked by hand, and the ranks that scores of all items would give."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bert4rec.data.dataset import Repeats
from bert4rec.data.histories import Histories, training_histories
from bert4rec.data.splits import leave_one_out
from bert4rec.evaluation import yardsticks
from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.judge import judge, metrics_of
from bert4rec.evaluation.yardsticks import CountingRanker, Yardsticks
from bert4rec.models.model import make_scorer
from bert4rec.models.pop import Pop
from tests.conftest import MakeDataset
from tests.evaluation.tiny import dataset_of

HISTORIES = [[1, 2, 4, 5], [2, 3, 1, 4], [2, 4, 3, 1], [3, 2, 4, 1, 5]]
"""Without their last two items, 4 follows 2 twice, and 2 → 3, 1 → 2 and 3 → 2 occur once. Item 2 is chosen four times,
3 and 4 twice, 1 once, 5 never."""


@pytest.mark.parametrize(
    ("repeats", "popular", "following"),
    [("exclude", [1, 1, 0, 0], [0, 1, 0, 0]), ("keep", [2, 3, 2, 3], [0, 3, 2, 3])],
)
def test_what_most_often_followed_the_last_item_comes_first_and_then_what_is_popular(
    repeats: Repeats, popular: list[int], following: list[int]
) -> None:
    dataset = dataset_of(HISTORIES, num_items=5, repeats=repeats)
    split = leave_one_out(dataset)
    for pairs, ranks in ((False, popular), (True, following)):
        ranker = CountingRanker(dataset, split.training_end("valid"), pairs=pairs)
        assert ranker.ranks(split.valid, "full").tolist() == ranks


def wandering(users: int, items: int) -> list[list[int]]:
    """Mostly one step on, sometimes anywhere, so that pairs, ties and repeats abound; not all items are as popular."""
    rng = np.random.default_rng(1)
    moves = [
        np.where(rng.random(length) < 0.7, 1, rng.integers(items // 2, size=length))
        for length in rng.integers(3, 20, size=users)
    ]
    return [(steps.cumsum() % items).tolist() for steps in moves]


@pytest.mark.parametrize("repeats", ["exclude", "keep"])
def test_ranks_are_those_that_the_scores_of_all_items_give(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch, repeats: Repeats
) -> None:
    monkeypatch.setattr(yardsticks, "RIVALS_AT_ONCE", 100)
    monkeypatch.setattr(yardsticks, "USERS_AT_ONCE", 7)
    dataset = make_dataset(wandering(60, 25), repeats=repeats)
    split = leave_one_out(dataset)
    end = split.training_end("valid")
    popularity = np.bincount(
        training_histories(dataset, end).flat()[1], minlength=dataset.num_items + 1
    ) / len(dataset.sequences)
    follows = np.zeros((dataset.num_items + 1,) * 2)
    for begin, stop in zip(dataset.offsets[:-1], end, strict=True):
        items = dataset.sequences[begin:stop]
        np.add.at(follows, (items[:-1], items[1:]), 1)

    def scores(_users: NDArray[np.int64], histories: Histories) -> NDArray[np.float64]:
        return follows[histories.padded(1)[:, 0]] + popularity

    expected = {
        False: judge(make_scorer(Pop.fit(dataset, end)), dataset, split, "valid"),
        True: judge(scores, dataset, split, "valid"),
    }
    assert expected[False].full.tolist() != expected[True].full.tolist()
    for pairs, ranks in expected.items():
        ranker = CountingRanker(dataset, end, pairs=pairs)
        assert ranker.ranks(split.valid, "sampled").tolist() == ranks.sampled.tolist()
        assert ranker.ranks(split.valid, "full").tolist() == ranks.full.tolist()
        assert judge(ranker.score_all, dataset, split, "valid").full.tolist() == ranks.full.tolist()
    criterion = Criterion("NDCG@5", "both")
    values = [criterion.of(metrics_of(ranks, ["NDCG@5"])) for ranks in expected.values()]
    assert Yardsticks.measure(dataset, split, criterion) == Yardsticks(*values)


def test_popularity_is_a_floor_only_where_many_are_asked_and_something_else_is_clearly_better() -> None:
    assert Yardsticks(popular=0.1, following=0.2).floor(users=100) == 0.1
    assert Yardsticks(popular=0.1, following=0.2).floor(users=99) is None
    assert Yardsticks(popular=0.1, following=0.11).floor(users=10_000) is None


def test_of_a_log_that_is_too_large_to_count_some_users_are_counted(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(wandering(800, 25), repeats="keep")
    split = leave_one_out(dataset)

    def measure() -> Yardsticks:
        return Yardsticks.measure(dataset, split, Criterion("NDCG@10", "full"))

    of_all = measure()
    monkeypatch.setattr(yardsticks, "MOST_COUNTED", dataset.num_actions // 2)
    monkeypatch.setattr(yardsticks, "MOST_RANKED", 300)
    ranker = CountingRanker(dataset, split.training_end("valid"), pairs=True)
    assert 0.3 < (ranker._counts.sum() - 1) / (dataset.num_actions - 3 * dataset.num_users) < 0.7
    assert measure().following == pytest.approx(of_all.following, rel=0.1)
    assert measure().popular == pytest.approx(of_all.popular, rel=0.3)
    assert measure() == measure()
