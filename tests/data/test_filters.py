"""Filters drop what they say, in order, and name themselves when nothing is left."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data.filters import Filters, apply_filters
from bert4rec.data.sorted_actions import SortedActions
from bert4rec.errors import DataError, UsageError
from bert4rec.logs.log import Log

Pair = tuple[int, int]


def filtered(
    pairs: list[Pair], filters: Filters, times: list[int] | None = None
) -> tuple[list[Pair], list[str]]:
    """What is left of users and items, and what is told about it."""
    users, items = (np.array(column, np.uint32) for column in zip(*pairs, strict=True))
    ids = pl.Series(range(int(max(users.max(), items.max())) + 1))
    log = Log(users, items, None if times is None else np.array(times), ids, ids)
    actions, notes = apply_filters(SortedActions(log), filters)
    left = [
        pair
        for block in actions.blocks()
        for pair in zip(block.users.tolist(), block.items.tolist(), strict=True)
    ]
    return left, notes


def test_items_are_counted_before_users_are_dropped() -> None:
    """The order of the paper's recipe: user 1 falls below two actions only because item 9 is rare."""
    pairs = [(0, 1), (0, 2), (1, 1), (1, 9), (2, 1), (2, 2)]
    kept, notes = filtered(pairs, Filters(min_item_actions=2, min_user_actions=2))
    assert kept == [(0, 1), (0, 2), (2, 1), (2, 2)]
    assert notes == [
        "`min_item_actions=2` dropped 1 of 6 actions.",
        "`min_user_actions=2` dropped 1 of 5 actions, and 1 of 3 users.",
    ]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=80), st.integers(2, 4))
def test_in_a_k_core_everybody_and_everything_has_k_actions(pairs: list[tuple[int, int]], k: int) -> None:
    try:
        kept, _ = filtered(pairs, Filters(min_user_actions=0, k_core=k))
    except DataError:
        return
    assert min(Counter(user for user, _ in kept).values()) >= k
    assert min(Counter(item for _, item in kept).values()) >= k


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_dropping_repeats_keeps_each_first_touch_in_order(pairs: list[tuple[int, int]]) -> None:
    kept, _ = filtered(pairs, Filters(min_user_actions=0, drop_repeats=True))
    assert kept == sorted(dict.fromkeys(pairs), key=lambda pair: pair[0])


def test_repeats_stay_unless_told_otherwise() -> None:
    kept, notes = filtered([(0, 1), (0, 1)], Filters(min_user_actions=0))
    assert kept == [(0, 1), (0, 1)]
    assert notes == []


def test_after_is_inclusive_and_before_is_not() -> None:
    kept, _ = filtered(
        [(0, 1), (0, 2), (0, 3)], Filters(after=20, before=30, min_user_actions=0), [10, 20, 30]
    )
    assert kept == [(0, 2)]


def test_the_filter_that_leaves_nothing_is_named() -> None:
    with pytest.raises(DataError, match="`min_user_actions=5` leaves none of 2 actions"):
        filtered([(0, 1), (0, 2)], Filters())
    with pytest.raises(DataError, match="`k_core=3` leaves none"):
        filtered([(0, 1), (0, 2)], Filters(min_user_actions=0, k_core=3))


def test_time_filters_need_times_and_counts_are_not_negative() -> None:
    with pytest.raises(UsageError, match="`after` requires times"):
        filtered([(0, 1)], Filters(after=1))
    with pytest.raises(UsageError, match="`k_core` must not be negative"):
        Filters(k_core=-1)
