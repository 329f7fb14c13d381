"""Known answers, scipy's own tests as special cases, and the ends of the scale."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bert4rec.errors import DataError
from bert4rec.evaluation.significance import (
    Difference,
    Sample,
    Uncertainty,
    compare_over_seeds,
    compare_over_users,
    compare_samples,
    mean_uncertainty,
    pooled_uncertainty,
    usual_seed_uncertainty,
    wilcoxon_signed_rank,
)

# Student's own example (1908): ten patients' extra hours of sleep under two drugs. R's `sleep` data.
DRUG_1 = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
DRUG_2 = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])

several_values = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=6)


def one_run(*values: float) -> Sample:
    return Sample.of(np.array([values], np.float64))


def runs_of(*values: float, users: int = 3) -> Sample:
    """Runs that treat all users alike."""
    return Sample.of(np.repeat(np.array(values, np.float64)[:, None], users, axis=1))


def interval(found: Difference) -> tuple[float, float]:
    return found.low, found.high


def test_students_example_paired() -> None:
    found = compare_over_users(one_run(*DRUG_1), one_run(*DRUG_2))
    assert found.difference == pytest.approx(-1.58)
    assert found.p_value == pytest.approx(0.002833, abs=5e-7)
    assert interval(found) == pytest.approx((-2.4598858, -0.7001142), abs=5e-8), "as R's t.test has it"


def test_students_example_as_if_the_drugs_were_models_and_the_patients_seeds() -> None:
    found = compare_over_seeds(runs_of(*DRUG_1), runs_of(*DRUG_2))
    assert found
    assert found.difference == pytest.approx(-1.58)
    assert interval(found) == pytest.approx((-3.3654832, 0.2054832), abs=5e-8)
    assert found.p_value == pytest.approx(0.07939, abs=5e-6)


def test_with_one_run_each_it_is_scipys_paired_t_test() -> None:
    one, other = one_run(*DRUG_1), one_run(*DRUG_2)
    reference = stats.ttest_rel(DRUG_1, DRUG_2)
    for found in (compare_over_users(one, other), compare_samples(one, other)):
        assert found.p_value == pytest.approx(reference.pvalue, rel=1e-12)
        assert interval(found) == pytest.approx(tuple(reference.confidence_interval(0.95)), rel=1e-12)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(several_values, several_values)
def test_where_all_users_agree_it_is_scipys_welch_test(first: list[float], second: list[float]) -> None:
    one, other = runs_of(*first), runs_of(*second)
    found, over_seeds = compare_samples(one, other), compare_over_seeds(one, other)
    assert over_seeds
    if np.var(first) + np.var(second) == 0:
        same = first[0] == second[0]
        assert (found.p_value, interval(found)) == (float(same), (found.difference, found.difference))
        return
    reference = stats.ttest_ind(first, second, equal_var=False)
    for each in (found, over_seeds):
        assert each.p_value == pytest.approx(reference.pvalue, rel=1e-9)
        assert interval(each) == pytest.approx(tuple(reference.confidence_interval(0.95)), rel=1e-9, abs=1e-9)


def test_users_and_seeds_together_add_their_variances() -> None:
    """By hand: the variance of the paired differences, and of the runs of each, with Satterthwaite's freedom."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.3, 0.1, (3, 40)), rng.normal(0.28, 0.1, (2, 40))
    parts = [
        (stats.sem(first.mean(axis=0) - second.mean(axis=0)) ** 2, 39),
        (stats.sem(first.mean(axis=1)) ** 2, 2),
        (stats.sem(second.mean(axis=1)) ** 2, 1),
    ]
    variance = sum(v for v, _ in parts)
    freedom = variance**2 / sum(v**2 / f for v, f in parts)
    difference = first.mean() - second.mean()
    found = compare_samples(Sample.of(first), Sample.of(second))
    assert interval(found) == pytest.approx(
        stats.t.interval(0.95, freedom, loc=difference, scale=math.sqrt(variance))
    )
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(difference) / math.sqrt(variance), freedom))
    assert found.base == pytest.approx(second.mean())


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3))
def test_the_p_value_is_below_five_per_cent_exactly_where_the_interval_excludes_zero(
    seed: int, runs: int, others: int
) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.normal(0.02, 0.1, (runs, 30)), rng.normal(0.0, 0.1, (others, 30))
    found = compare_samples(Sample.of(first), Sample.of(second))
    assert (found.p_value < 0.05) == bool(found.direction)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Other users and other seeds each time; with few seeds it errs on the safe side."""
    rng, hits, times = np.random.default_rng(4), 0, 400
    for _ in range(times):
        users = rng.normal(0, 1.0, 50)
        systems = [
            Sample.of(users + rng.normal(0, 0.1, (3, 1)) + rng.normal(0, 0.3, (3, 50))) for _ in range(2)
        ]
        low, high = interval(compare_samples(systems[0], systems[1]))
        hits += low <= 0 <= high
    assert 0.93 <= hits / times <= 1.0


def test_a_single_run_borrows_what_is_usual_for_the_systems_with_several() -> None:
    """Whose means differ, which does not matter."""
    pooled = pooled_uncertainty([[1.0, 3.0], [11.0, 13.0, 15.0], [7.0]])
    assert pooled.freedom == 3
    assert pooled.variance == pytest.approx((2 + 8) / 3)
    assert pooled_uncertainty([[7.0]]) == Uncertainty()
    counting = Sample([1.0, 9.0], None, has_seed=False)
    assert usual_seed_uncertainty([runs_of(1.0, 3.0), runs_of(7.0), counting]) == Uncertainty(2.0, 1)
    one, other = one_run(*DRUG_1), one_run(*DRUG_2)
    bare, wide = compare_samples(one, other), compare_samples(one, other, Uncertainty(0.5, 20))
    assert wide.high - wide.low > bare.high - bare.low
    assert wide.p_value > bare.p_value
    counts = Sample.of(np.array([DRUG_1]), has_seed=False)
    half = compare_samples(counts, other, Uncertainty(0.5, 20))
    assert bare.high - bare.low < half.high - half.low < wide.high - wide.low, "of one of the two only"


def test_without_values_of_users_the_uncertainty_of_both_adds_up() -> None:
    bare = [Sample([mean], None, Uncertainty(error**2)) for mean, error in ((0.3, 0.03), (0.2, 0.04))]
    found = compare_samples(bare[0], bare[1])
    assert interval(found) == pytest.approx((0.1 - 1.959964 * 0.05, 0.1 + 1.959964 * 0.05), abs=1e-6)
    unknown = Sample([0.2], None)
    assert not unknown.knows_users
    with pytest.raises(DataError, match="ranks or the standard errors"):
        compare_samples(bare[0], unknown)


def test_an_uncertainty_of_nothing_changes_nothing() -> None:
    known = mean_uncertainty([1.0, 2.0, 4.0])
    assert known + Uncertainty() == known
    assert (Uncertainty().margin, Uncertainty().p_value(0.0), Uncertainty().p_value(0.1)) == (0, 1, 0)
    assert mean_uncertainty([1.0, 2.0, 3.0]).margin == pytest.approx(4.303 / np.sqrt(3), rel=1e-3)
    assert Uncertainty(1.0).margin == pytest.approx(1.96, rel=1e-3)


@pytest.mark.parametrize(
    "differences",
    [
        [3, -1, 4, 2, 5, -6, 7, 8, 9, 10, -11, 12, 13, 14],
        [0, 0, 1, 1, -1, 2, 2, 2, 0, 3],
        [1.0, 2.0],
    ],
    ids=["different sizes", "ties and zeros", "two users"],
)
def test_the_signed_rank_test_is_scipys(differences: list[float]) -> None:
    zeros = [0.0] * len(differences)
    found = wilcoxon_signed_rank(one_run(*differences), one_run(*zeros))
    assert found == pytest.approx(stats.wilcoxon(differences).pvalue)


def test_the_signed_rank_test_of_few_users_is_exact() -> None:
    """Fourteen differences: all 2**14 ways to sign their ranks can be counted."""
    differences = np.array([3, -1, 4, 2, 5, -6, 7, 8, 9, 10, -11, 12, 13, 14], np.float64)
    signs = 1 - 2 * ((np.arange(2**14)[:, None] >> np.arange(14)) & 1)
    sums = np.abs(signs @ np.arange(1, 15))
    exact = float(np.mean(sums >= abs(differences.sum())))
    assert wilcoxon_signed_rank(one_run(*differences), one_run(*np.zeros(14))) == pytest.approx(exact)


def test_a_system_does_not_differ_from_itself() -> None:
    one = one_run(*DRUG_1)
    for found in (compare_over_users(one, one), compare_samples(one, one)):
        assert (found.difference, found.low, found.high, found.p_value, found.direction) == (0, 0, 0, 1, 0)
    assert wilcoxon_signed_rank(one, one) == 1


def test_a_difference_without_any_variance_is_certain() -> None:
    ones, zeros = one_run(*np.ones(30)), one_run(*np.zeros(30))
    for found in (compare_over_users(ones, zeros), compare_samples(ones, zeros)):
        assert (found.difference, found.low, found.high, found.p_value) == (1, 1, 1, 0)
    assert wilcoxon_signed_rank(ones, zeros) < 1e-6
    over_seeds = compare_over_seeds(runs_of(0.5, 0.5), runs_of(0.25, 0.25))
    assert over_seeds
    assert over_seeds.p_value == 0


def test_two_users_are_enough_and_say_little() -> None:
    """One degree of freedom, for which Student's t is Cauchy's."""
    found = compare_samples(one_run(1.0, 3.0), one_run(0.0, 0.0))
    assert found.p_value == pytest.approx(1 - 2 / math.pi * math.atan(2.0))
    assert found.high - found.difference == pytest.approx(12.7062, abs=5e-5)


def test_changing_sides_changes_the_sign_and_nothing_else() -> None:
    first, second = one_run(*DRUG_1), one_run(*DRUG_2)
    one, other = compare_over_users(first, second), compare_over_users(second, first)
    assert (other.difference, other.low, other.high) == pytest.approx((-one.difference, -one.high, -one.low))
    assert other.p_value == pytest.approx(one.p_value)
    assert wilcoxon_signed_rank(first, second) == pytest.approx(wilcoxon_signed_rank(second, first))


def test_an_interval_around_no_difference_has_ends_that_are_shares_too() -> None:
    assert Difference(0.0, -0.01, 0.01, 1.0, 0.2).shares == pytest.approx((-0.05, 0.05))
    assert math.isnan(Difference(0.1, 0.0, 0.2, 1.0, 0.0).share)


def test_runs_with_different_users_cannot_be_paired() -> None:
    with pytest.raises(DataError, match="10 and 9 test users"):
        compare_over_users(one_run(*DRUG_1), one_run(*DRUG_2[:-1]))
    with pytest.raises(DataError, match="found 1"):
        compare_over_users(one_run(1.0), one_run(2.0))
    with pytest.raises(DataError, match="ranks of both"):
        wilcoxon_signed_rank(one_run(1.0, 2.0), Sample([0.2], None))


def test_one_run_says_nothing_about_seeds() -> None:
    assert compare_over_seeds(runs_of(0.1, 0.2, 0.3), runs_of(0.1)) is None
