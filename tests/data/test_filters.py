"""Filters drop what they say, in order, and name themselves when nothing is left."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data.filters import Actions, Filters, apply_filters
from bert4rec.errors import DataError, UsageError


def actions(pairs: list[tuple[int, int]], times: list[int] | None = None) -> Actions:
    users, items = (np.array(column, np.uint32) for column in zip(*pairs, strict=True))
    return Actions(users, items, None if times is None else np.array(times, np.int64))


def pairs_of(found: Actions) -> list[tuple[int, int]]:
    return list(zip(found.users.tolist(), found.items.tolist(), strict=True))


def test_items_are_counted_before_users_are_dropped() -> None:
    """The order of the paper's recipe: user 1 falls below two actions only because item 9 is rare."""
    pairs = [(0, 1), (0, 2), (1, 1), (1, 9), (2, 1), (2, 2)]
    kept, notes = apply_filters(actions(pairs), Filters(min_item_actions=2, min_user_actions=2))
    assert pairs_of(kept) == [(0, 1), (0, 2), (2, 1), (2, 2)]
    assert notes == [
        "`min_item_actions=2` dropped 1 of 6 actions.",
        "`min_user_actions=2` dropped 1 of 5 actions, and 1 of 3 users.",
    ]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=80), st.integers(2, 4))
def test_in_a_k_core_everybody_and_everything_has_k_actions(pairs: list[tuple[int, int]], k: int) -> None:
    try:
        kept, _ = apply_filters(actions(sorted(pairs)), Filters(min_user_actions=0, k_core=k))
    except DataError:
        return
    assert min(Counter(kept.users.tolist()).values()) >= k
    assert min(Counter(kept.items.tolist()).values()) >= k


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_dropping_repeats_keeps_each_first_touch_in_order(pairs: list[tuple[int, int]]) -> None:
    kept, _ = apply_filters(actions(pairs), Filters(min_user_actions=0, drop_repeats=True))
    assert pairs_of(kept) == list(dict.fromkeys(pairs))


def test_repeats_stay_unless_told_otherwise() -> None:
    kept, notes = apply_filters(actions([(0, 1), (0, 1)]), Filters(min_user_actions=0))
    assert pairs_of(kept) == [(0, 1), (0, 1)]
    assert notes == []


def test_after_is_inclusive_and_before_is_not() -> None:
    kept, _ = apply_filters(
        actions([(0, 1), (0, 2), (0, 3)], [10, 20, 30]), Filters(after=20, before=30, min_user_actions=0)
    )
    assert pairs_of(kept) == [(0, 2)]


def test_the_filter_that_leaves_nothing_is_named() -> None:
    with pytest.raises(DataError, match="`min_user_actions=5` leaves none of 2 actions"):
        apply_filters(actions([(0, 1), (0, 2)]), Filters())
    with pytest.raises(DataError, match="`k_core=3` leaves none"):
        apply_filters(actions([(0, 1), (0, 2)]), Filters(min_user_actions=0, k_core=3))


def test_time_filters_need_times_and_counts_are_not_negative() -> None:
    with pytest.raises(UsageError, match="`after` requires times"):
        apply_filters(actions([(0, 1)]), Filters(after=1))
    with pytest.raises(UsageError, match="`k_core` must not be negative"):
        Filters(k_core=-1)
