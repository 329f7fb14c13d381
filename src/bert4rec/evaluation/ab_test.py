"""Which of several models that were served side by side is better, and how sure that is.

The unit is the user, for users were assigned to models by chance, and the requests of one user are alike. The rate of
an arm is feedback per recommendation, a ratio of two sums over users; its variance is that of what each user is above
or below the rate, c - rate · r, over the squared sum of r (the delta method). The difference of two arms has Student's
t with the degrees of freedom of Welch and Satterthwaite, as all comparisons here (`significance`). How many per cent
higher a rate is has Fieller's interval, which excludes zero exactly where that of the difference does.

These hold for one look at a moment that was chosen beforehand. Whoever looks every day and stops at the first
difference finds one too often where there is none. For them there is a second interval, wider, which holds however
often one looks: the normal mixture of Robbins with the variance found so far. It is an approximation where users come
back; simulated tests with such users bear it out.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bert4rec.evaluation.significance import CONFIDENCE, Uncertainty, mean_uncertainty

Counts = NDArray[np.int64]
Verdict = Literal["better", "worse", "unclear", "too little feedback"]
RELEVANT = 0.05
"""A difference, relative to the first arm, that is worth to be found."""
SCALE = 0.2
"""The interval that holds at any time is narrowest about where a difference as large as this can be told."""
POWER = 0.8
"""The probability to find it, with as many users as are said to be needed."""
ENOUGH = 10
"""Users with feedback that each arm must have, were both the same: with fewer, t is no approximation."""
MISMATCH = 0.001
"""A p-value below which the numbers of users do not fit the shares."""


@dataclass(frozen=True)
class ArmUsers:
    """The users of an arm: how many recommendations each of them got, and how much feedback these led to."""

    recommendations: Counts
    feedback: Counts

    @property
    def rate(self) -> float:
        """Feedback per recommendation."""
        return float(self.feedback.sum() / max(1, self.recommendations.sum()))

    @property
    def active(self) -> float:
        """The share of users with any feedback."""
        return float((self.feedback > 0).mean()) if len(self.feedback) else 0.0

    def rate_uncertainty(self) -> Uncertainty:
        residuals = self.feedback - self.rate * self.recommendations
        return mean_uncertainty(residuals / self.recommendations.mean())

    def active_uncertainty(self) -> Uncertainty:
        return mean_uncertainty((self.feedback > 0).astype(np.float64))


@dataclass(frozen=True)
class Lift:
    """A rate of one arm beside that of the first."""

    difference: float
    interval: tuple[float, float]
    """95%, for one look."""
    p_value: float
    relative: float | None
    """How many times the first arm's rate the difference is; None where that is nothing."""
    relative_interval: tuple[float, float] | None
    """None where the first arm's rate may be nothing."""
    anytime_interval: tuple[float, float] | None
    """As `relative_interval`, however often one looks."""

    @classmethod
    def of(cls, base: float, base_spread: Uncertainty, rate: float, spread: Uncertainty) -> "Lift":
        both = base_spread + spread
        difference, margin = rate - base, both.margin

        def relative(deviations: float) -> tuple[float, float] | None:
            return _ratio_interval(base, base_spread.variance, rate, spread.variance, deviations)

        deviation = math.sqrt(both.variance)
        always = _deviations_at_any_time(both.variance, SCALE * base) if base and deviation else None
        return cls(
            difference,
            (difference - margin, difference + margin),
            both.p_value(difference),
            difference / base if base else None,
            relative(margin / deviation) if deviation else None,
            relative(always) if always else None,
        )


def _ratio_interval(
    base: float, base_variance: float, rate: float, variance: float, deviations: float
) -> tuple[float, float] | None:
    """Fieller: every ratio - 1 at which rate - ratio · base is less than so many standard deviations from zero."""
    a = base**2 - deviations**2 * base_variance
    if a <= 0:
        return None
    c = rate**2 - deviations**2 * variance
    root = math.sqrt(max(0.0, (base * rate) ** 2 - a * c))
    return max(0.0, (base * rate - root) / a) - 1, (base * rate + root) / a - 1


def _deviations_at_any_time(variance: float, scale: float) -> float:
    """How many standard deviations a difference may be away from the truth, at any of as many looks as one likes."""
    sum_of_both = variance + scale**2
    return math.sqrt(sum_of_both / scale**2 * math.log(sum_of_both / (variance * (1 - CONFIDENCE) ** 2)))


@dataclass(frozen=True)
class ArmComparison:
    """One arm beside the first."""

    rate: Lift | None
    """Of feedback per recommendation; None where an arm has fewer than two users."""
    active: Lift | None
    """Of the share of users with feedback."""
    verdict: Verdict
    """By the rate, for one look."""
    users_needed: int | None
    """How many more users of both arms it takes to find a difference of 5%, if the verdict is unclear."""


def compare_arms(first: ArmUsers, other: ArmUsers) -> ArmComparison:
    """Whether another arm is better than the first."""
    sizes = len(first.feedback), len(other.feedback)
    if min(sizes) < 2:
        return ArmComparison(None, None, "too little feedback", None)
    spreads = first.rate_uncertainty(), other.rate_uncertainty()
    rate = Lift.of(first.rate, spreads[0], other.rate, spreads[1])
    active = Lift.of(first.active, first.active_uncertainty(), other.active, other.active_uncertainty())
    pooled = (first.active * sizes[0] + other.active * sizes[1]) / sum(sizes)
    if pooled * min(sizes) < ENOUGH:
        return ArmComparison(rate, active, "too little feedback", None)
    low, high = rate.interval
    if low > 0 or high < 0:
        return ArmComparison(rate, active, "better" if low > 0 else "worse", None)
    variance = sum(each.variance for each in spreads)
    return ArmComparison(rate, active, "unclear", _users_needed(variance, first.rate, sum(sizes)))


def _users_needed(variance: float, base: float, users: int) -> int | None:
    """The variance falls as the number of users rises."""
    from scipy.stats import norm

    if not base:
        return None
    deviations = float(norm.ppf((1 + CONFIDENCE) / 2) + norm.ppf(POWER))
    needed = users * variance * (deviations / (RELEVANT * base)) ** 2
    return max(0, math.ceil(needed) - users)


def share_mismatch(users: list[int], shares: list[int]) -> float | None:
    """The p-value at which numbers of users do not fit the shares, if they do not: then something is wrong with the
    test itself, for chance alone decides who is in an arm."""
    from scipy.stats import chisquare

    if not sum(users):
        return None
    expected = [share / sum(shares) * sum(users) for share in shares]
    p_value = float(chisquare(users, expected).pvalue)
    return p_value if p_value < MISMATCH else None
