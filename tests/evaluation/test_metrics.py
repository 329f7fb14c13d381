import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.metrics import METRICS, metric_per_user, summarise

RANKS = st.lists(st.integers(0, 200), min_size=1, max_size=20).map(lambda ranks: np.array(ranks, np.int32))


def test_six_numbers_worked_out_by_hand() -> None:
    found = summarise(np.array([0, 1, 4, 9, 10, 99], np.int32))
    assert found == pytest.approx(
        {
            "HR@1": 1 / 6,
            "HR@5": 3 / 6,
            "HR@10": 4 / 6,
            "NDCG@5": (1 + 0.6309297535714574 + 0.38685280723454163) / 6,
            "NDCG@10": (1 + 0.6309297535714574 + 0.38685280723454163 + 0.2890648263178879) / 6,
            "MRR": (1 + 1 / 2 + 1 / 5 + 1 / 10 + 1 / 11 + 1 / 100) / 6,
        }
    )


def test_the_names_are_those_of_the_results_file() -> None:
    assert tuple(summarise(np.array([3], np.int32))) == METRICS
    assert METRICS == ("HR@1", "HR@5", "HR@10", "NDCG@5", "NDCG@10", "MRR")


@given(ranks=RANKS)
def test_hit_rate_and_ndcg_at_one_are_the_same_number(ranks: NDArray[np.int32]) -> None:
    assert np.array_equal(metric_per_user(ranks, "HR@1"), metric_per_user(ranks, "NDCG@1"))


@given(ranks=RANKS)
def test_the_summary_is_the_mean_over_users(ranks: NDArray[np.int32]) -> None:
    for metric, value in summarise(ranks).items():
        assert isinstance(value, float)
        assert value == pytest.approx(sum(metric_per_user(ranks, metric).tolist()) / len(ranks))


@given(ranks=RANKS)
def test_a_better_rank_is_never_worth_less(ranks: NDArray[np.int32]) -> None:
    for metric in (*METRICS, "HR@20", "NDCG@100"):
        assert (metric_per_user(ranks, metric) <= metric_per_user(ranks // 2, metric)).all()


def test_perfect_ranks_are_worth_one_by_every_metric() -> None:
    assert set(summarise(np.zeros(5, np.int32)).values()) == {1.0}


def test_the_largest_rank_there_can_be_is_worth_a_little_by_mrr_and_nothing_else() -> None:
    worst = np.array([np.iinfo(np.int32).max], np.int32)
    found = summarise(worst)
    assert math.isclose(found.pop("MRR"), 2.0**-31)
    assert set(found.values()) == {0.0}


@pytest.mark.parametrize("name", ["NDCG", "HR@", "HR@ten", "HR@0", "HR@-1", "MAP@10", "mrr", ""])
def test_an_unknown_metric_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match="NDCG@10"):
        metric_per_user(np.array([1], np.int32), name)


def test_nobody_to_judge_by_is_an_error_and_not_a_nan() -> None:
    with pytest.raises(DataError, match="empty"):
        summarise(np.array([], np.int32))
