"""Uncertainty adds up, and what is known from few values is known badly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.evaluation.significance import compare_over_seeds
from bert4rec.paper.report.luck import Uncertainty, uncertainty_of, uncertainty_of_one_seed

several_values = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=6)


@given(several_values, several_values)
def test_of_two_models_with_several_seeds_it_is_welchs_test(first: list[float], second: list[float]) -> None:
    luck, difference = uncertainty_of(first) + uncertainty_of(second), np.mean(first) - np.mean(second)
    reference = compare_over_seeds(first, second)
    assert luck.margin == pytest.approx((reference.high - reference.low) / 2)
    assert luck.p(float(difference)) == pytest.approx(reference.t_test)


def test_what_is_known_from_three_seeds_has_the_wide_interval_of_three_values() -> None:
    assert uncertainty_of([1.0, 2.0, 3.0]).margin == pytest.approx(4.303 / np.sqrt(3), rel=1e-3)
    assert Uncertainty(1.0).margin == pytest.approx(1.96, rel=1e-3)


def test_luck_that_is_not_there_changes_nothing() -> None:
    luck = uncertainty_of([1.0, 2.0, 4.0])
    assert luck + Uncertainty() == luck
    assert (Uncertainty().margin, Uncertainty().p(0.0), Uncertainty().p(0.1)) == (0, 1, 0)


def test_that_of_one_seed_is_pooled_from_the_models_with_several() -> None:
    """Whose means differ, which has nothing to do with it."""
    pooled = uncertainty_of_one_seed([[1.0, 3.0], [11.0, 13.0, 15.0], [7.0]])
    assert pooled.freedom == 3
    assert pooled.variance == pytest.approx((2 + 8) / 3)
    assert uncertainty_of_one_seed([[7.0]]) == Uncertainty()
