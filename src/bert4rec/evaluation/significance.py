"""Is one model better than another, or was it luck with the users or with the seed?

Over users the comparison is paired: both models answer for the same users, so only the differences count.
Over seeds it is not, for the seed of one model has nothing in common with the same seed of another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError

Values = NDArray[np.float64]


@dataclass(frozen=True)
class UserComparison:
    """The first model less the second, over the same users."""

    difference: float
    low: float
    """Lower end of the bootstrap interval."""
    high: float
    t_test: float
    """Two-sided p-value of the paired t-test."""
    wilcoxon: float
    """Two-sided p-value of the signed-rank test, which does not care how large the differences are."""


@dataclass(frozen=True)
class SeedComparison:
    """The first model less the second, over runs that differ in their seeds."""

    difference: float
    low: float
    """Lower end of Welch's interval."""
    high: float
    t_test: float
    """Two-sided p-value of Welch's t-test."""


def compare_over_users(
    first: Values, second: Values, *, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> UserComparison:
    """Compare a metric of two models, one value a user, in the same order of users.

    Where a model has several runs, give the mean of its runs for each user.
    """
    if len(first) != len(second):
        raise DataError(
            f"The runs judge {len(first)} and {len(second)} users. Only runs that were asked about the same users "
            "can be compared user by user. If one is of an older version, judge it anew: bert4rec evaluate RUN."
        )
    if len(first) < 2:
        raise DataError(f"Two users are the least to compare two runs by; found {len(first)}.")
    differences = np.asarray(first - second)
    low, high = bootstrap_interval(differences, seed=seed, confidence=confidence, resamples=resamples)
    mean, p_value = float(differences.mean()), paired_t_test(differences)
    return UserComparison(mean, low, high, p_value, wilcoxon_signed_rank(differences))


def paired_t_test(differences: Values) -> float:
    """Two-sided p-value of "no difference", from one difference a user."""
    standard_error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return student_two_sided(_ratio(float(differences.mean()), standard_error), len(differences) - 1)


def compare_over_seeds(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95
) -> SeedComparison:
    """Compare a metric of two models, one value a run (Welch: the models may vary differently)."""
    if min(len(first), len(second)) < 2:
        raise UsageError(
            f"Found {len(first)} and {len(second)} runs. Two runs of each model, with different seeds, "
            "are the least that shows how much luck a seed is."
        )
    difference = float(np.mean(first) - np.mean(second))
    variances = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    standard_error = math.sqrt(sum(variances))
    if standard_error == 0:
        return SeedComparison(difference, difference, difference, 1.0 if difference == 0 else 0.0)
    freedoms = [len(values) - 1 for values in (first, second)]
    freedom = sum(variances) ** 2 / sum(v**2 / f for v, f in zip(variances, freedoms, strict=True))
    margin = student_quantile(confidence, freedom) * standard_error
    p_value = student_two_sided(difference / standard_error, freedom)
    return SeedComparison(difference, difference - margin, difference + margin, p_value)


def bootstrap_interval(
    values: Values, *, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """The interval of the mean if other users like these had come: percentiles over resampled users."""
    rng = np.random.default_rng(seed)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def wilcoxon_signed_rank(differences: Values) -> float:
    """Two-sided p-value of the Wilcoxon signed-rank test, by its normal approximation.

    Users without a difference are dropped and ties share their mean rank, both as usual. The
    approximation is good from about twenty users that differ.
    """
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    _, group, size = np.unique(np.abs(differences), return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(size) - (size - 1) / 2
    ranks = mean_rank[group]
    # Under "no difference" every rank has a sign by the toss of a coin: mean 0, variance the sum of squares.
    signed_sum = float(np.sum(np.sign(differences) * ranks))
    z = signed_sum / math.sqrt(float(np.sum(ranks**2)))
    return math.erfc(abs(z) / math.sqrt(2))


def student_two_sided(t: float, freedom: float) -> float:
    """The probability that Student's t with `freedom` degrees strays from 0 at least as far as `t`."""
    if t == 0:
        return 1.0
    if math.isinf(t):
        return 0.0
    outside = 1 / (1 + t * t / freedom)
    inside = 1 / (1 + freedom / t / t)
    # So far out or so near that one of them is lost to rounding: what is left of the other is all or nothing.
    if outside == 0 or inside == 0:
        return 0.0 if outside == 0 else 1.0
    return _incomplete_beta(freedom / 2, 0.5, outside, inside)


def student_quantile(confidence: float, freedom: float) -> float:
    """The t beyond which, on either side, Student's t strays with probability 1 - `confidence`."""
    low, high = 0.0, 1.0
    while student_two_sided(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(60):  # Each halving gives one more bit; a float has 53.
        middle = (low + high) / 2
        if student_two_sided(middle, freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """The regularised incomplete beta function I_x(a, b), where y = 1 - x is given without rounding."""
    log_factor = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    factor = math.exp(log_factor)
    if x < (a + 1) / (a + b + 2):
        return factor / (a * _continued_fraction(a, b, x))
    return 1 - factor / (b * _continued_fraction(b, a, y))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """1 + d1 / (1 + d2 / (1 + …)), the classical fraction of the incomplete beta, by Lentz's method."""
    fraction, c, d = 1.0, 1.0, 0.0
    for k in range(1, 100_000):
        m = k // 2
        if k % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d)
        c = 1 + term / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return fraction


def _ratio(mean: float, standard_error: float) -> float:
    if standard_error == 0:
        return 0.0 if mean == 0 else math.copysign(math.inf, mean)
    return mean / standard_error
