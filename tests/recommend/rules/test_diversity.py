"""Lists whose items differ: by hand, and by what they are meant to do."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data.histories import Histories
from bert4rec.errors import UsageError
from bert4rec.recommend.bulk import ANSWERS_PER_PART, USERS_PER_PART
from bert4rec.recommend.recommender import Recommendation, Recommender
from bert4rec.recommend.rules.diversity import diversify, pool_size
from tests.conftest import NUM_ITEMS, MakeDataset
from tests.recommend.tiny import untrained_run
from tests.training.tiny import random_histories


def ids_of(found: Recommendation) -> list[object]:
    return [item.item_id for item in found.items]


def test_items_are_taken_one_after_the_other_as_computed_by_hand() -> None:
    """Relevance is 1, 0.9, 0.5 and 0. The first is taken; the second points the same way, the third across, the fourth
    the other way.

    By halves, 0.9 - 1 = -0.1, 0.5 - 0 = 0.5 and 0 + 1 = 1: the fourth comes next. Then the second has -0.1 and the
    third 0.5, so that is taken. With a tenth, 0.81 - 0.1 = 0.71 is more than 0.45 - 0 and 0 + 0.1.
    """
    rows = np.array([[2, 0], [3, 0], [0, 1], [-1, 0]], np.float32)
    numbers, scores = np.array([[1, 2, 3, 4]], np.int32), np.array([[20, 19, 15, 10]], np.float32)
    for diversity, expected in ((0.5, [1, 4, 3, 2]), (0.1, [1, 2, 3, 4]), (1.0, [1, 4, 3, 2])):
        found, kept = diversify(numbers, scores, rows, 4, diversity)
        assert found.tolist() == [expected]
        assert kept.tolist() == [[scores[0, number - 1] for number in expected]]
    assert diversify(numbers, scores, rows, 2, 0.5)[0].tolist() == [[1, 4]]


def test_what_fills_up_a_pool_stays_behind_the_items() -> None:
    rows = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    numbers = np.array([[3, 1, 0, 0], [0, 0, 0, 0]], np.int32)
    scores = np.array([[2, 1, -np.inf, -np.inf], [-np.inf] * 4], np.float32)
    for diversity in (0.3, 1.0):
        found, kept = diversify(numbers, scores, rows, 4, diversity)
        assert found.tolist() == numbers.tolist()
        assert kept.tolist() == scores.tolist()


@given(seed=st.integers(0, 10**6), diversity=st.floats(0, 1), k=st.integers(1, 12))
def test_many_pools_at_once_give_what_each_gives_alone_and_every_item_once(
    seed: int, diversity: float, k: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((20, 3)).astype(np.float32)
    numbers = np.stack([rng.permutation(20)[:10] + 1 for _ in range(5)]).astype(np.int32)
    scores = -np.sort(-rng.standard_normal((5, 10)).astype(np.float32))
    found, _ = diversify(numbers, scores, rows, k, diversity)
    assert found.shape == (5, min(k, 10))
    for row in range(5):
        alone, _ = diversify(numbers[row : row + 1], scores[row : row + 1], rows, k, diversity)
        assert alone[0].tolist() == found[row].tolist()
        assert len(set(alone[0].tolist())) == min(k, 10)
        assert found[row, 0] == numbers[row, 0]


def test_a_pool_is_five_times_the_list_but_bounded() -> None:
    assert [pool_size(k) for k in (1, 10, 20, 100, 400, 500, 3000)] == [50, 50, 100, 500, 500, 500, 3000]


def test_in_bulk_the_pools_of_a_part_take_no_more_than_the_longest_answers_may() -> None:
    for k in range(1, 2000):
        assert pool_size(k) * min(USERS_PER_PART, ANSWERS_PER_PART // k) <= ANSWERS_PER_PART


def test_of_many_large_pools_few_vectors_are_in_memory_at_a_time() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((1000, 64)).astype(np.float32)
    numbers = np.stack([rng.permutation(1000)[:500] + 1 for _ in range(256)]).astype(np.int32)
    scores = -np.sort(-rng.standard_normal((256, 500)).astype(np.float32))
    tracemalloc.start()
    diversify(numbers, scores, rows, 3, 0.5)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < numbers.size * rows.shape[1] * rows.itemsize / 2


def mean_cosine(recommender: Recommender, found: Recommendation) -> float:
    numbers = [recommender.catalogue.known(item.item_id) for item in found.items]
    vectors = recommender.ranker.engine.rows[np.array(numbers) - 1]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float((vectors @ vectors.T)[np.triu_indices(len(vectors), 1)].mean())


def test_nothing_changes_at_0_and_items_differ_the_more_the_higher_it_is(recommender: Recommender) -> None:
    histories = [[f"i{number}", f"i{number + 7}"] for number in range(1, 41)]
    plain = [recommender.recommend(history) for history in histories]
    assert [recommender.recommend(history, diversity=0) for history in histories] == plain
    means = []
    for diversity in (0.0, 0.3, 0.7, 1.0):
        lists = [recommender.recommend(history, diversity=diversity) for history in histories]
        means.append(np.mean([mean_cosine(recommender, each) for each in lists]))
    assert means == sorted(means, reverse=True)
    assert means[-1] < means[1] < means[0]


def test_scores_are_those_of_the_model_and_rules_are_kept(recommender: Recommender) -> None:
    history, deny = ["i3", "i9"], ["i20", "i21"]
    everything = recommender.recommend(history, NUM_ITEMS, deny=deny)
    scores = {item.item_id: item.score for item in everything.items}
    found = recommender.recommend(history, 8, deny=deny, diversity=0.6)
    assert len(found.items) == 8
    assert {item.item_id: item.score for item in found.items}.items() <= scores.items()
    assert set(ids_of(found)) <= set(ids_of(everything)[: pool_size(8)])


def test_one_by_one_together_and_in_bulk_the_answers_are_the_same(recommender: Recommender) -> None:
    histories = [[f"i{number}", "i2"] for number in range(3, 30)] + [[]]
    one_by_one = [ids_of(recommender.recommend(history, 5, diversity=0.4)) for history in histories]
    many = recommender.recommend_many(histories, 5, diversity=0.4)
    assert [ids_of(each) for each in many] == one_by_one
    allowed = recommender.recommend_many(histories, 5, allow=[f"i{n}" for n in range(1, 30)], diversity=0.4)
    for history, found in zip(histories, allowed, strict=True):
        alone = recommender.recommend(history, 5, allow=[f"i{n}" for n in range(1, 30)], diversity=0.4)
        assert ids_of(found) == ids_of(alone)


def test_popular_items_are_made_to_differ_too(recommender: Recommender) -> None:
    popular, differing = recommender.recommend([]), recommender.recommend([], diversity=0.9)
    assert ids_of(differing)[0] == "i1"
    assert mean_cosine(recommender, differing) < mean_cosine(recommender, popular)


@pytest.mark.parametrize("diversity", [-0.1, 1.1, float("nan"), "much", True, None])
def test_what_is_no_share_is_refused(recommender: Recommender, diversity: float) -> None:
    with pytest.raises(UsageError, match="`diversity`: expected a number from 0 to 1"):
        recommender.recommend(["i1"], diversity=diversity)


def test_models_without_vectors_to_compare_say_so(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset(random_histories())
    knows_users = Recommender.load(untrained_run(dataset, tmp_path / "bpr", "bpr-mf", dim=4).path)
    with pytest.raises(UsageError, match="BPR-MF cannot compare items"):
        knows_users.recommend_user("user-1", dataset=dataset, diversity=0.5)
    pop = Recommender.load(untrained_run(dataset, tmp_path / "pop", "pop", actions="training").path)
    with pytest.raises(UsageError, match="`diversity`: The model has no item vectors"):
        pop.recommend(["item-1"], diversity=0.5)


def test_where_nothing_may_be_recommended_nothing_is(recommender: Recommender) -> None:
    assert recommender.recommend(["i1"], allow=["nobody"], diversity=0.5).items == []


def test_tables_of_no_rows_stay_empty(recommender: Recommender) -> None:
    nobody = Histories.from_lists([])
    numbers, scores = recommender.ranker.top_rows(nobody, nobody, 4, diversity=0.5)
    assert numbers.shape == scores.shape == (0, 4)
