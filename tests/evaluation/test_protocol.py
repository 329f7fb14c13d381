import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.histories import Histories
from bert4rec.data.splits import Targets
from bert4rec.errors import DataError
from bert4rec.evaluation.metrics import summarise
from bert4rec.evaluation.protocol import Ranks, Scorer, rank_among_negatives, rank_targets
from tests.evaluation.tiny import InChunks, dataset_of

NUM_ITEMS = 9


def scorer_from(table: NDArray[Any], convert: Callable[[NDArray[Any]], Any] = np.asarray) -> Scorer:
    """A model that has an opinion per user, whatever the history, and says it in its own kind of array."""
    return lambda users, histories: convert(table[users])


@dataclass(frozen=True)
class Case:
    """A little world: what users did, what is asked about each, and what a model says."""

    histories: list[list[int]]
    positions: list[int]
    """Per user, the place of the target in the user's own history."""
    negatives: list[list[int]]
    scores: list[list[float]]
    repeats: Repeats = "exclude"

    def rank(self, convert: Callable[[NDArray[Any]], Any] = np.asarray, batch_size: int = 3) -> Ranks:
        return rank_targets(
            scorer_from(self.table, convert),
            *self.asked,
            negatives=np.array(self.negatives, np.int32),
            batch_size=batch_size,
        )

    def rank_candidates(self, convert: Callable[[NDArray[Any]], Any] = np.asarray) -> NDArray[np.int32]:
        """Asking the model for nothing but the candidates."""
        return rank_among_negatives(
            lambda users, _histories, items: convert(self.table[users[:, None], items]),
            *self.asked,
            negatives=np.array(self.negatives, np.int32),
            batch_size=3,
        )

    @property
    def table(self) -> NDArray[np.float32]:
        return np.array(self.scores, np.float32)

    @property
    def asked(self) -> tuple[Dataset, Targets]:
        dataset = dataset_of(self.histories, NUM_ITEMS, self.repeats)
        users = np.arange(len(self.histories))
        return dataset, Targets(users, dataset.offsets[:-1] + np.array(self.positions))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Few different scores, so ties are everywhere; histories repeat items, and so do targets where that is kept."""
    items, repeats = st.integers(1, NUM_ITEMS), draw(st.sampled_from(get_args(Repeats)))
    score = st.sampled_from([-float("inf"), -1.0, 0.0, 0.5, 2.0, float("inf")])
    histories, positions, negatives, scores = [], [], [], []
    for _ in range(draw(st.integers(1, 7))):
        history = draw(st.lists(items, min_size=1, max_size=6))
        touched = set(history) if repeats == "exclude" else set()
        chosen = draw(st.permutations(sorted(set(range(1, NUM_ITEMS + 1)) - touched)))[
            : draw(st.integers(0, 4))
        ]
        histories.append(history)
        position = draw(st.integers(0, len(history) - 1))
        positions.append(position if repeats == "keep" else history.index(history[position]))
        negatives.append([*chosen, *[0] * (4 - len(chosen))])
        scores.append(draw(st.lists(score, min_size=NUM_ITEMS + 1, max_size=NUM_ITEMS + 1)))
    return Case(histories, positions, negatives, scores, repeats)


def rank_by_sorting(scores: list[float], target: int, candidates: set[int]) -> int:
    """Sort the candidates, best first, the target behind all that are as good; then look for it."""
    order = sorted(candidates, key=lambda item: (-scores[item], item == target))
    return order.index(target)


@given(case=cases())
def test_ranks_agree_with_sorting_the_candidates(case: Case) -> None:
    ranks = case.rank()
    for user, history in enumerate(case.histories):
        target = history[case.positions[user]]
        seen = set(history[: case.positions[user]])
        catalogue = set(range(1, NUM_ITEMS + 1)) - (seen if case.repeats == "exclude" else set())
        drawn = case.negatives[user]
        if case.repeats == "keep" and target not in drawn:
            drawn = drawn[:-1]
        sampled = {target, *drawn} - {0}
        assert ranks.full[user] == rank_by_sorting(case.scores[user], target, catalogue)
        assert ranks.sampled[user] == rank_by_sorting(case.scores[user], target, sampled)


@given(case=cases(), batch_size=st.integers(1, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_and_any_batch_size_give_the_same_ranks(
    dtype: torch.dtype, case: Case, batch_size: int
) -> None:
    ranks = case.rank()
    from_tensors = case.rank(lambda table: torch.from_numpy(table).to(dtype), batch_size)
    assert np.array_equal(ranks.sampled, from_tensors.sampled)
    assert np.array_equal(ranks.full, from_tensors.full)
    assert from_tensors.full.dtype == from_tensors.sampled.dtype == np.int32


@given(case=cases(), width=st.integers(1, NUM_ITEMS + 2))
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_scores_in_chunks_of_any_width_give_the_same_ranks(
    dtype: torch.dtype | None, case: Case, width: int
) -> None:
    ranks = case.rank()
    in_chunks = case.rank(
        lambda table: InChunks(torch.from_numpy(table).to(dtype) if dtype else table, width)
    )
    assert np.array_equal(ranks.sampled, in_chunks.sampled)
    assert np.array_equal(ranks.full, in_chunks.full)


@pytest.mark.parametrize("width", [1, 4, NUM_ITEMS + 1])
def test_a_chunk_with_a_score_that_is_not_a_number_is_found(width: int) -> None:
    scores = [*[0.0] * NUM_ITEMS, float("nan")]
    case = Case([[1, 2]], [1], [[3]], [scores])
    with pytest.raises(DataError, match="user 0 are not all numbers"):
        case.rank(lambda table: InChunks(table, width))
    Case([[1, 2]], [1], [[3]], [scores[::-1]]).rank(lambda table: InChunks(table, width))


@given(case=cases())
@pytest.mark.parametrize("convert", [np.asarray, lambda table: torch.from_numpy(table).bfloat16()])
def test_scoring_the_candidates_alone_gives_the_same_sampled_ranks(
    convert: Callable[[NDArray[Any]], Any], case: Case
) -> None:
    ranks = case.rank_candidates(convert)
    assert ranks.dtype == np.int32
    assert ranks.tolist() == case.rank().sampled.tolist()


@given(case=cases(), padding=st.sampled_from([float("nan"), float("inf"), -5.0, 3.0]))
def test_the_score_of_padding_never_matters(case: Case, padding: float) -> None:
    other = replace(case, scores=[[padding, *row[1:]] for row in case.scores])
    assert np.array_equal(case.rank().full, other.rank().full)
    assert np.array_equal(case.rank().sampled, other.rank().sampled)
    assert np.array_equal(case.rank_candidates(), other.rank_candidates())


ONE_USER = Case([[1, 2, 3]], [2], [[4, 5, 0]], [[0.0, 9.0, 8.0, 5.0, 6.0, 1.0, 7.0, 1.0, 1.0, 1.0]])


def test_the_history_is_filtered_out_of_the_full_ranking() -> None:
    # Items 1 and 2 are better but already seen; 4 and 6 are better; of the negatives only 4 is.
    assert ONE_USER.rank().full.tolist() == [2]
    assert ONE_USER.rank().sampled.tolist() == [1]


def test_what_comes_after_the_target_is_not_filtered_out() -> None:
    case = Case([[1, 3, 2]], [1], [[4, 5, 0]], ONE_USER.scores)
    assert case.rank().full.tolist() == [3]


def test_where_repeats_are_kept_a_target_chosen_before_competes_with_the_rest_of_the_history() -> None:
    case = Case([[1, 2, 3, 2]], [3], [[4, 5, 1]], ONE_USER.scores, "keep")
    assert case.rank().full.tolist() == [1], "item 1 is better, and may come again too"
    assert case.rank().sampled.tolist() == [0], "of three candidates one is spare: item 1"


def test_a_target_that_was_drawn_as_its_own_rival_is_the_one_that_is_left_out() -> None:
    case = Case([[1, 2, 3, 2]], [3], [[2, 5, 1]], ONE_USER.scores, "keep")
    assert case.rank().sampled.tolist() == case.rank_candidates().tolist() == [1]


@pytest.mark.parametrize("score", [0.0, float("inf"), -float("inf")])
def test_a_constant_scorer_earns_no_hits(score: float) -> None:
    num_users, num_items = 4, 150
    dataset = dataset_of([[1, 2, 3]] * num_users, num_items)
    negatives = np.tile(np.arange(4, 104, dtype=np.int32), (num_users, 1))
    targets = Targets(np.arange(num_users), dataset.offsets[1:] - 1)
    ranks = rank_targets(
        lambda users, histories: np.full((len(users), num_items + 1), score),
        dataset,
        targets,
        negatives=negatives,
    )
    assert ranks.sampled.tolist() == [100] * num_users
    assert ranks.full.tolist() == [num_items - 3] * num_users
    assert summarise(ranks.sampled)["HR@10"] == summarise(ranks.full)["HR@10"] == 0


@pytest.mark.parametrize("convert", [np.asarray, lambda table: torch.from_numpy(table).bfloat16()])
def test_a_score_that_is_not_a_number_is_an_error_that_names_the_user(
    convert: Callable[[NDArray[Any]], Any],
) -> None:
    scores = [[0.0] * (NUM_ITEMS + 1) for _ in range(5)]
    scores[3][7] = float("nan")
    case = Case([[1, 2]] * 5, [1] * 5, [[3, 4]] * 5, scores)
    with pytest.raises(DataError, match=r"user 3 .*NaN.*learning rate"):
        case.rank(convert)


def test_a_candidate_whose_score_is_not_a_number_is_an_error_that_names_the_user() -> None:
    case = Case(
        [[1, 2]] * 2, [1] * 2, [[3, 4]] * 2, [[0.0] * (NUM_ITEMS + 1), [float("nan")] * (NUM_ITEMS + 1)]
    )
    with pytest.raises(DataError, match=r"user 1 .*NaN"):
        case.rank_candidates()


def test_every_target_is_asked_for_once_with_all_that_came_before_it() -> None:
    histories = [[1], [2, 3, 4], [5, 6], [7, 8, 9, 1]]
    dataset = dataset_of(histories, NUM_ITEMS)
    asked: dict[int, list[int]] = {}

    def remember(users: NDArray[np.int64], batch: Histories) -> NDArray[np.float64]:
        assert len(users) == len(batch) <= 2
        asked.update(zip(users.tolist(), batch.padded(3).tolist(), strict=True))
        return np.zeros((len(users), NUM_ITEMS + 1))

    targets = Targets(np.array([1, 2, 3]), dataset.offsets[2:] - 1)
    negatives = np.zeros((4, 1), np.int32)
    rank_targets(remember, dataset, targets, negatives=negatives, batch_size=2)
    assert asked == {1: [0, 2, 3], 2: [0, 0, 5], 3: [7, 8, 9]}


def test_histories_of_similar_length_share_a_batch_the_longest_first() -> None:
    dataset = dataset_of([[1] * length for length in (2, 9, 3, 8)], NUM_ITEMS)
    lengths = []

    def remember(users: NDArray[np.int64], histories: Histories) -> NDArray[np.float64]:
        lengths.append(histories.lengths.tolist())
        return np.zeros((len(users), NUM_ITEMS + 1))

    targets = Targets(np.arange(4), dataset.offsets[1:] - 1)
    rank_targets(remember, dataset, targets, negatives=np.zeros((4, 1), np.int32), batch_size=2)
    assert lengths == [[8, 7], [2, 1]]


def test_every_model_meets_the_same_candidates() -> None:
    """A model that likes item i alone ranks the target second exactly where i is a stored negative."""
    dataset = dataset_of([[1, 2, 3], [2, 1, 4]], NUM_ITEMS)
    negatives = np.array([[5, 6, 7], [8, 6, 0]], np.int32)
    negatives.setflags(write=False)
    targets = Targets(np.arange(2), dataset.offsets[1:] - 1)
    met: dict[int, set[int]] = {0: set(), 1: set()}
    for liked in range(1, NUM_ITEMS + 1):
        scores = np.where(np.arange(NUM_ITEMS + 1) == liked, 1.0, -1.0)
        scores[[3, 4]] = 0.0
        table = np.tile(scores, (2, 1))
        ranks = rank_targets(scorer_from(table), dataset, targets, negatives=negatives)
        for user in np.flatnonzero(ranks.sampled == 1).tolist():
            met[user].add(liked)
    assert met == {0: {5, 6, 7}, 1: {6, 8}}


def test_scores_for_the_wrong_number_of_items_are_refused() -> None:
    case = Case([[1, 2]], [1], [[3]], [[0.0] * NUM_ITEMS])
    with pytest.raises(AssertionError, match=r"\(1, 8\), expected \(1, 9\)"):
        case.rank()


def test_judging_needs_neither_torch_nor_polars() -> None:
    modules = ["data.negatives", "evaluation.protocol", "evaluation.slices", "evaluation.significance"]
    imports = "; ".join(f"import bert4rec.{name}" for name in modules)
    check = "import sys; found = {'torch', 'polars', 'scipy'} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", f"{imports}; {check}"], check=True)
