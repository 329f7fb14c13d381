"""Several targets a user, and what is recommended as a whole, beside plain Python that follows the textbook."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from statistics import mean
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.splits import Split, Targets, leave_one_out
from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.exam import Exam
from bert4rec.evaluation.judge import judge, metrics_of
from bert4rec.evaluation.lists import warn_of_same_lists
from bert4rec.evaluation.protocol import Scorer, rank_target_sets
from bert4rec.models.model import make_scorer
from bert4rec.models.pop import Pop
from tests.conftest import MakeDataset
from tests.evaluation.tiny import InChunks, dataset_of
from tests.training.tiny import random_histories

NUM_ITEMS = 9
CUTOFFS = [1, 2, 4, 30]
CONVERT: list[Callable[[NDArray[Any]], Any]] = [
    np.asarray,
    lambda table: torch.from_numpy(table).bfloat16(),
    lambda table: InChunks(torch.from_numpy(table), 1),
    lambda table: InChunks(table, 4),
]
NOBODY = Targets(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Case:
    """What users did before and after the cut, and what a model says."""

    before: list[list[int]]
    after: list[list[int]]
    scores: list[list[float]]
    repeats: Repeats

    @property
    def dataset(self) -> Dataset:
        histories = [first + then for first, then in zip(self.before, self.after, strict=True)]
        return dataset_of(histories, NUM_ITEMS, self.repeats)

    @property
    def exam(self) -> Exam:
        dataset = self.dataset
        cut = dataset.offsets[:-1] + np.array([len(history) for history in self.before])
        split = Split("time", dataset.offsets, cut.__getitem__, cut.__getitem__, NOBODY, NOBODY)
        return Exam(dataset, split, "test", "all", "popularity", CUTOFFS)

    def scorer(self, convert: Callable[[NDArray[Any]], Any] = np.asarray) -> Scorer:
        table = np.array(self.scores, np.float32)
        return lambda users, _histories: convert(table[users])

    def asked(self) -> list[tuple[list[int], set[int]]]:
        """Of each user with a history and something to guess: all candidates, best first, and the targets.

        Targets are behind everything that is as good.
        """
        found = []
        for before, after, scores in zip(self.before, self.after, self.scores, strict=True):
            seen = set(before) if self.repeats == "exclude" else set()
            if before and (targets := set(after) - seen):
                candidates = set(range(1, NUM_ITEMS + 1)) - seen
                order = sorted(candidates, key=lambda item: (-scores[item], item in targets))
                found.append((order, targets))
        return found


@st.composite
def cases(draw: st.DrawFn, tied: bool = False) -> Case:
    items = st.lists(st.integers(1, NUM_ITEMS), max_size=6)
    score = st.sampled_from([-float("inf"), -1.0, 0.0, 0.5, 2.0, float("inf")])
    scores = (
        st.lists(score, min_size=NUM_ITEMS + 1, max_size=NUM_ITEMS + 1)
        if tied
        else st.permutations([float(score) for score in range(NUM_ITEMS + 1)])
    )
    users = draw(st.lists(st.tuples(items, items, scores), min_size=1, max_size=6))
    before, after, opinions = (list(each) for each in zip(*users, strict=True))
    case = Case(before, after, opinions, draw(st.sampled_from(get_args(Repeats))))
    return case if case.asked() else Case([[1]], [[2]], [[0.0] * (NUM_ITEMS + 1)], "exclude")


def textbook(order: list[int], targets: set[int], k: int) -> dict[str, float]:
    hits = [item in targets for item in order[:k]]
    ideal = sum(1 / log2(place + 2) for place in range(min(k, len(targets))))
    return {
        f"HR@{k}": any(hits),
        f"NDCG@{k}": sum(hit / log2(place + 2) for place, hit in enumerate(hits)) / ideal,
        f"Recall@{k}": sum(hits) / len(targets),
        f"Precision@{k}": sum(hits) / k,
        "MRR": max(1 / (order.index(target) + 1) for target in targets),
    }


@given(case=cases(tied=True))
@pytest.mark.parametrize("convert", CONVERT)
def test_metrics_of_several_targets_are_those_of_the_textbook(
    convert: Callable[[NDArray[Any]], Any], case: Case
) -> None:
    found = case.exam.judge(case.scorer(convert))
    expected: dict[str, float] = {}
    for k in CUTOFFS:
        users = [textbook(order, targets, k) for order, targets in case.asked()]
        expected |= {name: mean(user[name] for user in users) for name in users[0]}
    del expected["NDCG@1"]
    assert found.metrics == {"full": pytest.approx(expected)}
    (slices,) = found.slices["full"].values()
    assert sum(each["users"] for each in slices) == len(case.asked())
    for name, value in expected.items():
        assert sum(each["users"] * each["metrics"][name] for each in slices) == pytest.approx(
            value * len(case.asked())
        )


@given(case=cases(tied=True), batch_size=st.integers(1, 5))
def test_ranks_are_the_same_however_many_are_compared_at_once(case: Case, batch_size: int) -> None:
    sets = case.exam.sets
    assert sets is not None
    in_parts = rank_target_sets(case.scorer(), case.dataset, sets, batch_size=batch_size)
    assert in_parts.tolist() == rank_target_sets(case.scorer(), case.dataset, sets).tolist()
    assert in_parts.dtype == np.int32


@given(case=cases())
@pytest.mark.parametrize("convert", CONVERT)
def test_metrics_of_lists_are_those_that_one_counts(
    convert: Callable[[NDArray[Any]], Any], case: Case
) -> None:
    found = case.exam.judge(case.scorer(convert)).lists
    bought = Counter(item for history in case.before for item in history)
    catalogue = range(1, NUM_ITEMS + 1)
    for k in CUTOFFS:
        lists = [order[:k] for order, _ in case.asked()]
        offered = [item for each in lists for item in each]
        assert found[f"Coverage@{k}"] == len(set(offered)) / NUM_ITEMS
        less_popular = [sum(bought[other] < bought[item] for other in catalogue) for item in offered]
        assert found[f"Popularity@{k}"] == pytest.approx(mean(less_popular) / NUM_ITEMS)
        commonest = Counter(map(tuple, lists)).most_common(1)[0][1]
        assert found[f"SameList@{k}"] == commonest / len(lists)


def test_three_targets_worked_out_by_hand() -> None:
    """The list is 9, 8, 7, 6, 5, … without what was seen: targets are in places 2 and 4, and one far behind."""
    scores = [float(item) for item in range(NUM_ITEMS + 1)]
    case = Case([[4]], [[8, 6, 8, 4, 1, 6]], [scores], "exclude")
    found = case.exam.judge(case.scorer()).metrics["full"]
    assert (found["Recall@1"], found["Recall@2"], found["Recall@4"]) == (0, 1 / 3, 2 / 3)
    assert (found["Precision@1"], found["Precision@2"], found["Precision@4"]) == (0, 1 / 2, 2 / 4)
    assert (found["HR@1"], found["HR@2"], found["MRR"]) == (0, 1, 1 / 2)
    assert found["NDCG@2"] == pytest.approx((1 / log2(3)) / (1 + 1 / log2(3)))
    assert found["NDCG@4"] == pytest.approx((1 / log2(3) + 1 / log2(5)) / (1 + 1 / log2(3) + 1 / 2))


def test_one_order_for_everybody_covers_little_and_is_the_same_list() -> None:
    """Items 9 and 8 for all; only the user who had 9 is offered 7."""
    scores = [float(item) for item in range(NUM_ITEMS + 1)]
    histories = [[1], [2], [9], [1]]
    cases = [Case(histories, [[5]] * 4, [scores] * 4, repeats) for repeats in get_args(Repeats)]
    kept, excluded = (case.exam.judge(case.scorer()).lists for case in cases)
    assert (kept["SameList@2"], kept["Coverage@2"]) == (1.0, 2 / NUM_ITEMS)
    assert (excluded["SameList@2"], excluded["Coverage@2"]) == (3 / 4, 3 / NUM_ITEMS)
    # Item 1 was had twice, 2 and 9 once, the other six never.
    assert kept["Popularity@1"] == 6 / NUM_ITEMS
    assert kept["Popularity@2"] == 3 / NUM_ITEMS


def test_pop_offers_everybody_the_same_if_repeats_are_kept(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(random_histories(), repeats="keep")
    split = leave_one_out(dataset)
    pop = make_scorer(Pop.fit(dataset, split.training_end("test")))
    found = Exam(dataset, split, "test", "next", "popularity", [1, 5]).judge(pop)
    assert (found.lists["SameList@1"], found.lists["SameList@5"]) == (1.0, 1.0)
    assert (found.lists["Coverage@1"], found.lists["Coverage@5"]) == (1 / 20, 5 / 20)


def test_the_next_item_is_judged_as_ever_and_how_many_users_are_done_is_told(
    make_dataset: MakeDataset,
) -> None:
    dataset = make_dataset(random_histories())
    split = leave_one_out(dataset)
    pop = make_scorer(Pop.fit(dataset, split.training_end("valid")))
    told: list[tuple[int, int | None]] = []
    exam = Exam(dataset, split, "valid", "next", "popularity", [5, 10])
    found = exam.judge(pop, report=lambda done, total=None: told.append((done, total)))
    ranks = judge(pop, dataset, split, "valid")
    assert found.ranks is not None
    assert found.ranks.full.tolist() == ranks.full.tolist()
    assert found.metrics == metrics_of(ranks, ["HR@5", "HR@10", "NDCG@5", "NDCG@10", "MRR"])
    assert told == [(len(split.valid), len(split.valid))]


def test_several_targets_require_a_time_split_and_have_no_sampled_candidates(
    make_dataset: MakeDataset,
) -> None:
    dataset = make_dataset(random_histories())
    exam = Exam(dataset, leave_one_out(dataset), "test", "all", "popularity", [5])
    with pytest.raises(
        UsageError, match=r'`targets="all"` requires a split by time: leave-one-out holds out'
    ):
        _ = exam.asked
    with pytest.raises(UsageError, match='`targets="all"` ranks all items; `negatives` applies to'):
        Exam(dataset, leave_one_out(dataset), "test", "all", "uniform", [5])


def test_nobody_to_ask_is_an_error() -> None:
    case = Case([[1]], [[1]], [[0.0] * (NUM_ITEMS + 1)], "exclude")
    with pytest.raises(DataError, match="No users to evaluate"):
        case.exam.judge(case.scorer())


@pytest.mark.parametrize(
    ("same", "coverage", "warned"),
    [(0.6, 0.5, True), (0.3, 0.04, True), (0.3, 0.5, False), (0.1, 0.04, False), (0.2, 0.05, False)],
    ids=["most users", "like POP", "more items than POP", "fewer users than POP", "POP itself"],
)
def test_a_model_that_offers_nearly_everybody_the_same_is_told(
    same: float, coverage: float, warned: bool
) -> None:
    pop = {"SameList@10": 0.2, "Coverage@10": 0.05}
    found = warn_of_same_lists({"SameList@10": same, "Coverage@10": coverage}, pop, 10)
    assert len(found) == warned
    if warned:
        assert f"{same:.1%} of them are offered the same list of 10 (POP: 20.0%)" in found[0]
