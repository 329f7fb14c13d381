"""The shapes of data sets: stored facts, and numbers spread as they say."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.world.shapes import (
    Shape,
    measure_shape,
    named_shape,
    shape_names,
    spread,
    spread_whole,
    weights_for_counts,
)


def weights_if_all_users_are_alike(shape: Shape) -> NDArray[np.float64]:
    return weights_for_counts(shape, affinities=np.ones(1), shares=np.ones(1), repeat_share=0.0)


@pytest.mark.parametrize(
    ("name", "users", "items", "actions"),
    [
        ("ml-1m", 6_040, 3_416, 999_611),
        ("ml-20m", 138_493, 26_744, 20_000_263),
        ("beauty", 40_226, 54_542, 353_962),
        ("steam", 281_428, 13_044, 3_488_885),
    ],
)
def test_the_four_data_sets_of_the_paper_are_known(name: str, users: int, items: int, actions: int) -> None:
    shape = named_shape(name)
    assert (shape.num_users, shape.num_items, shape.num_actions) == (users, items, actions)
    lengths = spread_whole(shape.length_quantiles, users, total=actions, ceiling=items)
    assert lengths.sum() == actions
    assert lengths.min() == shape.length_quantiles[0]
    # What the quantiles leave open is so little that the longest history hardly moves.
    assert lengths.max() == pytest.approx(shape.length_quantiles[-1], rel=0.03)
    assert spread(shape.count_quantiles, items).sum() == pytest.approx(actions, rel=0.01)


@pytest.mark.parametrize("name", ["ml-1m", "beauty"])
def test_measured_shapes_are_those_of_the_real_data(name: str, real_data: Path) -> None:
    with gzip.open(real_data / name / f"{name}.txt.gz") as file:
        users, items = np.loadtxt(file, dtype=np.int64).T
    lengths, counts = np.bincount(users), np.bincount(items)
    assert named_shape(name) == measure_shape(lengths[lengths > 0], counts[counts > 0])


def test_estimated_shapes_say_so() -> None:
    sources = {name: named_shape(name).source.split(":")[0] for name in shape_names()}
    estimated = "estimated from published summary figures"
    assert sources == {"ml-1m": "measured", "ml-20m": estimated, "beauty": "measured", "steam": estimated}


def test_ml_20m_has_the_published_median_mean_and_inequality() -> None:
    shape = named_shape("ml-20m")
    counts = spread(shape.count_quantiles, shape.num_items)
    assert np.median(counts) == pytest.approx(18, rel=0.03)
    assert gini(counts) == pytest.approx(0.903, abs=0.005)
    assert np.median(spread(shape.length_quantiles, shape.num_users)) == pytest.approx(68, rel=0.03)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match="Known: ml-1m, ml-20m, beauty, steam"):
        named_shape("netflix")


def test_a_measured_shape_gives_back_what_was_measured() -> None:
    rng = np.random.default_rng(0)
    lengths = np.sort(5 + rng.geometric(0.05, size=3_000))
    counts = np.bincount(rng.integers(0, 400, size=int(lengths.sum())), minlength=400)
    shape = measure_shape(lengths, counts)
    again = spread_whole(shape.length_quantiles, 3_000, total=int(lengths.sum()), ceiling=400)
    assert np.abs(again - lengths).mean() < 0.5
    assert np.abs(spread(shape.count_quantiles, 400) - np.sort(counts)).mean() < 1


@given(
    floor=st.integers(1, 10),
    steps=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    size=st.integers(2, 300),
    mean=st.floats(0, 1),
)
def test_whole_numbers_add_up_exactly_rise_and_keep_their_bounds(
    floor: int, steps: list[int], size: int, mean: float
) -> None:
    quantiles = np.cumsum([floor, *steps]).tolist()
    ceiling = 3 * quantiles[-1]
    total = round(size * (floor + mean * (quantiles[-1] - floor) / 4))
    values = spread_whole(quantiles, size, total=total, ceiling=ceiling)
    assert values.sum() == total
    assert floor <= values.min() <= values.max() <= ceiling
    assert np.diff(values).min() >= -1  # rounding may turn two neighbours round


def test_an_impossible_total_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot add up to 49 actions"):
        spread_whole((5, 20), 10, total=49, ceiling=100)
    with pytest.raises(UsageError, match="cannot add up to 1001 actions"):
        spread_whole((5, 20), 10, total=1_001, ceiling=100)


@pytest.mark.parametrize(
    "quantiles", [(5.0,), (0.5, 2.0), (3.0, 2.0)], ids=["too few", "below one", "falling"]
)
def test_quantiles_that_are_none_are_refused(quantiles: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="Quantiles must be increasing"):
        Shape(10, 10, 100, quantiles, (1, 2), "test")


def test_equally_popular_items_have_equal_weights() -> None:
    shape = Shape(100, 50, 1_000, (10, 10), (20, 20), "test")
    weights = weights_if_all_users_are_alike(shape)
    np.testing.assert_allclose(weights, weights[0])


def test_popular_items_weigh_more_than_their_share_since_nobody_takes_them_twice() -> None:
    shape = Shape(100, 50, 1_000, (10, 10), (5, 80), "test")
    counts = spread(shape.count_quantiles, 50)
    weights = weights_if_all_users_are_alike(shape)
    assert weights[-1] / weights[0] > 1.3 * counts[-1] / counts[0]


def test_weights_give_the_wanted_counts_when_items_are_drawn_without_repeats() -> None:
    shape = Shape(4_000, 60, 60_000, (3, 10, 20, 45), (300, 700, 1_200, 2_800), "test")
    weights = weights_if_all_users_are_alike(shape)
    rng = np.random.default_rng(0)
    lengths = spread_whole(shape.length_quantiles, 4_000, total=60_000, ceiling=60)
    # The smallest exponential waiting times are a sample without repeats by weight.
    order = np.argsort(rng.exponential(size=(4_000, 60)) / weights, axis=1)
    counts = np.bincount(order[np.arange(60) < lengths[:, None]], minlength=60)
    wanted = spread(shape.count_quantiles, 60)
    np.testing.assert_allclose(counts, wanted * counts.sum() / wanted.sum(), rtol=0.15)


def gini(values: NDArray[np.float64]) -> float:
    """0 if all are equal, towards 1 if a few have nearly all."""
    ranks = 2 * np.arange(1, len(values) + 1) - len(values) - 1
    return float(ranks @ np.sort(values) / len(values) / values.sum())
