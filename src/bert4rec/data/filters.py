"""Which actions of a log are kept (section 4.1: "we keep users with at least five feedbacks")."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.times import format_moment

if TYPE_CHECKING:
    from bert4rec.data.sorted_actions import SortedActions

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Actions:
    """All actions of some users, sorted by user, then by time, ties in the order of the log."""

    users: NDArray[np.uint32]
    items: NDArray[np.uint32]
    times: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.users)

    def keep(self, mask: Mask) -> "Actions":
        """Only the actions for which `mask` is True."""
        if mask.all():
            return self
        return Actions(self.users[mask], self.items[mask], None if self.times is None else self.times[mask])


@dataclass(frozen=True)
class Filters:
    """Applied in the order of the fields."""

    after: int | None = None
    """Drop actions before this moment (microseconds since 1970)."""
    before: int | None = None
    """Drop actions at or after this moment."""
    drop_duplicates: bool = False
    """Keep only one of several actions that agree in user, item and time."""
    drop_repeats: bool = False
    """Keep only the first action of a user on an item."""
    min_item_actions: int = 0
    """Drop items with fewer actions, counted once."""
    min_user_actions: int = 5
    """Drop users with fewer actions, counted once, after the items were dropped."""
    k_core: int = 0
    """Drop users and items in turn until all have at least this many actions."""

    def __post_init__(self) -> None:
        for name in ("min_item_actions", "min_user_actions", "k_core"):
            if getattr(self, name) < 0:
                raise UsageError(f"`{name}` must not be negative, found {getattr(self, name)}.")


def apply_filters(actions: "SortedActions", filters: Filters) -> list[str]:
    """Drop what the filters say. Returns a sentence for every filter that dropped some.

    Raises DataError naming the filter that leaves none.
    """
    if not len(actions):
        raise DataError("The log has no actions.")
    notes = []
    for name, drop in _steps(filters):
        before, users_before = len(actions), actions.num_users
        drop(actions)
        if not len(actions):
            raise DataError(f"`{name}` leaves none of {before:,} actions. Loosen this filter.")
        if len(actions) < before:
            dropped = f"{before - len(actions):,} of {before:,} actions"
            fewer = users_before - actions.num_users
            users = f", and {fewer:,} of {users_before:,} users" if fewer else ""
            notes.append(f"`{name}` dropped {dropped}{users}.")
    return notes


def _steps(filters: Filters) -> "list[tuple[str, Callable[[SortedActions], None]]]":
    steps: list[tuple[str, Callable[[SortedActions], None]]] = []

    def add(name: str, choose: Callable[[Actions], Mask]) -> None:
        steps.append((name, lambda actions: actions.keep(choose)))

    if filters.after is not None:
        after = filters.after
        add(f'after="{format_moment(after)}"', lambda a: _times(a, "after") >= after)
    if filters.before is not None:
        before = filters.before
        add(f'before="{format_moment(before)}"', lambda a: _times(a, "before") < before)
    if filters.drop_duplicates:
        add("drop_duplicates=True", lambda a: ~duplicates(a, _times(a, "drop_duplicates")))
    if filters.drop_repeats:
        add("drop_repeats=True", lambda a: ~repeats(a.users, a.items))
    if (least := filters.min_item_actions) > 1:
        steps.append((f"min_item_actions={least}", lambda actions: _keep_frequent_items(actions, least)))
    if (fewest := filters.min_user_actions) > 1:
        steps.append((f"min_user_actions={fewest}", lambda actions: _keep_frequent_users(actions, fewest)))
    if filters.k_core > 1:
        steps.append((f"k_core={filters.k_core}", lambda actions: _keep_core(actions, filters.k_core)))
    return steps


def repeats(users: NDArray[np.uint32], items: NDArray[np.uint32]) -> Mask:
    """True for every action on an item that the same user had before."""
    import polars as pl

    mask: Mask = ~pl.Series(_pairs(users, items)).is_first_distinct().to_numpy()
    return mask


def duplicates(actions: Actions, times: NDArray[np.int64]) -> Mask:
    """True for every action with the same user, item and time as an earlier one."""
    mask: Mask = np.zeros(len(actions), np.bool_)
    is_tied = np.zeros(len(actions), np.bool_)
    is_tied[1:] = (actions.users[1:] == actions.users[:-1]) & (times[1:] == times[:-1])
    moments = np.cumsum(~is_tied, dtype=np.uint32)
    places = np.flatnonzero(is_tied | np.append(is_tied[1:], False))
    mask[places] = repeats(moments[places], actions.items[places])
    return mask


def count_oddities(blocks: Iterable[Actions]) -> dict[str, int]:
    """How many actions tie with the user's previous one, repeat an item, or are there twice.

    All actions of a user must be in one block. Without times there are no duplicates: a user may do the same thing
    twice in a row on purpose.
    """
    counts = {"ties": 0, "repeats": 0, "duplicates": 0}
    for actions in blocks:
        counts["repeats"] += _count_repeats(actions)
        if actions.times is not None:
            same_user = actions.users[1:] == actions.users[:-1]
            counts["ties"] += int(np.count_nonzero(same_user & (actions.times[1:] == actions.times[:-1])))
            counts["duplicates"] += int(np.count_nonzero(duplicates(actions, actions.times)))
    return counts


def _count_repeats(actions: Actions) -> int:
    """As many as `repeats` finds; sorting is several times faster than telling which."""
    pairs = _pairs(actions.users, actions.items)
    pairs.sort()
    return int(np.count_nonzero(pairs[1:] == pairs[:-1]))


def _pairs(users: NDArray[np.uint32], items: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return (users.astype(np.uint64) << np.uint64(32)) | items


def _times(actions: Actions, parameter: str) -> NDArray[np.int64]:
    if actions.times is None:
        raise UsageError(f"`{parameter}` requires times, and this log has none.")
    return actions.times


def _keep_frequent_items(actions: "SortedActions", least: int) -> None:
    is_frequent = actions.item_counts() >= least
    actions.keep(lambda block: is_frequent[block.items])


def _keep_frequent_users(actions: "SortedActions", least: int) -> None:
    is_frequent = actions.counts >= least
    actions.keep(lambda block: is_frequent[block.users])


def _keep_core(actions: "SortedActions", least: int) -> None:
    before = -1
    while len(actions) != before:
        before = len(actions)
        _keep_frequent_users(actions, least)
        _keep_frequent_items(actions, least)
