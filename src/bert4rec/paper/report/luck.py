"""How far a number may be from the truth: other test users might have come, and other seeds been drawn."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.evaluation.significance import student_quantile, student_two_sided

CONFIDENCE = 0.95
ASYMPTOTIC = 1e6
"""Degrees of freedom where nobody counted them: so many that Student's t is normal."""


@dataclass(frozen=True)
class Uncertainty:
    """Of a mean: its variance, and how many free values that is known from."""

    variance: float = 0.0
    freedom: float = ASYMPTOTIC

    def __add__(self, other: "Uncertainty") -> "Uncertainty":
        """Of a sum or a difference of two that have nothing to do with each other (Welch and Satterthwaite)."""
        total = self.variance + other.variance
        parts = [each.variance**2 / each.freedom for each in (self, other)]
        return Uncertainty(total, total**2 / sum(parts) if sum(parts) else ASYMPTOTIC)

    @property
    def margin(self) -> float:
        """Half of the interval."""
        if not self.variance:
            return 0.0
        return student_quantile(CONFIDENCE, self.freedom) * math.sqrt(self.variance)

    def p(self, difference: float) -> float:
        """How likely luck alone makes so large a difference; two-sided."""
        if not self.variance:
            return float(difference == 0)
        return student_two_sided(difference / math.sqrt(self.variance), self.freedom)


def uncertainty_of(values: Sequence[float] | NDArray[np.float64]) -> Uncertainty:
    """Of the mean of these values, which are two at the least."""
    return Uncertainty(float(np.var(values, ddof=1)) / len(values), len(values) - 1)


def uncertainty_of_one_seed(several: Iterable[Sequence[float]]) -> Uncertainty:
    """Of a single run, from models that were run with several seeds: what is usual for them, taken together."""
    groups = [values for values in several if len(values) > 1]
    freedom = sum(len(values) - 1 for values in groups)
    if not freedom:
        return Uncertainty()
    return Uncertainty(sum(float(np.var(values)) * len(values) for values in groups) / freedom, freedom)
