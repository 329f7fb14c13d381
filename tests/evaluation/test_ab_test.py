"""Which of two models is better: known answers, and what happens in many tests whose truth is known."""

import numpy as np
import pytest

from bert4rec.evaluation.ab_test import ArmUsers, compare_arms, share_mismatch


def users(number: int, rng: np.random.Generator, lift: float = 1.0) -> ArmUsers:
    """Some ask a hundred times and some once; some click often and most hardly ever."""
    recommendations = 1 + rng.poisson(rng.gamma(0.7, 30, number))
    return ArmUsers(recommendations, rng.binomial(recommendations, lift * rng.beta(1.2, 20, number)))


def of(recommendations: list[int], feedback: list[int]) -> ArmUsers:
    return ArmUsers(np.array(recommendations), np.array(feedback))


def test_a_rate_is_that_of_all_recommendations_and_its_variance_that_of_users() -> None:
    arm = of([10, 30], [1, 9])
    assert arm.rate == 10 / 40
    assert arm.active == 1.0
    # Residuals 1 - 2.5 and 9 - 7.5, each over the mean of 20 recommendations.
    assert arm.rate_uncertainty().variance == pytest.approx(((1.5 / 20) ** 2 * 2) / 1 / 2)
    assert arm.rate_uncertainty().freedom == 1


def test_the_variance_is_that_of_a_bootstrap_over_users() -> None:
    rng = np.random.default_rng(1)
    arm = users(2000, rng)
    rates = []
    for _ in range(2000):
        drawn = rng.integers(0, 2000, 2000)
        rates.append(ArmUsers(arm.recommendations[drawn], arm.feedback[drawn]).rate)
    assert np.sqrt(arm.rate_uncertainty().variance) == pytest.approx(np.std(rates), rel=0.06)
    by_request = np.sqrt(arm.rate * (1 - arm.rate) / arm.recommendations.sum())
    assert np.std(rates) > 1.3 * by_request, "requests of one user are alike"


def test_of_equal_models_the_interval_covers_zero_in_95_of_100_tests() -> None:
    rng = np.random.default_rng(2)
    found = [compare_arms(users(3000, rng), users(400, rng)) for _ in range(1000)]
    for lifts in ([each.rate for each in found], [each.active for each in found]):
        covered = np.mean([lift is not None and lift.interval[0] <= 0 <= lift.interval[1] for lift in lifts])
        assert abs(covered - 0.95) < 0.021, "three standard deviations"
        p_values = [lift.p_value for lift in lifts if lift]
        assert abs(np.mean(np.array(p_values) < 0.05) - 0.05) < 0.021


def test_a_true_difference_is_in_the_interval_and_found_as_often_as_promised() -> None:
    rng = np.random.default_rng(3)
    first, other = users(4000, rng), users(4000, rng)
    needed = compare_arms(first, other).users_needed
    assert needed
    size = (8000 + needed) // 2
    found = [compare_arms(users(size, rng), users(size, rng, lift=1.05)) for _ in range(200)]
    assert abs(np.mean([each.verdict == "better" for each in found]) - 0.8) < 0.1
    inside = [
        each.rate.relative_interval[0] <= 0.05 <= each.rate.relative_interval[1]
        for each in found
        if each.rate and each.rate.relative_interval
    ]
    assert len(inside) == 200
    assert np.mean(inside) > 0.9


def test_an_interval_for_any_number_of_looks_survives_daily_looks_and_the_other_does_not() -> None:
    rng = np.random.default_rng(4)
    once = often = 0
    for _ in range(100):
        sizes, day_of = (2000, 2000), [rng.integers(0, 20, 2000) for _ in range(2)]
        habits = [(rng.gamma(0.7, 5, size), rng.beta(1.2, 20, size)) for size in sizes]
        counts = [np.zeros((2, size), np.int64) for size in sizes]
        is_found_once = is_found_often = False
        for day in range(20):
            for arm, (activity, rate) in enumerate(habits):
                given = np.where(day_of[arm] <= day, rng.poisson(activity), 0)
                counts[arm] += np.array([given, rng.binomial(given, rate)])
            arms = [ArmUsers(*count[:, count[0] > 0]) for count in counts]
            found = compare_arms(*arms)
            if found.rate and found.rate.anytime_interval and found.verdict != "too little feedback":
                low, high = found.rate.anytime_interval
                is_found_once |= found.verdict != "unclear"
                is_found_often |= not low <= 0 <= high
        once, often = once + is_found_once, often + is_found_often
    assert often <= 5
    assert once >= 12


def test_a_relative_interval_excludes_zero_exactly_where_the_absolute_one_does() -> None:
    rng = np.random.default_rng(5)
    for lift in np.linspace(0.8, 1.2, 60):
        found = compare_arms(users(1500, rng), users(1500, rng, lift)).rate
        assert found and found.relative_interval
        low, high = found.interval
        relative_low, relative_high = found.relative_interval
        assert (low > 0) == (relative_low > 0)
        assert (high < 0) == (relative_high < 0)
        assert (found.p_value < 0.05) == (low > 0 or high < 0)


@pytest.mark.parametrize(
    ("first", "other", "verdict"),
    [
        (of([], []), of([], []), "too little feedback"),
        (of([1], [1]), of([1, 1], [0, 0]), "too little feedback"),
        (of([5] * 100, [0] * 100), of([5] * 100, [0] * 100), "too little feedback"),
        (of([5] * 100, [0] * 100), of([5] * 100, [1] * 4 + [0] * 96), "too little feedback"),
        (of([5] * 100, [1] * 60 + [0] * 40), of([5] * 100, [0] * 100), "worse"),
        (of([5] * 100, [0] * 100), of([5] * 100, [1] * 60 + [0] * 40), "better"),
        (of([5] * 100, [1] * 30 + [0] * 70), of([5] * 100, [1] * 30 + [0] * 70), "unclear"),
        (of([5] * 100, [1] * 100), of([5] * 100, [1] * 100), "unclear"),
    ],
)
def test_extremes_have_an_answer(first: ArmUsers, other: ArmUsers, verdict: str) -> None:
    assert compare_arms(first, other).verdict == verdict


def test_numbers_of_users_that_do_not_fit_the_shares_are_noticed() -> None:
    assert share_mismatch([9000, 1000], [90, 10]) is None
    assert share_mismatch([9030, 970], [9, 1]) is None
    mismatch = share_mismatch([9000, 850], [90, 10])
    assert mismatch and mismatch < 0.001
    assert share_mismatch([0, 0], [90, 10]) is None
    rng = np.random.default_rng(6)
    alarms = [share_mismatch([10_000 - few, few], [9, 1]) for few in rng.binomial(10_000, 0.1, 500).tolist()]
    assert sum(alarm is not None for alarm in alarms) <= 4
