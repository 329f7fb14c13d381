"""Is one system better than another, or is the difference chance?

A system is a model with its settings; its runs differ only in their seeds. `compare` and the report of the paper's
reproduction use the one definition of this module:

The difference of two systems is the difference of their means over runs and test users, and its 95% interval covers
two independent sources of chance: the test users (paired: the variance of the differences, one a user, each of the
means over runs) and the seeds (the variance between the runs of each system, unpaired, as in Welch's test). The two
variances add up, Student's t has the degrees of freedom of Welch and Satterthwaite, and the p-value is two-sided and
of the same statistic, so it is below 0.05 exactly where the interval excludes zero.

With one run each and nothing known about seeds, this is the paired t-test over users; where all users agree, it is
Welch's t-test over seeds. A system with one run borrows the variance between runs that is usual for the systems with
several (`pooled_uncertainty`). What seeds do to single users is in both variances, so the interval is slightly wide.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError

Values = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Uncertainty:
    """Of a mean: its variance, and from how many degrees of freedom that variance was estimated."""

    variance: float = 0.0
    freedom: float = math.inf

    def __add__(self, other: "Uncertainty") -> "Uncertainty":
        """Of a sum or difference of two independent means (Welch and Satterthwaite)."""
        total = self.variance + other.variance
        weights = sum(each.variance**2 / each.freedom for each in (self, other))
        return Uncertainty(total, total**2 / weights if weights else math.inf)

    @property
    def margin(self) -> float:
        """Half the width of the 95% interval."""
        from scipy.stats import t

        if not self.variance:
            return 0.0
        return float(t.ppf((1 + CONFIDENCE) / 2, self.freedom)) * math.sqrt(self.variance)

    def p_value(self, difference: float) -> float:
        """The probability of a difference at least this large, in either direction, by chance alone."""
        from scipy.stats import t

        if not self.variance:
            return float(difference == 0)
        return float(2 * t.sf(abs(difference) / math.sqrt(self.variance), self.freedom))


NONE = Uncertainty()
"""Of what is certain, or of what is unknown and left out."""


def mean_uncertainty(values: Sequence[float] | Values) -> Uncertainty:
    """Of the mean of two or more independent values."""
    return Uncertainty(float(np.var(values, ddof=1)) / len(values), len(values) - 1)


def pooled_uncertainty(groups: Iterable[Sequence[float]]) -> Uncertainty:
    """Of a single value, from groups of such values: their variance around the mean of each group, pooled.

    Groups of one value say nothing. Where all groups are such, the uncertainty is zero: it is unknown and left out.
    """
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return NONE
    return Uncertainty(sum(float(np.var(values)) * len(values) for values in several) / freedom, freedom)


@dataclass(frozen=True)
class Sample:
    """One metric of one system."""

    runs: Sequence[float]
    """The mean over users, a value for each run."""
    users: Values | None
    """The mean over runs, a value for each test user, always in the same order; None if the ranks were not kept."""
    user_uncertainty: Uncertainty | None = None
    """Of the mean over users, if it is known without `users`."""
    has_seed: bool = True
    """Whether the seed matters. It does not for a model that only counts."""

    @classmethod
    def of(cls, values: Values, *, has_seed: bool = True) -> "Sample":
        """From an array [runs, users]."""
        return cls(values.mean(axis=1).tolist(), values.mean(axis=0), has_seed=has_seed)

    @property
    def mean(self) -> float:
        return float(np.mean(self.runs))

    @property
    def knows_users(self) -> bool:
        """Whether anything is known about the variance between users."""
        return self.users is not None or self.user_uncertainty is not None

    def over_users(self) -> Uncertainty:
        if self.user_uncertainty is not None:
            return self.user_uncertainty
        if self.users is None:
            raise DataError("The ranks or the standard errors of a system are required to compare it.")
        return mean_uncertainty(self.users)

    def over_seeds(self, usual: Uncertainty) -> Uncertainty:
        """From the runs if there are several, otherwise as `usual`: that of one run of other systems."""
        if not self.has_seed:
            return NONE
        return mean_uncertainty(self.runs) if len(self.runs) > 1 else usual


def usual_seed_uncertainty(samples: Iterable[Sample]) -> Uncertainty:
    """What is usual for one run, from the systems with several runs whose seed matters."""
    return pooled_uncertainty(sample.runs for sample in samples if sample.has_seed)


@dataclass(frozen=True)
class Difference:
    """One system less another."""

    difference: float
    low: float
    """Lower end of the 95% interval."""
    high: float
    p_value: float
    base: float
    """The mean of the other system."""

    @classmethod
    def of(cls, first: Sample, second: Sample, uncertainty: Uncertainty) -> "Difference":
        difference, margin = first.mean - second.mean, uncertainty.margin
        p_value = uncertainty.p_value(difference)
        return cls(difference, difference - margin, difference + margin, p_value, second.mean)

    @property
    def share(self) -> float:
        """The difference relative to the other system's mean."""
        return self._relative(self.difference)

    @property
    def shares(self) -> tuple[float, float]:
        """The ends of the interval relative to the other system's mean."""
        return self._relative(self.low), self._relative(self.high)

    def _relative(self, value: float) -> float:
        return value / self.base if self.base else math.nan

    @property
    def direction(self) -> int:
        """1 or -1 if the interval lies on one side of zero, otherwise 0."""
        return (self.low > 0) - (self.high < 0)


def compare_samples(first: Sample, second: Sample, usual: Uncertainty = NONE) -> Difference:
    """The difference of two systems over users and seeds together, as defined above.

    Without the values of each user, the comparison is unpaired and the interval wider.

    Parameters
    ----------
    first, second
        The same metric of two systems on the same test users.
    usual
        The uncertainty of one run, for systems that have only one: `usual_seed_uncertainty`.
    """
    if first.users is not None and second.users is not None and len(first.users) == len(second.users):
        users = mean_uncertainty(first.users - second.users)
    else:
        users = first.over_users() + second.over_users()
    return Difference.of(first, second, users + first.over_seeds(usual) + second.over_seeds(usual))


def compare_over_users(first: Sample, second: Sample) -> Difference:
    """The paired t-test and its interval: other test users, the same runs."""
    return Difference.of(first, second, mean_uncertainty(_paired(first, second)))


def compare_over_seeds(first: Sample, second: Sample) -> Difference | None:
    """Welch's t-test and its interval: other seeds, the same test users. None unless both have several runs."""
    if min(len(first.runs), len(second.runs)) < 2:
        return None
    return Difference.of(first, second, mean_uncertainty(first.runs) + mean_uncertainty(second.runs))


def wilcoxon_signed_rank(first: Sample, second: Sample) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test over users; users without a difference do not count."""
    from scipy.stats import wilcoxon

    differences = _paired(first, second)
    return float(wilcoxon(differences).pvalue) if differences.any() else 1.0


def _paired(first: Sample, second: Sample) -> Values:
    if first.users is None or second.users is None:
        raise DataError("The ranks of both systems are required to compare them user by user.")
    if len(first.users) != len(second.users):
        raise DataError(
            f"The runs have {len(first.users)} and {len(second.users)} test users. Only runs with the same test users "
            "can be compared. If one was written by an older version, evaluate it again with `run.evaluate()`."
        )
    if len(first.users) < 2:
        raise DataError(f"At least two test users are required to compare runs; found {len(first.users)}.")
    differences: Values = first.users - second.users
    return differences
