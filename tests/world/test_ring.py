"""New items on the ring: what is drawn agrees with what is computed, and both with the definition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.world.ring import Ring, halving


def make_ring(seed: int, *, shares: tuple[float, float, float] = (0.5, 0.3, 0.2)) -> Ring:
    """Two departments of four and three items, two steps each."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate([[0], np.cumsum(rng.exponential(size=7))])
    edges /= edges[-1]
    first_items = np.array([0, 4, 7])
    steps = rng.random((2, 2)) * np.diff(edges[first_items])[:, None]
    return Ring(edges, first_items, steps, *shares)


def defined_probabilities(ring: Ring, tastes: list[int], recent: list[int]) -> list[float]:
    """The definition, word for word: one item and one way at a time."""
    sources = [item for item in recent if item >= 0]
    lag_shares = [0.5**lag / sum(0.5**n for n in range(len(sources))) for lag in range(len(sources))]
    result = []
    for item in range(7):
        department = 0 if item < 4 else 1
        low, high = (ring.edges[0], ring.edges[4]) if item < 4 else (ring.edges[4], ring.edges[7])
        width = ring.edges[item + 1] - ring.edges[item]
        noise = ring.noise_share * width
        taste = ring.taste_share * tastes.count(department) / len(tastes) * width / (high - low)
        transition = 0.0
        for source, lag_share in zip(sources, lag_shares, strict=True):
            if (source < 4) != (item < 4):
                continue
            for step, step_share in zip(ring.steps[department], (2 / 3, 1 / 3), strict=True):
                begin, end = ring.edges[source] + step, ring.edges[source + 1] + step
                overlap = sum(
                    max(0, min(end, ring.edges[item + 1] + turn) - max(begin, ring.edges[item] + turn))
                    for turn in (0, high - low)
                )
                transition += ring.transition_share * lag_share * step_share * overlap / (end - begin)
        ways = ring.noise_share + ring.taste_share + (ring.transition_share if sources else 0)
        result.append((noise + taste + transition) / ways)
    return result


@given(
    seed=st.integers(0, 10_000),
    tastes=st.lists(st.integers(0, 1), min_size=3, max_size=3),
    recent=st.lists(st.integers(0, 6), max_size=3),
)
def test_probabilities_are_as_defined(seed: int, tastes: list[int], recent: list[int]) -> None:
    ring = make_ring(seed)
    padded = recent + [-1] * (3 - len(recent))
    computed = ring.probabilities(np.array([tastes]), np.array([padded]))[0]
    assert computed.sum() == pytest.approx(1)
    np.testing.assert_allclose(computed, defined_probabilities(ring, tastes, padded), atol=1e-12)


@pytest.mark.parametrize("recent", [[], [2], [6, 0]], ids=["nothing yet", "one action", "two actions"])
def test_draws_follow_the_probabilities(recent: list[int]) -> None:
    ring = make_ring(3)
    tastes, recent_items = np.array([[0, 1, 1]]), np.array([recent], dtype=np.int64)
    size = 200_000
    drawn = ring.draw(np.random.default_rng(0), tastes, recent_items, np.zeros(size, dtype=np.int64))
    expected = ring.probabilities(tastes, recent_items)[0] * size
    observed = np.bincount(drawn, minlength=7)
    # Chi-square with 6 degrees of freedom stays below 22.5 in 999 of 1000 runs.
    assert ((observed - expected) ** 2 / expected).sum() < 22.5


def test_many_rows_at_once_are_as_one_by_one() -> None:
    ring = make_ring(5)
    rng = np.random.default_rng(0)
    tastes, recent = rng.integers(0, 2, size=(50, 3)), rng.integers(-1, 7, size=(50, 1))
    together = ring.probabilities(tastes, recent)
    for row in range(50):
        np.testing.assert_array_equal(together[row], ring.probabilities(tastes[[row]], recent[[row]])[0])


@given(seed=st.integers(0, 10_000))
def test_transitions_leave_popularity_as_it_is(seed: int) -> None:
    ring = make_ring(seed, shares=(1.0, 0.0, 0.0))
    every_item: NDArray[Any] = np.arange(7)[:, None]
    matrix = ring.probabilities(np.zeros((7, 1), dtype=np.int64), every_item)
    np.testing.assert_allclose(ring.widths @ matrix, ring.widths, atol=1e-12)


def test_halving_shares_add_up_to_one() -> None:
    np.testing.assert_allclose(halving(3), [4 / 7, 2 / 7, 1 / 7])
