import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.metrics import METRICS, cutoffs_of, metric_per_user, parse_metric, summarise

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


@pytest.mark.parametrize(
    "name", ["NDCG", "recall", "HR@", "MRR@", "HR@ten", "HR@0", "HR@-1", "MAP@10", "HR@5@5", "", "@10"]
)
def test_an_unknown_metric_is_refused_with_those_that_there_are(name: str) -> None:
    known = "Expected HR@k, NDCG@k, MRR@k, Recall@k, Precision@k with any k, such as NDCG@10, or MRR"
    with pytest.raises(UsageError, match=f"Unknown metric {name!r}. {known}"):
        metric_per_user(np.array([1], np.int32), name)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("ndcg@10", "NDCG@10"),
        ("Hr@3", "HR@3"),
        ("mrr", "MRR"),
        ("MRR@20", "MRR@20"),
        ("PRECISION@5", "Precision@5"),
    ],
)
def test_metrics_are_known_in_any_case_and_have_one_name(typed: str, name: str) -> None:
    assert str(parse_metric(typed)) == name
    kind, _, k = name.partition("@")
    assert parse_metric(typed) == (kind, int(k) if k else None)


@given(ranks=RANKS, k=st.integers(1, 30))
def test_with_one_target_recall_is_the_hit_rate_and_precision_a_kth_of_it(
    ranks: NDArray[np.int32], k: int
) -> None:
    hits = metric_per_user(ranks, f"HR@{k}")
    assert np.array_equal(metric_per_user(ranks, f"recall@{k}"), hits)
    assert np.array_equal(metric_per_user(ranks, f"precision@{k}"), hits / k)


def test_the_reciprocal_rank_may_be_cut_off() -> None:
    assert metric_per_user(np.array([0, 4, 5], np.int32), "MRR@5").tolist() == [1, 1 / 5, 0]


def test_cut_offs_are_sorted_each_once_and_there_is_at_least_one() -> None:
    assert cutoffs_of([10, 5, 10]) == cutoffs_of(iter((5, 10))) == [5, 10]
    assert cutoffs_of(3) == [3]
    for k, found in (
        ([], "none"),
        ([0, 5], "0"),
        (2.5, "2.5"),
        ("5", "'5'"),
        (True, "True"),
        ([[1]], r"\[1\]"),
        (2**31, "2147483648"),
    ):
        with pytest.raises(
            UsageError, match=f"`k`: expected whole numbers from 1 to 2,147,483,647; found {found}"
        ):
            cutoffs_of(k)  # type: ignore[arg-type]


def test_nobody_to_judge_by_is_an_error_and_not_a_nan() -> None:
    with pytest.raises(DataError, match="empty"):
        summarise(np.array([], np.int32))
