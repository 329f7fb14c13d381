import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.significance import (
    bootstrap_interval,
    compare_over_seeds,
    compare_over_users,
    student_quantile,
    student_two_sided,
    wilcoxon_signed_rank,
)

# Student's own example (1908): ten patients' extra hours of sleep under two drugs. R's `sleep` data.
DRUG_1 = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
DRUG_2 = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


@pytest.mark.parametrize(
    ("t", "freedom", "probability"),
    [  # To thirty digits by numerical integration, shortened.
        (0.1, 3, 0.92665234880080582),
        (2.0, 7.5, 0.082896995298166313),
        (-5.0, 4, 0.0074904338812745246),
        (8.0, 2.2, 0.011490611896705779),
        (1e-9, 10, 0.99999999922178323),
        (1.96, 40225, 0.050002683804615383),
        (30.0, 40225, 1.4153604601317499e-195),
    ],
)
def test_students_tail_is_right_from_the_middle_to_the_far_end(
    t: float, freedom: float, probability: float
) -> None:
    assert student_two_sided(t, freedom) == pytest.approx(probability, rel=1e-9)


@given(t=st.floats(1e-6, 1e4))
def test_students_tail_has_its_closed_forms(t: float) -> None:
    assert student_two_sided(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-9)
    root = math.sqrt(2 + t * t)
    assert student_two_sided(t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-9)


@pytest.mark.parametrize("freedom", [1, 4, 2.5, 1e6])
def test_students_tail_ends_in_nothing_and_begins_with_all(freedom: float) -> None:
    """Where squares overflow or vanish: of models that always, or hardly ever, differ."""
    for far, near in ((1e160, 1e-160), (1e308, 5e-324)):
        assert student_two_sided(far, freedom) == pytest.approx(0.0, abs=1e-100)
        assert student_two_sided(-far, freedom) == student_two_sided(far, freedom)
        assert student_two_sided(near, freedom) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"),
    [(0.95, 1, 12.7062), (0.95, 2, 4.3027), (0.95, 4, 2.7764), (0.99, 9, 3.2498), (0.95, 1e6, 1.9600)],
)
def test_quantiles_are_those_of_the_printed_tables(confidence: float, freedom: float, t: float) -> None:
    assert student_quantile(confidence, freedom) == pytest.approx(t, abs=5e-5)


def test_students_example_paired() -> None:
    found = compare_over_users(DRUG_1, DRUG_2, seed=1)
    assert found.difference == pytest.approx(-1.58)
    assert found.t_test == pytest.approx(0.002833, abs=5e-7)
    assert found.low < found.difference < found.high < 0


def test_students_example_as_if_the_drugs_were_models_and_the_patients_seeds() -> None:
    found = compare_over_seeds(DRUG_1.tolist(), DRUG_2.tolist())
    assert found.difference == pytest.approx(-1.58)
    assert (found.low, found.high) == pytest.approx((-3.3654832, 0.2054832), abs=5e-8)
    assert found.t_test == pytest.approx(0.07939, abs=5e-6)


def wilcoxon_by_the_textbook(differences: list[int]) -> float:
    """W+ with its mean n(n+1)/4 and its variance n(n+1)(2n+1)/24 less (t³ - t)/48 for every tie of t."""
    sizes = sorted(abs(d) for d in differences if d)
    n = len(sizes)
    rank = {size: sizes.index(size) + (sizes.count(size) + 1) / 2 for size in sizes}
    positive = sum(rank[d] for d in differences if d > 0)
    ties = sum(sizes.count(size) ** 3 - sizes.count(size) for size in set(sizes))
    variance = n * (n + 1) * (2 * n + 1) / 24 - ties / 48
    z = (positive - n * (n + 1) / 4) / math.sqrt(variance)
    return 2 * (1 - 0.5 * (1 + math.erf(abs(z) / math.sqrt(2))))


@given(differences=st.lists(st.integers(-6, 6), min_size=1, max_size=40).filter(any))
def test_the_signed_rank_test_agrees_with_the_textbook(differences: list[int]) -> None:
    found = wilcoxon_signed_rank(np.array(differences, np.float64))
    assert found == pytest.approx(wilcoxon_by_the_textbook(differences), abs=1e-12)


def test_the_signed_rank_test_is_near_the_exact_one() -> None:
    """Fourteen differences: all 2**14 ways to sign their ranks can be counted."""
    differences = np.array([3, -1, 4, 2, 5, -6, 7, 8, 9, 10, -11, 12, 13, 14], np.float64)
    signs = 1 - 2 * ((np.arange(2**14)[:, None] >> np.arange(14)) & 1)
    sums = np.abs(signs @ np.arange(1, 15))
    exact = float(np.mean(sums >= abs(differences.sum())))
    assert wilcoxon_signed_rank(differences) == pytest.approx(exact, abs=0.005)


def test_the_bootstrap_interval_of_many_values_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=4000)
    low, high = bootstrap_interval(values, seed=2)
    margin = 1.96 * values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - margin, values.mean() + margin), abs=0.05 * margin)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    samples = rng.exponential(1.0, size=(200, 100))
    intervals = [bootstrap_interval(sample, seed=5, confidence=0.8, resamples=200) for sample in samples]
    share = np.mean([low <= 1.0 <= high for low, high in intervals])
    assert 0.72 <= share <= 0.88  # 0.8, give or take nearly three standard errors


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = np.random.default_rng(1).random(50)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)


def test_a_model_does_not_differ_from_itself() -> None:
    found = compare_over_users(DRUG_1, DRUG_1, seed=1)
    assert (found.difference, found.low, found.high, found.t_test, found.wilcoxon) == (0, 0, 0, 1, 1)
    same = compare_over_seeds([0.5, 0.5], [0.5, 0.5])
    assert (same.difference, same.low, same.high, same.t_test) == (0, 0, 0, 1)


def test_a_difference_without_any_scatter_is_certain() -> None:
    found = compare_over_users(np.ones(30), np.zeros(30), seed=1)
    assert (found.difference, found.low, found.high, found.t_test) == (1, 1, 1, 0)
    assert found.wilcoxon < 1e-6
    assert compare_over_seeds([0.5, 0.5], [0.25, 0.25]).t_test == 0


def test_changing_sides_changes_the_sign_and_nothing_else() -> None:
    one, other = compare_over_users(DRUG_1, DRUG_2, seed=1), compare_over_users(DRUG_2, DRUG_1, seed=1)
    assert (other.difference, other.low, other.high) == pytest.approx((-one.difference, -one.high, -one.low))
    assert (other.t_test, other.wilcoxon) == pytest.approx((one.t_test, one.wilcoxon))


def test_runs_over_different_users_cannot_be_paired() -> None:
    with pytest.raises(DataError, match="10 and 9 users"):
        compare_over_users(DRUG_1, DRUG_2[:-1], seed=1)
    with pytest.raises(DataError, match="found 1"):
        compare_over_users(DRUG_1[:1], DRUG_2[:1], seed=1)


def test_one_run_says_nothing_about_seeds() -> None:
    with pytest.raises(UsageError, match="3 and 1 runs"):
        compare_over_seeds([0.1, 0.2, 0.3], [0.1])
